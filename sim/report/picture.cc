#include "sim/report/picture.h"

#include <algorithm>
#include <map>

#include "base/numbers.h"
#include "sim/network/flow_network.h"
#include "sim/step/interpreter.h"
#include "sim/step/prepared_step.h"

namespace orrery::sim {
namespace {

using Categories = std::array<std::int64_t, plan::kBufferCategories>;

TimePart pass_of(TimePart part) {
  return part == TimePart::kRecompute ? TimePart::kBackward : part;
}

std::vector<Picture::Block> blocks_of(const PreparedClass& k, const ClassOutcome& out,
                                      std::int64_t step_ps) {
  const std::int64_t gap = step_ps / 2000;
  std::vector<Picture::Block> blocks;
  for (std::uint32_t s = 0; s < plan::kStreams; ++s) {
    const std::size_t first = blocks.size();
    for (std::uint32_t i = k.first[s]; i != kNone; i = k.next[i]) {
      const plan::OpInstance& o = k.expansion.ops[i];
      const TimePart part = pass_of(k.price(i).part);
      const std::int64_t busy = out.end_ps[i] - out.start_ps[i],
                         recomputed = k.price(i).part == TimePart::kRecompute ? busy : 0;
      if (blocks.size() > first) {
        Picture::Block& b = blocks.back();
        if (b.part == part && b.micro_batch == o.micro_batch && out.start_ps[i] - b.end_ps <= gap) {
          b.first_layer = std::min(b.first_layer, o.layer);
          b.last_layer = std::max(b.last_layer, o.layer);
          b.end_ps = out.end_ps[i];
          b.busy_ps += busy;
          b.recompute_ps += recomputed;
          ++b.operations;
          continue;
        }
      }
      blocks.push_back({static_cast<plan::Stream>(s), part, o.micro_batch, o.layer, o.layer, 1,
                        out.start_ps[i], out.end_ps[i], busy, recomputed});
    }
  }
  return blocks;
}

/// Changes of what is alive on a rank of one class, by category.
class MemoryWalk {
 public:
  MemoryWalk(const plan::Program& program, const PreparedClass& k, const ClassOutcome& out)
      : program_(program),
        k_(k),
        out_(out),
        instances_(program, *k.rank_class),
        ends_(instances_.size(), 0) {}

  std::vector<Picture::Memory> run(std::int64_t step_ps) {
    for (std::uint32_t i = 0; i < k_.op_count(); ++i) visit(i);
    std::ranges::sort(changes_);
    Categories alive{};
    for (const auto& p : k_.rank_class->persistent)
      if (!program_.buffers[p.buffer].on_host())
        alive[category(p.buffer)] += program_.buffers[p.buffer].bytes();
    std::vector<Picture::Memory> highest;
    std::int64_t bin = -1, most = 0, total = 0;
    for (const std::int64_t bytes : alive) total += bytes;
    const auto show = [&](std::int64_t at_ps) {
      const std::int64_t now = std::min<std::int64_t>(
          step_ps > 0 ? static_cast<std::int64_t>(static_cast<kernel::Int128>(at_ps) * kMemoryBins /
                                                  step_ps)
                      : 0,
          kMemoryBins - 1);
      if (now == bin && total <= most) return;
      if (now != bin) highest.emplace_back();
      highest.back() = {at_ps, alive};
      bin = now;
      most = total;
    };
    show(0);
    for (std::size_t i = 0; i < changes_.size();) {
      const std::int64_t at = changes_[i].at_ps;
      for (; i < changes_.size() && changes_[i].at_ps == at; ++i) {
        alive[changes_[i].category] += changes_[i].bytes;
        total += changes_[i].bytes;
      }
      show(at);
    }
    return highest;
  }

 private:
  struct Change {
    std::int64_t at_ps = 0;
    std::size_t category = 0;
    std::int64_t bytes = 0;
    auto operator<=>(const Change&) const = default;
  };
  [[nodiscard]] std::size_t category(plan::BufferId buffer) const {
    return as_index(program_.buffers[buffer].category);
  }
  /// Of what is on the device.
  void change(std::int64_t at_ps, const plan::BufferRef& ref, std::int64_t sign) {
    const plan::BufferDecl& decl = program_.buffers[ref.buffer];
    if (!decl.on_host()) changes_.push_back({at_ps, category(ref.buffer), sign * decl.bytes()});
  }
  std::int64_t& last_end(const plan::BufferRef& ref, const plan::OpInstance& o) {
    return ends_[instances_.at(ref, o.layer, o.micro_batch)];
  }

  void visit(std::uint32_t i) {
    const plan::OpInstance& o = k_.expansion.ops[i];
    const plan::Op& op = *o.op;
    const std::int64_t end = out_.end_ps[i];
    const auto use = [&](const plan::BufferRef& ref) {
      last_end(ref, o) = std::max(last_end(ref, o), end);
    };
    for (const plan::BufferRef& ref : op.writes) {
      last_end(ref, o) = end;
      change(out_.start_ps[i], ref, 1);
    }
    for (const plan::BufferRef& ref : op.reads) use(ref);
    for (const plan::BufferRef& ref : op.updates) use(ref);
    if (op.weights) use(*op.weights);
    if (op.gradients) use(*op.gradients);
    for (const plan::BufferRef& ref : op.frees) {
      use(ref);
      change(last_end(ref, o), ref, -1);
    }
    if (const std::int64_t transient = k_.price(i).transient_bytes; transient > 0) {
      const auto activation = as_index(plan::BufferCategory::kActivation);
      changes_.push_back({out_.start_ps[i], activation, transient});
      changes_.push_back({end, activation, -transient});
    }
  }

  const plan::Program& program_;
  const PreparedClass& k_;
  const ClassOutcome& out_;
  plan::InstanceMap instances_;
  std::vector<std::int64_t> ends_;  // [instance] last end of its users so far
  std::vector<Change> changes_;
};

}  // namespace

std::vector<Picture::Link> link_bytes(const Outcome& outcome, const FlowNetwork& network,
                                      const std::function<bool(std::uint32_t)>& wanted) {
  std::map<topologies::LinkId, std::int64_t> carried;
  for (std::size_t era = 0; era < outcome.sent_bytes.size(); ++era) {
    for (std::uint32_t t = 0; t < outcome.sent_bytes[era].size(); ++t) {
      if (wanted && !wanted(t)) continue;
      for (const costmodel::LinkLoad& load : network.transfer(t, era).links)
        carried[load.link] += load.flows * outcome.sent_bytes[era][t];
    }
  }
  std::vector<Picture::Link> joined;
  for (const auto& [link, bytes] : carried) {
    if (bytes > 0)
      joined.push_back({link, bytes, real(bytes) / network.room_bytes(link, outcome.step_ps)});
  }
  return joined;
}

Picture picture_of(const plan::Program& program, const PreparedStep& step, const Outcome& outcome,
                   const FlowNetwork& network, const std::vector<std::uint32_t>& classes) {
  Picture picture;
  for (const std::uint32_t c : classes) {
    picture.stages.push_back(
        {blocks_of(step.classes[c], outcome.classes[c], outcome.step_ps),
         MemoryWalk(program, step.classes[c], outcome.classes[c]).run(outcome.step_ps)});
  }
  picture.links = link_bytes(outcome, network);
  return picture;
}

}  // namespace orrery::sim

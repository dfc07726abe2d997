#include "plan/program/memory.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/numbers.h"
#include "model/segment.h"

namespace orrery::plan {

namespace {

/// What a template does to memory when no send that touches its streams is under way.
struct Effect {
  TemplateMemory memory;
  std::array<std::int64_t, kBufferCategories> delta{};  // by BufferCategory
  std::vector<std::int64_t> transients;                 // [operation] bytes alive while it runs
  unsigned streams = 0;                                 // bits
  bool leaves_in_flight = false;                        // frees late
  std::int64_t host_bytes = 0;                          // left there when it has ended
};

Effect effect_of(const Program& program, const Template& t, double loss_bytes) {
  Effect e;
  const auto change = [&](const BufferRef& r, std::int64_t sign) {
    const BufferDecl& buffer = program.buffers[r.buffer];
    e.host_bytes += sign * buffer.host_bytes();
    if (buffer.on_host()) return;
    e.delta[as_index(buffer.category)] += sign * buffer.bytes();
    e.memory.delta_bytes += sign * buffer.bytes();
  };
  for (const Op& op : t.ops) {
    for (const BufferRef& w : op.writes) change(w, 1);
    e.transients.push_back(op.kind == OpKind::kCompute
                               ? transient_bytes(program.segments[op.segment], op.phase, loss_bytes)
                               : 0);
    e.memory.peak_bytes = std::max(e.memory.peak_bytes, e.memory.delta_bytes + e.transients.back());
    if (!copies_out(op))
      for (const BufferRef& f : op.frees) change(f, -1);
    e.streams |= 1U << static_cast<unsigned>(op.stream);
    e.leaves_in_flight = e.leaves_in_flight || (frees_late(op) && !op.frees.empty());
  }
  return e;
}

/// Running account of one rank in issue order. A step calls a few templates thousands of times:
/// sizes and effects are found once, and a call that cannot bring a new peak is not looked into.
class Account {
 public:
  Account(const Program& program, double loss_bytes) : program_(program) {
    for (const BufferDecl& d : program.buffers)
      buffers_.push_back({d.bytes(), d.on_host() ? kOnHost : as_index(d.category)});
    for (const Template& t : program.templates)
      effects_.push_back(effect_of(program, t, loss_bytes));
  }

  StaticMemory run(const RankClass& rank_class) {
    begin(rank_class);
    for_each_call(rank_class, [&](TemplateId id, std::int32_t, std::int32_t) { call(id); });
    return m_;
  }

  /// [operation]
  std::vector<std::int64_t> by_op(const RankClass& rank_class) {
    std::vector<std::int64_t> bytes;
    begin(rank_class);
    for_each_op(program_, rank_class, [&](const OpInstance& o) {
      const std::int64_t transient = effects_[o.source.raw()].transients[o.index];
      bytes.push_back(issue(*o.op, transient));
    });
    return bytes;
  }

 private:
  void begin(const RankClass& rank_class) {
    for (const auto& p : rank_class.persistent) add(p.buffer, 1);
    m_.persistent_bytes = total_;
    peak(0, -1);
  }

  void call(TemplateId id) {
    const Effect& e = effects_[id.raw()];
    const auto& ops = program_.templates[id].ops;
    if (!e.leaves_in_flight && (e.streams & busy_) == 0 &&
        total_ + e.memory.peak_bytes <= m_.peak_bytes) {
      for (std::size_t c = 0; c < alive_.size(); ++c) alive_[c] += e.delta[c];
      total_ += e.memory.delta_bytes;
      host_ += e.host_bytes;
      m_.host_bytes = std::max(m_.host_bytes, host_);
      index_ += static_cast<std::int64_t>(ops.size());
      return;
    }
    for (std::size_t i = 0; i < ops.size(); ++i) issue(ops[i], e.transients[i]);
  }

  /// Bytes alive while it runs.
  std::int64_t issue(const Op& op, std::int64_t transient) {
    const auto stream = as_index(op.stream);
    for (const BufferId id : in_flight_[stream]) add(id, -1);
    in_flight_[stream].clear();
    busy_ &= ~(1U << stream);
    for (const BufferRef& w : op.writes) add(w.buffer, 1);
    peak(transient, index_++);
    const std::int64_t alive = total_ + transient;
    for (const BufferRef& f : op.frees) {
      if (!frees_late(op)) {
        add(f.buffer, -1);
        continue;
      }
      in_flight_[stream].push_back(f.buffer);
      busy_ |= 1U << stream;
    }
    return alive;
  }

  void add(BufferId id, std::int64_t sign) {
    const Size& size = buffers_[id.raw()];
    if (size.category == kOnHost) {
      host_ += sign * size.bytes;
      m_.host_bytes = std::max(m_.host_bytes, host_);
      return;
    }
    alive_[size.category] += sign * size.bytes;
    total_ += sign * size.bytes;
  }

  void peak(std::int64_t transient, std::int64_t at) {
    if (total_ + transient <= m_.peak_bytes) return;
    m_.peak_bytes = total_ + transient;
    m_.at_peak = alive_;
    m_.at_peak[as_index(BufferCategory::kActivation)] += transient;
    m_.peak_op = at;
  }

  static constexpr std::size_t kOnHost = kBufferCategories;
  struct Size {
    std::int64_t bytes = 0;
    std::size_t category = 0;  // by BufferCategory; kOnHost: none of the device's
  };
  const Program& program_;
  std::vector<Size> buffers_;
  std::vector<Effect> effects_;  // [template]
  StaticMemory m_;
  std::array<std::int64_t, kBufferCategories> alive_{};
  std::int64_t total_ = 0, index_ = 0, host_ = 0;
  // freed by a send or copy that may still be under way
  std::array<std::vector<BufferId>, kStreams> in_flight_;
  unsigned busy_ = 0;  // streams with some, bits
};

}  // namespace

StaticMemory static_memory(const Program& program, const RankClass& rank_class, double loss_bytes) {
  return Account(program, loss_bytes).run(rank_class);
}

std::vector<std::int64_t> memory_by_op(const Program& program, const RankClass& rank_class) {
  return Account(program, 0).by_op(rank_class);
}

std::int64_t transient_bytes(const model::SegmentShape& shape, Phase phase, double loss_bytes) {
  const std::int64_t own = model::work(shape, phase).transient_bytes;
  if (shape.kind != model::SegmentKind::kLoss) return own;
  return own + std::llround(loss_bytes * real(shape.token_count() * shape.out));
}

std::int64_t copied_bytes(const Program& program, const Template& t) {
  std::int64_t bytes = 0;
  for (const Op& op : t.ops) {
    if (!copies_out(op)) continue;
    for (const BufferRef& f : op.frees) bytes += program.buffers[f.buffer].device_bytes();
  }
  return bytes;
}

TemplateMemory template_memory(const Program& program, TemplateId id) {
  return effect_of(program, program.templates[id], 0).memory;
}

}  // namespace orrery::plan

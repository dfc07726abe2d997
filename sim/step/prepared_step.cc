#include "sim/step/prepared_step.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "costmodel/closed_form/layer_form.h"
#include "plan/program/memory.h"
#include "plan/program/messages.h"
#include "plan/program/stream_refs.h"
#include "sim/network/class_loads.h"

namespace orrery::sim {
namespace {

using plan::Stream;

Activity activity_of(const plan::Op& op) {
  if (op.kind == plan::OpKind::kCompute) return Activity::kCompute;
  switch (op.stream) {
    case Stream::kTensor: return Activity::kTensor;
    case Stream::kCompute:
    case Stream::kData:
    case Stream::kHost:
    case Stream::kCopyOut:
    case Stream::kCopyIn: return Activity::kData;
    default: return Activity::kPipeline;
  }
}

/// A group names the dimension it serves; what no group tells apart, the stream does. An exchange
/// on the tensor stream is ring attention's.
TimePart communication_part(const plan::Program& program, const plan::Op& op) {
  const std::string_view group = op.kind == plan::OpKind::kCollective
                                     ? std::string_view(program.groups[op.group].name)
                                     : std::string_view();
  if (group.starts_with("context")) return TimePart::kContext;
  if (group.starts_with("expert"))
    return op.stream == Stream::kTensor ? TimePart::kExpert : TimePart::kData;
  switch (activity_of(op)) {
    case Activity::kTensor:
      return op.kind == plan::OpKind::kExchange ? TimePart::kContext : TimePart::kTensor;
    case Activity::kData: return TimePart::kData;
    case Activity::kPipeline: return TimePart::kPipeline;
    case Activity::kCompute: break;
  }
  ORRERY_CHECK(false, "'{}' computes", op.name);
}

bool updates_state(model::SegmentKind kind) {
  return kind == model::SegmentKind::kAdamW || kind == model::SegmentKind::kZeroGradient;
}

TimePart part_of(const plan::Program& program, const plan::Op& op) {
  if (op.kind != plan::OpKind::kCompute) return communication_part(program, op);
  if (updates_state(program.segments[op.segment].kind)) return TimePart::kOptimizer;
  if (op.recomputed) return TimePart::kRecompute;
  const bool sums_gradients = program.segments[op.segment].kind == model::SegmentKind::kAccumulate;
  return op.phase == plan::Phase::kF && !sums_gradients ? TimePart::kForward : TimePart::kBackward;
}

/// Parts of one operation that run over the same links at once: ring legs of several classes, in
/// parallel.
costmodel::Transfer joined(costmodel::Transfer a, const costmodel::Transfer& b) {
  a.latency_ps = std::max(a.latency_ps, b.latency_ps);
  a.wire_bytes = std::max(a.wire_bytes, b.wire_bytes);
  a.bytes_per_second = std::min(a.bytes_per_second, b.bytes_per_second);
  for (const auto& load : b.links) {
    const auto at = std::ranges::find(a.links, load.link, &costmodel::LinkLoad::link);
    if (at == a.links.end())
      a.links.push_back(load);
    else
      at->flows += load.flows;
  }
  return a;
}

class Preparation {
 public:
  Preparation(const plan::Program& program, const costmodel::CostModel& cost, FlowNetwork& network,
              bool fold, const FusedProgram* fused, costmodel::DeviceKinds only = 0)
      : program_(program),
        fused_(fused),
        cost_(cost),
        only_(only),
        network_(network),
        loads_(program, cost, fold),
        stream_refs_(program),
        prices_(cost),
        segments_(program.segments.size() * kPhases) {
    find_copies();
    find_late();
    for (const plan::Template& t : program.templates) {
      offsets_.push_back(template_ops_);
      template_ops_ += as_u32(t.ops.size());
    }
    for (std::uint32_t c = 0; c < program.classes.size(); ++c)
      class_at_.emplace(program.classes[c].first_rank, c);
  }

  base::Result<PreparedStep> run() {
    TRY_VOID(check_copies());
    step_.classes.resize(program_.classes.size());
    for (std::uint32_t c = 0; c < step_.classes.size(); ++c) prepare_class(c);
    for (std::size_t i = 0; i < step_.crossings.size(); ++i) {
      Crossing& x = step_.crossings[i];
      x.transfer = network_.add(crossing_transfers_[i], lane_of(x.classes.front(), x.stream, 0));
    }
    network_.freeze();
    return sink_.result(std::move(step_));
  }

 private:
  static constexpr std::size_t kPhases = 4;
  struct Priced {
    costmodel::DeviceKinds kinds = 0;
    std::int64_t ps = 0;
  };

  /// Copies of gathered weights stand before the first operation of a template that reads them,
  /// those of gradient parts behind the last that adds to them.
  void find_copies() {
    std::map<plan::BufferId, model::SegmentShape> moved;
    for (const plan::Template& t : program_.templates)
      for (const plan::Op& op : t.ops) {
        if (!plan::moves_shards(op)) continue;
        const bool gathers = op.collective == plan::Collective::kAllGather;
        if (const auto copies = cost_.copies(op))
          moved[(gathers ? op.writes : op.reads).front().buffer] = *copies;
      }
    if (moved.empty()) return;
    for (const plan::Template& t : program_.templates) {
      std::map<plan::BufferId, const plan::Op*> at;
      for (const plan::Op& op : t.ops) {
        const std::vector<plan::Op>* run = fused_ != nullptr ? fused_->run_of(op) : nullptr;
        for (const plan::Op& one : run != nullptr ? std::span(*run) : std::span(&op, 1)) {
          if (one.weights) at.try_emplace(one.weights->buffer, &op);
          if (one.gradients) at[one.gradients->buffer] = &op;
        }
      }
      for (const auto& [buffer, op] : at)
        if (const auto found = moved.find(buffer); found != moved.end())
          copies_[op].push_back(found->second);
    }
  }

  /// The last operation that computes in a template waits for the host
  /// (TemplateForm::host_wait_ps).
  void find_late() {
    if (cost_.host_ps(1) == 0) return;
    for (const plan::TemplateId id : program_.templates.ids()) {
      const plan::Op* last = nullptr;
      for (const plan::Op& op : program_.templates[id].ops) {
        if (op.kind == plan::OpKind::kCompute) last = &op;
      }
      if (last != nullptr) late_.emplace(last, id);
    }
  }

  void prepare_class(std::uint32_t c) {
    PreparedClass& k = step_.classes[c];
    k.rank_class = &program_.classes[c];
    parts_.assign(program_.templates.size(), std::nullopt);
    k.expansion = plan::expand(program_, *k.rank_class, stream_refs_);
    k.ops.resize(template_ops_);
    const auto n = as_u32(k.expansion.ops.size());
    k.priced.resize(n);
    k.next.resize(n);
    k.first.fill(kNone);
    collectives_.clear();
    for (std::uint32_t i = n; i-- > 0;) {
      const plan::OpInstance& instance = k.expansion.ops[i];
      const auto stream = as_index(instance.op->stream);
      k.next[i] = std::exchange(k.first[stream], i);
      k.priced[i] = offsets_[instance.source.raw()] + instance.index;
      if (k.ops[k.priced[i]].op == nullptr) k.ops[k.priced[i]] = price(c, instance);
    }
    k.lifetimes = lifetimes(program_, *k.rank_class, k.expansion);
    k.expansion.frees = {};  // lifetimes has them
    k.expansion.free_users = {};
  }

  /// The first of the class's ranks of the kind that is asked for; all where it has none.
  [[nodiscard]] costmodel::Ranks of_kind(const plan::RankClass& k) const {
    const int end = k.first_rank + k.count;
    for (int rank = k.first_rank; rank < end; rank = cost_.kind_end(rank)) {
      if (cost_.kinds_of(rank, 1) == only_)
        return {rank, std::min(cost_.kind_end(rank), end) - rank};
    }
    return {k.first_rank, k.count};
  }

  /// Whose pace a template has in a class (TemplateForm).
  costmodel::Ranks pace_of(std::uint32_t c, plan::TemplateId id) {
    std::optional<costmodel::Ranks>& part = parts_[id.raw()];
    if (part) return *part;
    const plan::RankClass& k = program_.classes[c];
    part = {k.first_rank, k.count};
    if (!cost_.mixed()) return *part;
    if (only_ != 0) return *(part = of_kind(k));
    const plan::Program& whole = fused_ != nullptr ? *fused_->whole : program_;
    const costmodel::TemplateForm form(whole, id, false, prices_);
    part = form.slowest(1, {}, *part, prices_);
    return *part;
  }

  PricedOp price(std::uint32_t c, const plan::OpInstance& instance) {
    const plan::Op& op = *instance.op;
    const costmodel::Ranks part = pace_of(c, instance.source);
    kinds_ = cost_.kinds_of(part.first, part.count);
    PricedOp p;
    p.kinds = kinds_;
    p.op = &op;
    p.kind = op.kind;
    p.stream = static_cast<std::uint8_t>(op.stream);
    p.activity = activity_of(op);
    p.part = part_of(program_, op);
    p.written_bytes = stream_refs_.written_bytes(instance);
    p.freed_bytes = stream_refs_.freed_bytes(instance);
    switch (op.kind) {
      case plan::OpKind::kCompute: {
        p.host_wait_ps = host_wait_ps(c, op);
        p.compute_ps = p.host_wait_ps;
        if (const auto copies = copies_.find(&op); copies != copies_.end()) {
          for (const model::SegmentShape& copy : copies->second)
            p.compute_ps += cost_.segment_ps(copy, plan::Phase::kF, kinds_);
        }
        if (const std::vector<plan::Op>* run = fused_ != nullptr ? fused_->run_of(op) : nullptr) {
          for (const plan::Op& one : *run) p.compute_ps += segment_ps(one.segment, one.phase);
          break;
        }
        const model::SegmentShape& shape = program_.segments[op.segment];
        p.compute_ps += segment_ps(op.segment, op.phase);
        p.transient_bytes = plan::transient_bytes(shape, op.phase, cost_.loss_bytes());
        p.optimizer = updates_state(shape.kind);
        p.recomputed = op.recomputed;
        break;
      }
      case plan::OpKind::kCollective:
        p.holds_nobody = plan::exchanges_rows(op) && cost_.overlaps_experts();
        price_collective(c, op, part, p);
        break;
      case plan::OpKind::kExchange: price_exchange(c, op, p); break;
      case plan::OpKind::kCopy: price_copy(c, op, p); break;
    }
    return p;
  }

  /// On the devices of the class at hand.
  std::int64_t segment_ps(plan::SegmentId segment, plan::Phase phase) {
    std::vector<Priced>& known = segments_[segment.raw() * kPhases + as_index(phase)];
    const auto at = std::ranges::find(known, kinds_, &Priced::kinds);
    if (at != known.end()) return at->ps;
    known.push_back({kinds_, cost_.segment_ps(program_.segments[segment], phase, kinds_)});
    return known.back().ps;
  }

  std::int64_t host_wait_ps(std::uint32_t c, const plan::Op& op) {
    const auto late = late_.find(&op);
    if (late == late_.end()) return 0;
    const plan::RankClass& k = program_.classes[c];
    const plan::Program& whole = fused_ != nullptr ? *fused_->whole : program_;
    const costmodel::TemplateForm form(whole, late->second, false, prices_);
    return form.host_wait_ps(1, {}, {k.first_rank, k.count}, prices_);
  }

  void price_collective(std::uint32_t c, const plan::Op& op, costmodel::Ranks part, PricedOp& p) {
    const plan::RankClass& k = program_.classes[c];
    const plan::Group& group = program_.groups[op.group];
    const std::set<std::uint32_t> members = members_of(group, c);
    if (members.contains(kNone)) {
      sink_.error(
          {}, base::ErrorCode::kInconsistent,
          "'{}' of stage {}: group '{}' ({} ranks, {} apart) reaches beyond the world of {}",
          op.name, k.stage, group.name, group.size, group.stride, program_.world_size);
      return;
    }
    Crossing made{.classes = {members.begin(), members.end()},
                  .group = group,
                  .collective = op.collective,
                  .bytes = cost_.wire_bytes(program_, op),
                  .stream = p.stream,
                  .in_pieces = op.pieces > 1,
                  .stated = plan::states_messages(op) ? &op : nullptr};
    const auto alike = [&](const Crossing& x) { return x.same(made); };
    if (members.size() > 1) {
      const auto at = std::ranges::find_if(step_.crossings, alike);
      p.crossing = as_u32(at - step_.crossings.begin());
      if (at == step_.crossings.end()) {
        step_.crossings.push_back(made);
        crossing_transfers_.push_back(transfer(c, op));
      } else {
        costmodel::Transfer& all = crossing_transfers_[p.crossing];
        all = joined(std::move(all), transfer(c, op));
      }
      return;
    }
    if (only_ == 0 && op.stream != plan::Stream::kData && part.count < k.count) made.part = part;
    auto known = std::ranges::find_if(collectives_, alike);
    if (known == collectives_.end()) {
      known = collectives_.insert(known, made);
      known->transfer = network_.add(
          made.part.count == 0 ? transfer(c, op) : loads_.collective(op, made.bytes, c, part),
          lane_of(c, p.stream, 0));
    }
    p.transfer = known->transfer;
  }

  void price_copy(std::uint32_t c, const plan::Op& op, PricedOp& p) {
    const plan::RankClass& k = program_.classes[c];
    p.compute_ps = cost_.copy_ps(plan::copies_out(op), op.bytes, k.first_rank, k.count).value();
  }
  /// Where the Program copies to hosts its ranks have ways there.
  base::Result<void> check_copies() const {
    const auto copies = [](const plan::Template& t) {
      return std::ranges::any_of(t.ops, plan::copies_out);
    };
    if (std::ranges::none_of(program_.templates, copies)) return {};
    for (const bool to_host : {true, false})
      TRY_VOID(cost_.copy_ps(to_host, 0, 0, program_.world_size));
    return {};
  }

  costmodel::Transfer transfer(std::uint32_t c, const plan::Op& op) {
    return loads_.collective(op, cost_.wire_bytes(program_, op), c);
  }

  /// Classes of the group of the class's first rank, ascending; kNone among them for ranks outside
  /// the world.
  [[nodiscard]] std::set<std::uint32_t> members_of(const plan::Group& group,
                                                   std::uint32_t c) const {
    const plan::RankClass& k = program_.classes[c];
    const int first = group.base(k.first_rank), last = group.member(first, group.size - 1);
    if (first >= k.first_rank && last < k.first_rank + k.count) return {c};
    std::set<std::uint32_t> members;
    for (int i = 0; i < group.size; ++i) members.insert(class_at(group.member(first, i)));
    return members;
  }

  void price_exchange(std::uint32_t c, const plan::Op& op, PricedOp& p) {
    const plan::RankClass& k = program_.classes[c];
    p.first_leg = as_u32(step_.legs.size());
    p.legs = as_u32(op.legs.size());
    p.send_only = std::ranges::all_of(op.legs, [](const plan::Leg& l) { return l.send; });
    for (std::uint32_t i = 0; i < p.legs; ++i) {
      const plan::Leg& leg = op.legs[i];
      const std::uint32_t peer = class_at(k.first_rank + leg.peer_offset);
      if (peer == kNone || class_at(k.first_rank + k.count - 1 + leg.peer_offset) == kNone) {
        sink_.error({}, base::ErrorCode::kInconsistent,
                    "'{}' of stage {}: peer {:+} of its ranks lies outside the world of {}",
                    op.name, k.stage, leg.peer_offset, program_.world_size);
        step_.legs.emplace_back();
        continue;
      }
      const Stream sending = plan::sending_end(op.stream);
      const Channel way = leg.send ? Channel{c, peer, sending, leg.peer_offset}
                                   : Channel{peer, c, sending, -leg.peer_offset};
      PricedLeg priced{.send = leg.send, .channel = channel(way)};
      if (leg.send) {
        const std::int64_t bytes = program_.buffers[leg.buffer.buffer].bytes();
        costmodel::Transfer way_there = loads_.exchange(c, leg.peer_offset, bytes);
        priced.transfer = network_.add(std::move(way_there), lane_of(c, p.stream, i));
      }
      step_.legs.push_back(priced);
    }
  }

  [[nodiscard]] std::uint32_t class_at(int rank) const {
    if (rank < 0 || rank >= program_.world_size) return kNone;
    const auto after = class_at_.upper_bound(rank);
    if (after == class_at_.begin()) return kNone;
    const std::uint32_t c = std::prev(after)->second;
    return rank < program_.classes[c].first_rank + program_.classes[c].count ? c : kNone;
  }

  std::uint32_t channel(const Channel& channel) {
    const auto at = std::ranges::find(step_.channels, channel);
    const auto index = as_u32(at - step_.channels.begin());
    if (at == step_.channels.end()) step_.channels.push_back(channel);
    return index;
  }

  const plan::Program& program_;
  const FusedProgram* fused_;  // null: no runs
  const costmodel::CostModel& cost_;
  costmodel::DeviceKinds only_;  // 0: each of its own
  FlowNetwork& network_;
  ClassLoads loads_;
  plan::StreamRefs stream_refs_;
  PreparedStep step_;
  base::ErrorSink sink_;
  std::vector<std::uint32_t> offsets_;  // [template] into PreparedClass::ops
  std::uint32_t template_ops_ = 0;
  std::map<int, std::uint32_t> class_at_;  // by first rank
  std::map<const plan::Op*, std::vector<model::SegmentShape>> copies_;
  std::map<const plan::Op*, plan::TemplateId> late_;  // last operations; empty: no host is late
  costmodel::OperationPrices prices_;                 // of templates
  std::vector<std::vector<Priced>> segments_;  // [segment * kPhases + phase] as far as asked for
  // [template] of the class at hand, as far as asked for
  std::vector<std::optional<costmodel::Ranks>> parts_;
  costmodel::DeviceKinds kinds_ = 0;   // of the operation at hand
  std::vector<Crossing> collectives_;  // inside the class at hand
  std::vector<costmodel::Transfer> crossing_transfers_;
};

}  // namespace

base::Result<PreparedStep> prepare(const plan::Program& program, const costmodel::CostModel& cost,
                                   FlowNetwork& network, bool fold) {
  return Preparation(program, cost, network, fold, nullptr).run();
}

base::Result<PreparedStep> prepare_on(costmodel::DeviceKinds kind, const plan::Program& program,
                                      const costmodel::CostModel& cost, FlowNetwork& network) {
  return Preparation(program, cost, network, true, nullptr, kind).run();
}

base::Result<PreparedStep> prepare(const FusedProgram& fused, const costmodel::CostModel& cost,
                                   FlowNetwork& network) {
  return Preparation(fused.program, cost, network, true, &fused).run();
}

}  // namespace orrery::sim

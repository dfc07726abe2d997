/// What a buffer holds on one rank: the whole value, or a share that a collective must complete
/// before anyone may read it.
///
///   partial sum      product split over its input (projection, MLP output, adapters of both),
///   table
///                    lookup of a vocabulary shard; gradient of the input of a product split over
///                    its output (QKV, MLP input, logits)
///   partial maximum  row maximum over a vocabulary shard; its sum of exponentials: partial sum
///   partial keys     attention over one of several blocks of keys, until all are merged
///   slices           AdamW on this rank's slice of a whole parameter, until they are gathered:
///                    behind it, or in the next step
///   partial slices   product in slices of its contraction, or its input's gradient, until each is
///                    in; then as above. What is made piece by piece of the tokens, until all are
///                    there
///
/// What an operation is linear in may be partial: its result then is (an expert's rows through
/// all-to-all and combine, a sum of partial sums).
///
/// Rows of experts are at home, with the tokens they are of, or away, where an all-to-all over a
/// group took them: an expert whose rank is one of ep reads rows that went over its expert group,
/// so that its contribution to a gradient is of the tokens of all ep ranks; dispatch and combine
/// read rows at home. The replicas that neither that group nor the unit's data group reaches would
/// be missing.
///
/// Completing what is complete already is a fault too (a second all-reduce multiplies by the
/// group's size). The loss is zeroed once per step and gets one contribution per micro-batch.

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/numbers.h"
#include "plan/check/check_internal.h"

namespace orrery::plan::checker {

namespace {

enum class Holds : std::uint8_t {
  kWhole,
  kPartialSum,
  kPartialMax,
  kPartialKeys,
  kPartialSlices,
  kSlices
};

class Values {
  /// Size and stride of the group that rows went over; none: at home.
  using Place = std::optional<std::pair<int, int>>;

 public:
  Values(const ClassStep& step, FaultList& faults)
      : step_(step),
        program_(*step.program),
        faults_(faults),
        holds_(step.instances.size(), Holds::kWhole),
        away_(step.instances.size()) {}

  void run() {
    losses_.assign(as_index(program_.micro_batches), 0);
    const std::vector<Holds> start = persistent_slices();
    holds_ = start;
    for (at_ = 0; at_ < step_.ops.size(); ++at_) {
      const Op& op = *step_.ops[at_].op;
      if (op.kind == OpKind::kCollective)
        collective(op);
      else if (op.kind == OpKind::kCopy)
        copied(op);
      else
        plain(op);
    }
    at_ = step_.ops.empty() ? 0 : step_.ops.size() - 1;
    for (std::size_t i = 0; i < holds_.size(); ++i) {
      if (holds_[i] == start[i] || !step_.persistent[i]) continue;
      fault(kContributionMissing, "ends the step with slices of the other ranks missing in",
            static_cast<InstanceIndex>(i));
    }
    check_losses();
  }

 private:
  /// A step starts with what the one before left: of a parameter that is not gathered behind AdamW
  /// this rank's slice.
  std::vector<Holds> persistent_slices() {
    std::vector<Holds> left(holds_.size(), Holds::kWhole);
    for (at_ = 0; at_ < step_.ops.size(); ++at_) {
      const Op& op = *step_.ops[at_].op;
      const bool gathers =
          op.kind == OpKind::kCollective && op.collective == Collective::kAllGather;
      if (op.updates.empty() || !(gathers || updates_slice(op))) continue;
      left[step_.instance_of(at_, op.updates[0])] = gathers ? Holds::kWhole : Holds::kSlices;
    }
    return left;
  }
  /// Only the owner's slice of a whole parameter is new; one of shard size has no other.
  bool updates_slice(const Op& op) const {
    if (op.kind != OpKind::kCompute || !program_.segments.contains(op.segment)) return false;
    const SegmentShape& shape = program_.segments[op.segment];
    return shape.kind == kAdamW && !op.updates.empty() &&
           program_.buffers[op.updates[0].buffer].elements() > shape.elements;
  }

  void fault(FaultKind kind, std::string_view what, InstanceIndex instance) {
    faults_.add(kind, step_.rank_class->stage, at_, "{} {} {}", step_.describe(at_), what,
                step_.describe_instance(instance));
  }

  /// Reads need whole values; what an op writes is whole, unless the table above says otherwise.
  void plain(const Op& op) {
    const bool computes = op.kind == OpKind::kCompute && program_.segments.contains(op.segment);
    if (computes && program_.segments[op.segment].kind == kAttentionMerge) return merge(op);
    if (computes && op.phase != kG &&
        std::max(program_.segments[op.segment].slices, program_.segments[op.segment].steps) > 1)
      return sliced(op, program_.segments[op.segment]);
    const std::vector<InstanceIndex> linear =
        computes ? linear_operands(op, program_.segments[op.segment])
                 : std::vector<InstanceIndex>{};
    const bool partial = !linear.empty() && std::ranges::all_of(linear, [&](InstanceIndex i) {
      return holds_[i] == Holds::kPartialSum;
    });
    for (const Access& a : step_.accesses_of(at_)) {
      Holds& h = holds_[a.instance];
      const bool passes = partial && std::ranges::find(linear, a.instance) != linear.end();
      const bool adds = a.kind == AccessKind::kUpdate && op.pieces > 1;
      if ((a.kind == AccessKind::kRead || a.kind == AccessKind::kUpdate) && h != Holds::kWhole &&
          !passes && !adds) {
        fault(kNeverReduced, "uses a partial value of", a.instance);
        h = Holds::kWhole;  // one fault, not an echo at every reader
      }
      if (a.kind == AccessKind::kWrite) {
        h = Holds::kWhole;
        away_[a.instance] = std::nullopt;
      }
    }
    if (computes) compute(op, program_.segments[op.segment], partial);
    if (computes && op.pieces > 1) piece_of_product(op, program_.segments[op.segment]);
  }

  /// Operands in which an operation is linear, if it may work on partial sums.
  std::vector<InstanceIndex> linear_operands(const Op& op, const SegmentShape& shape) const {
    std::vector<BufferRef> refs;
    const bool forward = op.phase == kF;
    if (shape.kind == kCombine && shape.routing.of_inputs) {
      if (forward && !op.reads.empty()) refs = {op.reads[0]};
    } else if (shape.kind == kCombine && op.reads.size() >= 4 - std::size_t{forward}) {
      refs.push_back(op.reads[forward ? 0 : 1]);
      if (shape.shared) refs.push_back(op.reads.back());
    }
    if (shape.kind == kDispatch && !forward && !op.reads.empty()) refs = {op.reads[0]};
    if (shape.kind == kAccumulate && op.reads.size() == 1 && op.updates.size() == 1)
      refs = {op.reads[0], op.updates[0]};
    std::vector<InstanceIndex> instances;
    for (const BufferRef& r : refs) instances.push_back(step_.instance_of(at_, r));
    return instances;
  }

  /// What it reads, whatever that is.
  void copied(const Op& op) {
    const std::vector<BufferRef>& made = copied_to(op);
    for (std::size_t i = 0; i < op.reads.size() && i < made.size(); ++i) {
      const InstanceIndex from = step_.instance_of(at_, op.reads[i]),
                          to = step_.instance_of(at_, made[i]);
      holds_[to] = holds_[from];
      away_[to] = away_[from];
    }
  }

  bool split(const Op& op) const {
    return op.unit && program_.groups[program_.units[*op.unit].tensor_group].size > 1;
  }
  void mark_writes(const Op& op, Holds h) {
    for (const BufferRef& ref : op.writes) holds_[step_.instance_of(at_, ref)] = h;
  }

  /// A block of a ring covers the keys of one step.
  void block(const Op& op, const SegmentShape& shape) {
    if (op.phase != kF || shape.token_parts == 1) return;
    mark_writes(op, Holds::kPartialKeys);
    for (const BufferRef& ref : op.writes)
      covered_[step_.instance_of(at_, ref)] = {shape.token_parts, {shape.ring_step}};
  }
  void merge(const Op& op) {
    for (std::size_t i = 0; i < op.updates.size() && i < op.reads.size(); ++i) {
      const InstanceIndex from = step_.instance_of(at_, op.reads[i]),
                          to = step_.instance_of(at_, op.updates[i]);
      Covered& all = covered_[to];
      for (const int step : covered_[from].steps) {
        if (!all.steps.insert(step).second)
          fault(kReducedTwice, "merges keys that are there already into", to);
      }
      if (as_int(all.steps.size()) == all.blocks) holds_[to] = Holds::kWhole;
    }
  }

  /// Id bits of the devices whose results add up to what a partitioned operator makes; 0: it is
  /// whole.
  std::uint32_t summed_bits(const Op& op, const SegmentShape& shape) const {
    const bool forward = op.phase == kF;
    switch (shape.kind) {
      case kScores: return forward ? 0 : op.phase == kB ? shape.key_bits : shape.token_bits;
      case kValues: return forward ? shape.key_bits : op.phase == kB ? 0 : shape.token_bits;
      case kNormSums: return shape.key_bits;
      case kQkv:
      case kProjection:
      case kMlpIn:
      case kMlpOut: break;
      default: return 0;
    }
    if (!op.unit || !program_.units[*op.unit].partitioned() || op.phase == kG) return 0;
    const Partition p(program_.units[*op.unit].partition);
    return p.split_mask(forward ? Dimension::kIn : Dimension::kOut);
  }
  void partitioned_sum(const Op& op, const SegmentShape& shape) {
    const std::uint32_t bits = summed_bits(op, shape);
    if (bits == 0) return;
    for (const BufferRef& ref : op.writes.empty() ? op.updates : op.writes) {
      const InstanceIndex to = step_.instance_of(at_, ref);
      holds_[to] = Holds::kPartialSum;
      summed_over_[to] = Group::of_bits("", bits);
    }
  }

  /// One slice of a product, or a temporal step: the first writes the result, the others add to it.
  void sliced(const Op& op, const SegmentShape& shape) {
    const std::vector<BufferRef>& made = op.writes.empty() ? op.updates : op.writes;
    if (made.empty()) return;  // check_operands says so
    const InstanceIndex to = step_.instance_of(at_, made[0]);
    for (const Access& a : step_.accesses_of(at_)) {
      if (a.kind != AccessKind::kRead || holds_[a.instance] == Holds::kWhole) continue;
      fault(kNeverReduced, "uses a partial value of", a.instance);
      holds_[a.instance] = Holds::kWhole;
    }
    Covered& all = covered_[to];
    if (!op.writes.empty()) {
      all = {std::max(shape.slices, shape.steps), {}};
      holds_[to] = Holds::kPartialSlices;
      away_[to] = std::nullopt;
    } else if (holds_[to] != Holds::kPartialSlices) {
      fault(kReducedTwice, "adds a slice to the complete", to);
    }
    if (!all.steps.insert(shape.steps > 1 ? op.temporal_step : shape.slice).second)
      fault(kReducedTwice, "adds a slice that is there already to", to);
    if (as_int(all.steps.size()) < all.blocks) return;
    if (shape.steps > 1) {
      holds_[to] = Holds::kWhole;
      return partitioned_sum(op, shape);
    }
    const bool row_parallel = shape.kind == kProjection || shape.kind == kMlpOut;
    holds_[to] = split(op) && (op.phase == kF) == row_parallel ? Holds::kPartialSum : Holds::kWhole;
  }

  /// It serves the heads of all tensor ranks.
  void rotated_key(const Op& op, const SegmentShape& shape) {
    if (op.phase != kF && shape.parts > 1 && !op.writes.empty())
      holds_[step_.instance_of(at_, op.writes.back())] = Holds::kPartialSum;
  }

  void compute(const Op& op, const SegmentShape& shape, bool partial) {
    const bool forward = op.phase == kF;
    partitioned_sum(op, shape);
    switch (shape.kind) {
      case kEmbedding:
      case kProjection:
      case kMlpOut:
        if (forward && split(op)) mark_writes(op, Holds::kPartialSum);
        break;
      case kExpertIn:
      case kExpertOut:
      case kDispatch:
      case kCombine: experts(op, shape, partial); break;
      case kQkv:
      case kMlpIn:
      case kLogits:
        if (!forward && split(op)) mark_writes(op, Holds::kPartialSum);
        break;
      case kAttentionBlock: block(op, shape); break;
      case kLossMax:
      case kLossSum:
        if (shape.parts > 1)
          mark_writes(op, shape.kind == kLossMax ? Holds::kPartialMax : Holds::kPartialSum);
        break;
      case kLoss: loss(op, forward); break;
      case kZeroGradient:
        if (!op.updates.empty()) zeroed_.push_back(step_.instance_of(at_, op.updates[0]));
        break;
      case kAdamW:
        if (updates_slice(op)) holds_[step_.instance_of(at_, op.updates[0])] = Holds::kSlices;
        break;
      case kLoadTokens:
      case kLoadTargets:
      case kPositionAdd:
      case kNorm:
      case kAttention:
      case kAttentionSplit:
      case kAttentionMerge:
      case kResidual:
      case kActivation:
      case kSlice:
      case kAccumulate:
      case kRouter:
      case kPatchProduct:
      case kBias:
      case kNormSums:
      case kNormApply:
      case kScores:
      case kSoftmax:
      case kValues:
      case kHeadNorm:
      case kScan:
      case kLatentProduct:
      case kPool: break;
      case kAdapterIn:
      case kAdapterOut: adapter(op, shape); break;
      case kLatentAttention: rotated_key(op, shape); break;
    }
  }

  /// Of a matrix that is split over its input t is a sum, of one split over its output dt is.
  void adapter(const Op& op, const SegmentShape& shape) {
    if ((op.phase == kF) != (shape.kind == kAdapterIn) || !split(op)) return;
    const std::vector<Parameter>& all = program_.units[*op.unit].parameters;
    for (const ParameterView& view : op.views)
      if (all[as_index(view.parameters.front())].shard_dim >= 0)
        mark_writes(op, Holds::kPartialSum);
  }

  /// Dispatch and combine keep what is partial; experts' last products make it. Where their rows
  /// are.
  void experts(const Op& op, const SegmentShape& shape, bool partial) {
    const bool forward = op.phase == kF, in = shape.kind == kExpertIn,
               out = shape.kind == kExpertOut;
    if (shape.kind == kCombine) {
      rows_at(op, forward ? 0 : 1, std::nullopt);
      if (partial && forward) mark_writes(op, Holds::kPartialSum);
      if (partial && !forward && op.writes.size() > 1)
        holds_[step_.instance_of(at_, op.writes[1])] = Holds::kPartialSum;
    } else if (shape.kind == kDispatch) {
      if (!forward) rows_at(op, 0, std::nullopt);
      if (partial) mark_writes(op, Holds::kPartialSum);
    } else if (op.unit) {
      const Place place = place_of(program_.units[*op.unit]);
      if (in || !forward) rows_at(op, in && !forward ? 1 : 0, place);
      if (split(op) && forward == out) mark_writes(op, Holds::kPartialSum);
      if (forward != out) return;
      for (const BufferRef& ref : op.writes) away_[step_.instance_of(at_, ref)] = place;
    }
  }
  void rows_at(const Op& op, std::size_t operand, const Place& place) {
    if (operand >= op.reads.size()) return;  // check_operands says so
    const InstanceIndex rows = step_.instance_of(at_, op.reads[operand]);
    if (away_[rows] != place)
      fault(kContributionMissing, "wants the rows of other ranks than those in", rows);
  }
  /// Where the rows of a unit's experts are; all replicas must be in reach.
  Place place_of(const ParameterUnit& unit) {
    const int tp = program_.groups[unit.tensor_group].size, ep = unit.strategy.ep,
              replicas = ep * program_.groups[unit.data_group].size;
    if (tp * replicas != program_.devices_per_stage) {
      faults_.add(kContributionMissing, step_.rank_class->stage, at_,
                  "{} of unit '{}' sees the tokens of {} replicas of {}", step_.describe(at_),
                  unit.name, replicas, program_.devices_per_stage / tp);
    }
    return ep > 1 ? Place(std::pair(ep, tp)) : std::nullopt;
  }

  void all_to_all(const Op& op, InstanceIndex from, InstanceIndex to) {
    const Group& group = program_.groups[op.group];
    holds_[to] = holds_[from];
    const Place over = std::pair(group.size, group.stride);
    constexpr std::pair<int, int> kLost{0, 0};  // back over another group than it went
    if (group.size == 1)
      away_[to] = away_[from];
    else if (!away_[from])
      away_[to] = over;
    else
      away_[to] = away_[from] == over ? std::nullopt : Place(kLost);
  }

  /// A piece of what is whole when all are there. Nothing to do where the piece has a buffer of its
  /// own. Errors: a piece twice, one to what is complete.
  void piece(const Op& op, InstanceIndex to, bool all_in_one) {
    if (op.pieces == 1 || !all_in_one) return;
    Covered& all = covered_[to];
    if (!op.writes.empty())
      all = {op.pieces, {}};
    else if (holds_[to] != Holds::kPartialSlices)
      fault(kReducedTwice, "adds a piece to the complete", to);
    if (!all.steps.insert(op.piece).second)
      fault(kReducedTwice, "adds a piece that is there already to", to);
    holds_[to] = as_int(all.steps.size()) == all.blocks ? Holds::kWhole : Holds::kPartialSlices;
  }
  /// Of a product: its result is of all pieces unless its tokens are the piece's.
  void piece_of_product(const Op& op, const SegmentShape& shape) {
    const std::vector<BufferRef>& made = op.writes.empty() ? op.updates : op.writes;
    if (made.empty()) return;  // only gradients
    const bool all_in_one = program_.buffers[made[0].buffer].shape[1] > shape.tokens;
    piece(op, step_.instance_of(at_, made[0]), all_in_one);
  }

  /// Blocks of whole values, whoever has them.
  void redistribution(const Op& op) {
    for (const BufferRef& ref : op.reads) {
      const InstanceIndex from = step_.instance_of(at_, ref);
      if (holds_[from] != Holds::kWhole) fault(kNeverReduced, "uses a partial value of", from);
    }
    mark_writes(op, Holds::kWhole);
  }
  /// A partitioned operator's sum is over the very devices that share it.
  void check_summed_over(const Op& op, InstanceIndex sum) {
    const auto known = summed_over_.find(sum);
    if (known == summed_over_.end()) return;
    if (!program_.groups[op.group].same_ranks(known->second))
      fault(kNeverReduced, "sums over other devices than those that share", sum);
    summed_over_.erase(known);
  }

  void collective(const Op& op) {
    if (op.redistribution) return redistribution(op);
    const bool in_place = op.updates.size() == 1 && op.reads.empty();
    const std::vector<BufferRef>& made = op.writes.empty() ? op.updates : op.writes;
    // check_operands says so
    if (!in_place && (op.reads.size() != 1 || made.size() != 1)) return;
    const InstanceIndex from = step_.instance_of(at_, in_place ? op.updates[0] : op.reads[0]);
    const InstanceIndex to = in_place ? from : step_.instance_of(at_, made[0]);
    const Holds had = holds_[from];
    // Gradients have their own algebra.
    if (program_.buffers[step_.instances[from].buffer].category == BufferCategory::kGradient)
      return;
    if (op.collective == Collective::kAllToAll) return all_to_all(op, from, to);
    if (op.pieces == 1 || op.collective != Collective::kReduceScatter) holds_[to] = Holds::kWhole;
    piece(op, to, op.collective == Collective::kReduceScatter);
    const bool reduces =
        op.collective == Collective::kAllReduce || op.collective == Collective::kReduceScatter;
    const Holds wanted = reduces
                             ? (op.reduce == Reduce::kMax ? Holds::kPartialMax : Holds::kPartialSum)
                             : Holds::kWhole;
    if (reduces) check_summed_over(op, from);
    if (had == wanted || (had == Holds::kSlices && op.collective == Collective::kAllGather)) return;
    if (program_.groups[op.group].size == 1) return;
    if (had == Holds::kWhole)
      fault(kReducedTwice, "reduces the whole value of", from);
    else
      fault(kNeverReduced, "does not complete the partial value of", from);
  }

  void loss(const Op& op, bool forward) {
    has_loss_ = true;
    if (!forward) return;
    const std::int32_t m = step_.ops[at_].micro_batch;
    if (m >= 0 && m < program_.micro_batches) ++losses_[as_index(m)];
    if (op.updates.empty()) return;
    const InstanceIndex instance = step_.instance_of(at_, op.updates[0]);
    if (std::ranges::find(zeroed_, instance) != zeroed_.end()) return;
    fault(kContributionRepeated, "adds to the last step's", instance);
    zeroed_.push_back(instance);
  }

  void check_losses() {
    if (!has_loss_) return;
    for (std::size_t m = 0; m < losses_.size(); ++m) {
      if (losses_[m] == 1) continue;
      faults_.add(losses_[m] == 0 ? kContributionMissing : kContributionRepeated,
                  step_.rank_class->stage, at_, "micro-batch {} adds {} times to the loss", m,
                  losses_[m]);
    }
  }

  const ClassStep& step_;
  const Program& program_;
  FaultList& faults_;
  std::vector<Holds> holds_;
  struct Covered {
    int blocks = 0;
    std::set<int> steps;
  };
  // attention outputs over some of their keys, products over some of their slices
  std::map<InstanceIndex, Covered> covered_;
  std::map<InstanceIndex, Group> summed_over_;  // partial sums of partitioned operators
  std::vector<Place> away_;
  std::vector<InstanceIndex> zeroed_;
  std::vector<int> losses_;  // by micro-batch
  bool has_loss_ = false;
  std::size_t at_ = 0;
};

}  // namespace

void check_values(const ClassStep& step, FaultList& faults) { Values(step, faults).run(); }

}  // namespace orrery::plan::checker

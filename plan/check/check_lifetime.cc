/// Lifetimes of buffer instances and the order of phases, in issue order.

#include <map>
#include <optional>

#include "plan/check/check_internal.h"

namespace orrery::plan::checker {

namespace {

enum class State : std::uint8_t { kNever, kLive, kFreed };

/// Segments that belong to the forward or backward pass of a layer, rather than to data loading,
/// resharding or updates.
bool is_layer_work(model::SegmentKind kind) {
  switch (kind) {
    case kLoadTokens:
    case kLoadTargets:
    case kSlice:
    case kZeroGradient:
    case kAccumulate:
    case kAdamW: return false;
    case kEmbedding:
    case kPositionAdd:
    case kNorm:
    case kQkv:
    case kAttention:
    case kAttentionSplit:
    case kAttentionBlock:
    case kAttentionMerge:
    case kProjection:
    case kResidual:
    case kMlpIn:
    case kActivation:
    case kMlpOut:
    case kLogits:
    case kLossMax:
    case kLossSum:
    case kLoss:
    case kRouter:
    case kDispatch:
    case kExpertIn:
    case kExpertOut:
    case kCombine:
    case kPatchProduct:
    case kBias:
    case kNormSums:
    case kNormApply:
    case kScores:
    case kSoftmax:
    case kValues:
    case kHeadNorm:
    case kLatentAttention:
    case kScan:
    case kLatentProduct:
    case kAdapterIn:
    case kAdapterOut:
    case kPool: break;
  }
  return true;
}

}  // namespace

void check_lifetimes(const ClassStep& step, FaultList& faults) {
  const int stage = step.rank_class->stage;
  std::vector<State> state(step.instances.size(), State::kNever);
  std::vector<std::size_t> written(step.instances.size(), 0);
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (step.persistent[i]) state[i] = State::kLive;
  }
  for (std::size_t op = 0; op < step.ops.size(); ++op) {
    for (const Access& a : step.accesses_of(op)) {
      State& s = state[a.instance];
      const auto fault = [&](FaultKind kind, std::string_view what) {
        faults.add(kind, stage, op, "{} {} {}", step.describe(op), what,
                   step.describe_instance(a.instance));
      };
      const bool copies = step.ops[op].op->kind == OpKind::kCopy;
      if (!copies && step.program->buffers[step.instances[a.instance].buffer].on_host())
        fault(kOperandMismatch, "works on, in the host's memory,");
      switch (a.kind) {
        case AccessKind::kRead:
        case AccessKind::kUpdate:
          if (s == State::kNever) fault(kReadBeforeWrite, "uses, before anything wrote it,");
          if (s == State::kFreed) fault(kReadAfterFree, "uses, after it was freed,");
          break;
        case AccessKind::kWrite:
          if (s == State::kLive) fault(kDoubleWrite, "writes, while it is alive,");
          s = State::kLive;
          written[a.instance] = op;
          break;
        case AccessKind::kFree:
          if (s == State::kNever) fault(kDoubleFree, "frees, before anything wrote it,");
          if (s == State::kFreed) fault(kDoubleFree, "frees a second time");
          // The next step would find it gone.
          if (step.persistent[a.instance]) fault(kReadAfterFree, "frees the persistent");
          s = State::kFreed;
          break;
      }
    }
  }
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (state[i] != State::kLive || step.persistent[i]) continue;
    faults.add(kLeak, stage, written[i], "{} writes {}, which nothing frees",
               step.describe(written[i]), step.describe_instance(static_cast<InstanceIndex>(i)));
  }
}

void check_phase_order(const ClassStep& step, FaultList& faults) {
  struct Extent {
    std::optional<std::size_t> last_forward, first_backward;
  };
  std::map<std::pair<std::int32_t, std::int32_t>, Extent> extents;  // by (layer, micro-batch)
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const OpInstance& o = step.ops[i];
    if (o.op->kind != OpKind::kCompute || !o.op->segment.valid()) continue;
    if (!is_layer_work(step.program->segments[o.op->segment].kind)) continue;
    Extent& e = extents[{o.layer, o.micro_batch}];
    if (o.op->phase != kF)
      e.first_backward = e.first_backward.value_or(i);
    else if (!o.op->recomputed)
      e.last_forward = i;
  }
  for (const auto& [key, e] : extents) {
    if (!e.first_backward || (e.last_forward && *e.last_forward < *e.first_backward)) continue;
    faults.add(kBackwardBeforeForward, step.rank_class->stage, *e.first_backward, "{} {}",
               step.describe(*e.first_backward),
               e.last_forward ? "comes before " + step.describe(*e.last_forward)
                              : "is a backward without a forward");
  }
}

}  // namespace orrery::plan::checker

#include "search/loop/targets.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/numbers.h"
#include "base/text.h"
#include "search/loop/merged_answers.h"

namespace orrery::search {
namespace {

using enum plan::GradReduce;

// Beside the last backward, or behind it (no --overlap-grad-reduce).
constexpr std::array kMegatronReductions{Reduction{.when = kStep},
                                         Reduction{.when = kEnd, .by_option = true}};
// DDP, which is refused beside another dimension, sums after every micro-batch; FSDP too, but a
// pipeline reduces behind its last backward (torch/distributed/pipelining/stage.py).
constexpr std::array kTitanReductions{
    Reduction{.when = kStep, .most_zero = 0, .dp = 1},
    Reduction{
        .when = kStep, .most_zero = 0, .pipeline = false, .tensor = false, .micro_batches = 1},
    Reduction{.when = kMicroBatch, .least_zero = 2, .pipeline = false},
    Reduction{.when = kEnd, .least_zero = 2, .single_stage = false}};
// ZeRO-0 and pipelines behind the last backward (runtime/pipe/engine.py), ZeRO-1 beside it.
constexpr std::array kDeepSpeedReductions{
    Reduction{.when = kStep, .most_zero = 0, .dp = 1}, Reduction{.when = kEnd, .most_zero = 1},
    Reduction{.when = kStep, .least_zero = 1, .most_zero = 1, .pipeline = false},
    Reduction{.when = kMicroBatch, .least_zero = 2}};
constexpr std::array kFsdpReductions{Reduction{.when = kStep}};

constexpr std::array kTargets{
    Target{.name = "megatron",
           .space = {.zero2 = false,
                     .zero3 = false,
                     .tensor_overlap = true,
                     .gpipe = false,
                     .zero_bubble = false},
           .reductions = kMegatronReductions,
           .pipeline_zero = 1,
           .tensor_zero = 1,
           .software = "megatron-core",
           .restrictions = "one strategy for all layers, 1F1B and interleaved 1F1B, "
                           "optimizer states sharded or not, experts over data-parallel ranks",
           .source = "github.com/NVIDIA/Megatron-LM, megatron/training/arguments.py: "
                     "--tensor-model-parallel-size, --sequence-parallel, "
                     "--pipeline-model-parallel-size, --num-layers-per-virtual-pipeline-stage, "
                     "--use-distributed-optimizer, --recompute-granularity, "
                     "--tp-comm-overlap, --expert-model-parallel-size, "
                     "--pipeline-model-parallel-layout"},
    Target{.name = "torchtitan",
           .space = {.zero1 = false,
                     .recompute_selective = false,
                     .recompute_operator = true,
                     .tensor_overlap = true,
                     .zero_bubble = false,
                     .expert = false,
                     .tensor_alone = false},
           .reductions = kTitanReductions,
           .tied_pipeline = false,
           .software = "pytorch-cudnn",
           .restrictions = "one strategy for all layers, tensor parallelism always with sequence "
                           "parallelism, FSDP with or without resharding",
           .source =
               "github.com/pytorch/torchtitan, README and docs/fsdp.md: FSDP2 "
               "(reshard_after_forward), tensor parallelism with "
               "SequenceParallel, activation checkpointing none, selective by operator, full; "
               "pytorch.org/docs/stable/distributed.pipelining.html: ScheduleGPipe, "
               "Schedule1F1B, ScheduleInterleaved1F1B"},
    Target{
        .name = "deepspeed",
        .space = {.tensor = false,
                  .recompute_selective = false,
                  .gpipe = false,
                  .interleaved = false,
                  .zero_bubble = false,
                  .expert = false,
                  .even_stages = true},
        .reductions = kDeepSpeedReductions,
        .pipeline_zero = 1,
        .software = "pytorch-eager",
        .restrictions = "ZeRO 0 to 3, pipelines with ZeRO 0 or 1 only, full recomputation",
        .source =
            "github.com/deepspeedai/DeepSpeed, deepspeed/runtime/pipe/engine.py: ZeRO-2 and ZeRO-3 "
            "are incompatible with pipeline "
            "parallelism; its pipeline schedule is 1F1B (runtime/pipe/schedule.py, TrainSchedule)"},
    Target{
        .name = "fsdp",
        .space = {.zero1 = false,
                  .tensor = false,
                  .pipeline = false,
                  .recompute_selective = false,
                  .expert = false,
                  .even_stages = true},
        .reductions = kFsdpReductions,
        .software = "pytorch-eager",
        .restrictions =
            "data parallelism only: NO_SHARD, SHARD_GRAD_OP, FULL_SHARD; full recomputation",
        .source =
            "pytorch.org/docs/stable/fsdp.html: ShardingStrategy, no_sync; torch.utils.checkpoint"},
};

/// One strategy of all layers.
struct Choice {
  int tp = 1, zero = 0;
  bool sequence_parallel = false;
  plan::Recompute recompute = plan::Recompute::kNone;
  Reduction reduction = {};
  int ep = 1;           // of blocks with experts
  bool folded = false;  // the same
};

bool space_allows(const Space& space, const Choice& c) {
  const bool zero[] = {space.data, space.zero1, space.zero2, space.zero3};
  if (c.tp > 1 && !space.tensor) return false;
  if (space.fix_tp && *space.fix_tp != c.tp) return false;
  if ((c.ep > 1 || c.folded) && !space.expert) return false;
  if (c.folded && !space.folding) return false;
  if (space.fix_ep.value_or(c.ep) != c.ep) return false;
  if (c.tp > 1 && !(c.sequence_parallel ? space.sequence_parallel : space.tensor_alone))
    return false;
  return zero[c.zero] && space.*kRecomputeFlags[as_index(c.recompute)];
}

/// Whether the request leaves this way open: it names one, or none.
bool space_allows(const Space& space, const Reduction& r) {
  const bool named[] = {space.reduce_per_step, space.reduce_per_micro_batch, space.reduce_at_end};
  const bool none = space.reduce_per_step && space.reduce_per_micro_batch && !space.reduce_at_end;
  const bool same_dp = !r.dp || space.fix_dp.value_or(*r.dp) == *r.dp;
  const bool same_m =
      !r.micro_batches || space.fix_micro_batches.value_or(*r.micro_batches) == *r.micro_batches;
  return same_dp && same_m && (none ? !r.by_option : named[as_index(r.when)]);
}

bool target_allows(const Target& t, const Choice& c) {
  return space_allows(t.space, c) && (c.tp == 1 || c.zero <= t.tensor_zero);
}

/// Degrees that share the experts of every block which has some; 1 alone without any.
std::vector<int> expert_degrees(const model::ModelSpec& model, int devices) {
  std::vector<int> degrees{1};
  for (int ep = 2; ep <= devices; ep *= 2) {
    bool some = false, all = true;
    for (int kind = 0; kind < model.kinds(); ++kind) {
      const std::int64_t experts = model.of_kind(kind).experts;
      some = some || experts > 0;
      all = all && experts % ep == 0;
    }
    if (some && all) degrees.push_back(ep);
  }
  return degrees;
}

/// Every strategy without a choice that means nothing (sequence parallelism at tp 1, reduction of
/// replicated gradients), with each degree of its experts.
std::vector<Choice> choices(const Target& target, const Space& space, const model::ModelSpec& model,
                            int devices) {
  std::vector<Choice> all;
  const auto add = [&](Choice c) {
    for (const int ep : expert_degrees(model, devices)) {
      c.ep = ep;
      for (const bool folded : {false, true}) {
        c.folded = folded;
        const bool has = !folded || (ep > 1 && c.tp > 1 && c.sequence_parallel);
        if (has && space_allows(space, c) && target_allows(target, c)) all.push_back(c);
      }
    }
  };
  for (int tp = 1; tp <= devices && (space.idle || devices % tp == 0); tp *= 2) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (const bool sp : {false, true}) {
        for (const auto recompute : {plan::Recompute::kNone, plan::Recompute::kSelective,
                                     plan::Recompute::kOperator, plan::Recompute::kFull}) {
          for (const Reduction& r : target.reductions) {
            const bool has = zero >= r.least_zero && zero <= r.most_zero;
            if (has && space_allows(space, r) && (tp == 1 ? !sp : r.tensor))
              add({tp, zero, sp, recompute, r});
          }
        }
      }
    }
  }
  return all;
}

Space space_of(const Target& t, const model::ModelSpec& model, Space space, const Choice& c) {
  space.data = c.zero == 0;
  space.zero1 = c.zero == 1;
  space.zero2 = c.zero == 2;
  space.zero3 = c.zero == 3;
  space.fix_tp = c.tp;
  space.expert = c.ep > 1;
  space.folding = c.folded;
  space.unfolded = !c.folded;
  if (c.ep > 1) space.fix_ep = c.ep;
  space.tensor = c.tp > 1;
  space.sequence_parallel = c.sequence_parallel;
  space.tensor_alone = !c.sequence_parallel;
  for (std::size_t i = 0; i < kRecomputeFlags.size(); ++i)
    space.*kRecomputeFlags[i] = i == as_index(c.recompute);
  space.reduce_per_step = c.reduction.when == kStep;
  space.reduce_per_micro_batch = c.reduction.when == kMicroBatch;
  space.reduce_at_end = c.reduction.when == kEnd;
  if (c.reduction.dp) space.fix_dp = c.reduction.dp;
  if (c.reduction.micro_batches) space.fix_micro_batches = c.reduction.micro_batches;
  space.single_stage = space.single_stage && c.reduction.single_stage;
  space.states_on_host = space.states_on_host && t.space.states_on_host;
  space.tensor_overlap = space.tensor_overlap && t.space.tensor_overlap;
  space.pipeline = space.pipeline && t.space.pipeline && c.reduction.pipeline &&
                   c.zero <= t.pipeline_zero && (t.tied_pipeline || !model.tied_embeddings);
  space.gpipe = space.gpipe && t.space.gpipe;
  space.interleaved = space.interleaved && t.space.interleaved;
  space.zero_bubble = space.zero_bubble && t.space.zero_bubble;
  space.zero_bubble_v = space.zero_bubble_v && t.space.zero_bubble_v;
  space.dual_pipe_v = space.dual_pipe_v && t.space.dual_pipe_v;
  space.ring = space.ulysses = space.hybrid = space.strided = space.operators = space.slices =
      false;
  space.vocabulary_like_layers = true;
  space.even_stages = space.even_stages || t.space.even_stages;
  return space;
}

}  // namespace

std::vector<Target> targets() { return {kTargets.begin(), kTargets.end()}; }

base::Result<Target> find_target(std::string_view name) {
  std::vector<std::string> names;
  for (const Target& t : kTargets) {
    if (t.name == name) return t;
    names.emplace_back(t.name);
  }
  base::Diagnostic d = base::make_error(base::ErrorCode::kBadValue, "unknown target '{}'", name);
  d.hint = base::did_you_mean(name, names, "targets");
  return base::fail(std::move(d));
}

base::Result<PlanAnswer> find_plan_for(const Target& target, const costmodel::CostModel& cost,
                                       const PlanRequest& request) {
  std::vector<Choice> all =
      choices(target, request.space, cost.model(), as_int(cost.topology().device_count()));
  if (!request.space.states_on_device && !target.space.states_on_host) all.clear();
  PlanAnswer answer;
  PlanRequest one = request;
  one.relax = false;
  one.top = 1;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  const Choice* smallest = nullptr;
  for (const Choice& c : all) {
    one.space = space_of(target, cost.model(), request.space, c);
    TRY(PlanAnswer part, find_plan(cost, one));
    if (part.status == Status::kInfeasible) {
      answer.certificate.memory_limit_bytes = part.certificate.memory_limit_bytes;
      answer.certificate.cost_model_fingerprint = part.certificate.cost_model_fingerprint;
      if (part.shortfall_bytes > 0 && part.shortfall_bytes < least) {
        least = part.shortfall_bytes;
        smallest = &c;
      }
    }
    merge_answer(std::move(part), answer);
    one.known = known_of(answer, request.known);
  }
  if (answer.status == Status::kInfeasible && smallest != nullptr) {
    answer.shortfall_bytes = least;
    one.relax = request.relax;
    one.space = space_of(target, cost.model(), request.space, *smallest);
    TRY(PlanAnswer relaxed, find_plan(cost, one));
    answer.relaxations = std::move(relaxed.relaxations);
  }
  if (all.empty())
    answer.pruned.push_back(
        {std::string(target.name), "the space has no strategy that this target can run"});
  order_answer(answer, request.top);
  return answer;
}

}  // namespace orrery::search

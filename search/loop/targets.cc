#include "search/loop/targets.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/numbers.h"
#include "base/text.h"

namespace orrery::search {
namespace {

constexpr std::array kTargets{
    Target{.name = "megatron",
           .space = {.zero2 = false,
                     .zero3 = false,
                     .tensor_overlap = true,
                     .gpipe = false,
                     .zero_bubble = false,
                     .reduce_per_micro_batch = false,
                     .reduce_at_end = true},
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
                     .expert = false,
                     .tensor_alone = false},
           .software = "pytorch-cudnn",
           .restrictions = "one strategy for all layers, tensor parallelism always with sequence "
                           "parallelism, FSDP with or without resharding",
           .source =
               "github.com/pytorch/torchtitan, README and docs/fsdp.md: FSDP2 "
               "(reshard_after_forward), tensor parallelism with "
               "SequenceParallel, activation checkpointing none, selective by operator, full; "
               "pytorch.org/docs/stable/distributed.pipelining.html: ScheduleGPipe, "
               "Schedule1F1B, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble"},
    Target{
        .name = "deepspeed",
        .space = {.tensor = false,
                  .recompute_selective = false,
                  .gpipe = false,
                  .interleaved = false,
                  .zero_bubble = false,
                  .expert = false,
                  .reduce_per_step = false,
                  .reduce_at_end = true},
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
  plan::GradReduce grad_reduce = plan::GradReduce::kStep;
  int ep = 1;  // of blocks with experts
};

bool space_allows(const Space& space, const Choice& c) {
  const bool zero[] = {space.data, space.zero1, space.zero2, space.zero3};
  if (c.tp > 1 && !space.tensor) return false;
  if (space.fix_tp && *space.fix_tp != c.tp) return false;
  if (c.ep > 1 && !space.expert) return false;
  if (space.fix_ep.value_or(c.ep) != c.ep) return false;
  if (c.tp > 1 && !(c.sequence_parallel ? space.sequence_parallel : space.tensor_alone))
    return false;
  const bool when[] = {space.reduce_per_step || (c.zero < 2 && space.reduce_per_micro_batch),
                       space.reduce_per_micro_batch && c.zero >= 2, space.reduce_at_end};
  return when[as_index(c.grad_reduce)] && zero[c.zero] &&
         space.*kRecomputeFlags[as_index(c.recompute)];
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
      if (space_allows(space, c) && target_allows(target, c)) all.push_back(c);
    }
  };
  for (int tp = 1; tp <= devices && (space.idle || devices % tp == 0); tp *= 2) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (const bool sp : {false, true}) {
        for (const auto recompute : {plan::Recompute::kNone, plan::Recompute::kSelective,
                                     plan::Recompute::kOperator, plan::Recompute::kFull}) {
          for (const auto reduce :
               {plan::GradReduce::kStep, plan::GradReduce::kMicroBatch, plan::GradReduce::kEnd}) {
            if (!sp || tp > 1) add({tp, zero, sp, recompute, reduce});
          }
        }
      }
    }
  }
  return all;
}

Space space_of(const Target& t, Space space, const Choice& c) {
  space.data = c.zero == 0;
  space.zero1 = c.zero == 1;
  space.zero2 = c.zero == 2;
  space.zero3 = c.zero == 3;
  space.fix_tp = c.tp;
  space.expert = c.ep > 1;
  if (c.ep > 1) space.fix_ep = c.ep;
  space.tensor = c.tp > 1;
  space.sequence_parallel = c.sequence_parallel;
  space.tensor_alone = !c.sequence_parallel;
  for (std::size_t i = 0; i < kRecomputeFlags.size(); ++i)
    space.*kRecomputeFlags[i] = i == as_index(c.recompute);
  space.reduce_per_step = c.grad_reduce == plan::GradReduce::kStep;
  space.reduce_per_micro_batch = c.grad_reduce == plan::GradReduce::kMicroBatch;
  space.reduce_at_end = c.grad_reduce == plan::GradReduce::kEnd;
  space.tensor_overlap = space.tensor_overlap && t.space.tensor_overlap;
  space.pipeline = space.pipeline && t.space.pipeline && c.zero <= t.pipeline_zero;
  space.gpipe = space.gpipe && t.space.gpipe;
  space.interleaved = space.interleaved && t.space.interleaved;
  space.zero_bubble = space.zero_bubble && t.space.zero_bubble;
  space.ring = space.ulysses = space.hybrid = space.strided = space.operators = space.slices =
      false;
  space.vocabulary_like_layers = true;
  space.even_stages = space.even_stages || t.space.even_stages;
  return space;
}

/// Folds the plans of one strategy into those of all.
void merge_plans(PlanAnswer part, PlanAnswer& all) {
  all.states += part.states;
  all.problems += part.problems;
  for (Pruned& p : part.pruned) all.pruned.push_back(std::move(p));
  if (part.status == Status::kInfeasible) return;
  const bool first = all.status == Status::kInfeasible;
  const std::int64_t bound = first ? part.certificate.bound_ps
                                   : std::min(all.certificate.bound_ps, part.certificate.bound_ps);
  const bool open = part.status == Status::kBudget || (!first && all.status == Status::kBudget);
  if (!part.candidates.empty() &&
      (all.candidates.empty() || part.certificate.cost_ps < all.certificate.cost_ps)) {
    all.certificate = part.certificate;
  }
  all.certificate.bound_ps = bound;
  all.status = open ? Status::kBudget : Status::kOptimal;
  for (RunnerUp& r : part.runners_up) all.runners_up.push_back(std::move(r));
  for (Candidate& c : part.candidates) {
    // Strategies that differ only where a plan has no choice (one micro-batch reduces once either
    // way) give one plan.
    if (std::ranges::find(all.candidates, c.plan, &Candidate::plan) == all.candidates.end())
      all.candidates.push_back(std::move(c));
  }
}

/// Folds the answer of one strategy into that of all: what bounds them all stands for every one.
void merge(PlanAnswer part, PlanAnswer& all) {
  std::vector<SpaceProof> proofs = std::move(all.certificate.proofs);
  const std::int64_t multiplier_bound =
      proofs.empty()
          ? part.certificate.multiplier_bound_ps
          : std::min(all.certificate.multiplier_bound_ps, part.certificate.multiplier_bound_ps);
  proofs.insert(proofs.end(), part.certificate.proofs.begin(), part.certificate.proofs.end());
  merge_plans(std::move(part), all);
  all.certificate.proofs = std::move(proofs);
  all.certificate.multiplier_bound_ps = multiplier_bound;
}

/// A few, and the one that the certificate speaks of.
void keep_runners_up(PlanAnswer& answer) {
  constexpr std::size_t kKept = 7;
  std::vector<RunnerUp>& r = answer.runners_up;
  if (r.size() <= kKept) return;
  const auto cheapest = std::ranges::find(r, answer.certificate.cost_ps, &RunnerUp::closed_form_ps);
  if (cheapest != r.end() && cheapest - r.begin() >= static_cast<std::ptrdiff_t>(kKept))
    r[kKept - 1] = *cheapest;
  r.resize(kKept);
}

void order(PlanAnswer& answer, int top) {
  std::vector<Candidate>& c = answer.candidates;
  std::ranges::stable_sort(c, {}, &Candidate::closed_form_ps);
  for (std::size_t i = 0; i < c.size(); ++i) {
    for (std::size_t j = i + 1; j < c.size(); ++j) {
      const bool dearer = c[i].closed_form_ps < c[j].closed_form_ps;
      if (dearer && c[i].report.step_time_ps > c[j].report.step_time_ps) ++answer.order_changes;
    }
  }
  const Candidate cheapest = c.empty() ? Candidate{} : c.front();
  std::ranges::stable_sort(c, {}, [](const Candidate& x) { return x.report.step_time_ps; });
  if (c.size() > as_index(top)) {
    c.resize(as_index(top));
    if (std::ranges::find(c, cheapest.plan, &Candidate::plan) == c.end()) c.push_back(cheapest);
  }
  std::ranges::stable_sort(answer.runners_up, {}, &RunnerUp::expected_ps);
  keep_runners_up(answer);
  Certificate& k = answer.certificate;
  if (!c.empty()) k.gap = real(k.cost_ps - k.bound_ps) / real(k.cost_ps);
  k.multiplier_bound_ps =
      c.empty() ? k.multiplier_bound_ps : std::min(k.multiplier_bound_ps, k.cost_ps);
  if (!c.empty()) k.multiplier_gap = real(k.cost_ps - k.multiplier_bound_ps) / real(k.cost_ps);
  if (!c.empty() && answer.status == Status::kOptimal && k.bound_ps < k.cost_ps)
    answer.status = Status::kBudget;
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
  const std::vector<Choice> all =
      choices(target, request.space, cost.model(), as_int(cost.topology().device_count()));
  PlanAnswer answer;
  PlanRequest one = request;
  one.relax = false;
  one.top = 1;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  const Choice* smallest = nullptr;
  for (const Choice& c : all) {
    one.space = space_of(target, request.space, c);
    TRY(PlanAnswer part, find_plan(cost, one));
    if (part.status == Status::kInfeasible) {
      answer.certificate.memory_limit_bytes = part.certificate.memory_limit_bytes;
      answer.certificate.cost_model_fingerprint = part.certificate.cost_model_fingerprint;
      if (part.shortfall_bytes > 0 && part.shortfall_bytes < least) {
        least = part.shortfall_bytes;
        smallest = &c;
      }
    }
    merge(std::move(part), answer);
  }
  if (answer.status == Status::kInfeasible && smallest != nullptr) {
    answer.shortfall_bytes = least;
    one.relax = request.relax;
    one.space = space_of(target, request.space, *smallest);
    TRY(PlanAnswer relaxed, find_plan(cost, one));
    answer.relaxations = std::move(relaxed.relaxations);
  }
  if (all.empty())
    answer.pruned.push_back(
        {std::string(target.name), "the space has no strategy that this target can run"});
  order(answer, request.top);
  return answer;
}

}  // namespace orrery::search

#include "search/loop/families.h"

#include <algorithm>
#include <bit>

#include "base/numbers.h"

namespace orrery::search {
namespace {

/// Tensor and context parallel degrees are powers of two: what is left of a stage's devices
/// divides the micro-batch.
int odd_part(int devices) { return devices >> std::countr_zero(static_cast<unsigned>(devices)); }

}  // namespace

Refusal refuse_stages(const model::ModelSpec& model, const Space& space, int stages) {
  if (space.fix_pp && *space.fix_pp != stages)
    return {Reason::kFixed, fmt::format("pp is fixed to {}", *space.fix_pp)};
  if (stages > 1 && !space.pipeline) return {Reason::kOff, "pipelines are off"};
  if (stages == 1 && !space.single_stage) return {Reason::kOff, "a single stage is off"};
  if (space.even_stages && model.layers % stages != 0) {
    return {Reason::kDoesNotDivide,
            fmt::format("{} layers do not make {} equal stages", model.layers, stages)};
  }
  if (stages > model.layers)
    return {Reason::kDoesNotDivide, fmt::format("more stages than {} layers", model.layers)};
  return {};
}

double seconds_at_peak(const costmodel::CostModel& cost, std::int64_t global_batch) {
  const double flops =
      real(global_batch) * cost.model().training_matmul_flops(cost.options().sequence);
  return flops / (cost.peak().raw() * real(cost.topology().device_count()));
}

Families::Families(const costmodel::CostModel& cost, const PlanRequest& request, Solvers& solvers)
    : cost_(cost),
      request_(request),
      solvers_(solvers),
      seconds_of_one_(seconds_at_peak(cost, request.global_batch) * cluster_devices()) {
  const Space& space = request.space;
  for (std::int64_t m = 1; m <= request.global_batch; ++m) {
    if (request.global_batch % m == 0 && space.fix_micro_batches.value_or(m) == m)
      micro_batches_.push_back(m);
  }
  if (space.one_f_one_b)
    schedules_.push_back(plan::Schedule::k1F1B);
  else if (space.gpipe)
    schedules_.push_back(plan::Schedule::kGPipe);
  if (space.interleaved) schedules_.push_back(plan::Schedule::kInterleaved);
  if (space.zero_bubble) schedules_.push_back(plan::Schedule::kZeroBubbleH1);
}

int Families::cluster_devices() const { return as_int(cost_.topology().device_count()); }

bool Families::has_vocabularies(const PlanProblem& family) {
  return !solvers_.stages().vocabulary_of(family.devices, family.micro_batches).leaves.empty();
}

std::vector<PlanProblem> Families::on_all_devices(std::vector<Pruned>& pruned) {
  std::vector<PlanProblem> all;
  if (request_.space.zero_bubble && cost_.model().kinds() > 1)
    pruned.push_back({"zb-h1", "not searched for models with blocks of several kinds"});
  if (request_.space.interleaved && cost_.model().encoder_decoder())
    pruned.push_back(
        {"interleaved", "the encoder's output stays on a stage until its backward ends"});
  for (int stages = 1; stages <= cluster_devices(); ++stages) {
    if (cluster_devices() % stages != 0) continue;
    if (const Refusal why = refuse_stages(cost_.model(), request_.space, stages); why.refused())
      pruned.push_back({fmt::format("pp={}", stages), why.text, why.reason});
    else
      add_stages(stages, all, pruned);
  }
  return all;
}

bool Families::too_long(int stages, int devices, std::int64_t micro_batches) const {
  const std::int64_t at_once = std::min<std::int64_t>(stages, micro_batches);
  return seconds_of_one_ > kLongestAtPeak * devices * real(at_once);
}

std::int64_t Families::at_peak_ps(int devices) const {
  constexpr double kFormat = 4, kFrozen = 1.5, kMasked = 2;  // of what the count leaves in
  const double seconds = seconds_of_one_ / devices / (kFormat * kFrozen * kMasked);
  return seconds < 1e6 ? static_cast<std::int64_t>(seconds * 1e12) : kForbidden;
}

void Families::add_stages(int stages, std::vector<PlanProblem>& all, std::vector<Pruned>& pruned) {
  const int devices = cluster_devices() / stages;
  StageModel& model = solvers_.stages();
  for (const std::int64_t m : micro_batches_) {
    const std::string name = fmt::format("pp={} m={}", stages, m);
    const auto explain = [&](const StrategyTree& tree) {
      for (const Pruned& p : tree.pruned)
        pruned.push_back({name + " " + p.candidate, p.text, p.reason});
    };
    for (int k = 0; k < cost_.model().kinds(); ++k) explain(model.layers_of(devices, m, k));
    const PlanProblem any{stages, devices, 0, m, plan::Schedule::k1F1B, {}};
    if (!model.has_strategies(any)) {
      pruned.push_back({name, "no strategy for a layer"});
      continue;
    }
    if (too_long(stages, devices, m)) {
      pruned.push_back({name, "a step takes weeks"});
      continue;
    }
    if (request_.space.gpipe && request_.space.one_f_one_b) {
      pruned.push_back(
          {fmt::format("{} {}", name, plan::to_string(plan::Schedule::kGPipe)),
           "never a shorter closed form than 1f1b, and never fewer micro-batches in flight"});
    }
    explain(model.vocabulary_of(devices, m));
    for (const plan::Schedule schedule : schedules_) {
      const PlanProblem family{stages, devices, 0, m, schedule, {}};
      if (solvers_.of(family).covers(family) && has_vocabularies(family)) all.push_back(family);
    }
  }
}

std::vector<PlanProblem> Families::with_idle_devices(std::int64_t incumbent_ps,
                                                     std::vector<Pruned>& pruned) {
  std::vector<PlanProblem> all;
  const std::int64_t most =
      request_.space.pipeline ? std::min<std::int64_t>(cluster_devices(), cost_.model().layers) : 1;
  for (int stages = 1; stages <= most; ++stages) {
    if (refuse_stages(cost_.model(), request_.space, stages).refused()) continue;
    std::int64_t least = kForbidden;
    for (int devices = 1; stages * devices < cluster_devices(); ++devices) {
      if (request_.global_batch % odd_part(devices) != 0) continue;
      if (const std::int64_t bound = at_peak_ps(stages * devices); bound >= incumbent_ps) {
        least = std::min(least, bound);
        continue;
      }
      for (const std::int64_t m : micro_batches_) {
        if (request_.global_batch / m % odd_part(devices) != 0) continue;
        if (too_long(stages, devices, m)) continue;
        for (const plan::Schedule schedule : schedules_) {
          const PlanProblem family{stages, devices,  cluster_devices() - stages * devices,
                                   m,      schedule, {}};
          if (!solvers_.of(family).covers(family)) continue;
          const std::int64_t bound = solvers_.stages().layers_bound(family, true);
          if (bound >= incumbent_ps)
            least = std::min(least, bound);
          else if (has_vocabularies(family))
            all.push_back(family);
        }
      }
    }
    if (least < kForbidden)
      pruned.push_back(
          {fmt::format("pp={} with idle devices", stages),
           fmt::format("bound {} ≥ incumbent {}", seconds(least), seconds(incumbent_ps))});
  }
  return all;
}

}  // namespace orrery::search

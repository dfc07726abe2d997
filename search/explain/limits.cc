#include "search/explain/limits.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::search {
namespace {

using sim::TimePart;

constexpr std::int64_t kFaster = 1'100'000;

std::size_t index(TimePart part) { return as_index(part); }

bool communicates(std::size_t part) {
  return part >= index(TimePart::kTensor) && part < index(TimePart::kBubble);
}

void add_memory(const SimulatedPlan& simulated, std::int64_t limit_bytes, Limits& limits) {
  limits.fullest_stage = simulated.fullest_stage();
  limits.peak_bytes = simulated.peak_bytes();
  limits.limit_bytes = limit_bytes;
  const auto& categories = simulated.report.stages[as_index(limits.fullest_stage)].memory_at_peak;
  const auto most = std::ranges::max_element(categories);
  limits.fullest_category = static_cast<plan::BufferCategory>(most - categories.begin());
  limits.category_bytes = *most;
}

void add_time(const SimulatedPlan& simulated, Limits& limits) {
  const Parts& parts = simulated.parts();
  std::size_t dearest = index(TimePart::kTensor);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i == index(TimePart::kBubble))
      limits.bubble_ps += parts[i];
    else if (communicates(i))
      limits.communication_ps += parts[i];
    else
      limits.compute_ps += parts[i];
    if (communicates(i) && parts[i] > parts[dearest]) dearest = i;
  }
  limits.dearest_communication = static_cast<TimePart>(dearest);
  std::int64_t waiting = 0;
  for (const sim::StageReport& s : simulated.report.stages)
    waiting += s.parts[index(TimePart::kBubble)];
  limits.mean_work_ps =
      simulated.step_ps() - waiting / static_cast<std::int64_t>(simulated.report.stages.size());
}

base::Result<void> add_links(const costmodel::CostModel& cost, const SimulatedPlan& simulated,
                             Limits& limits) {
  using Carrier = costmodel::SpeedScale::Carrier;
  std::set<std::string> kinds;
  for (const topologies::Link& link : cost.topology().links()) kinds.insert(link.kind);
  std::vector<std::pair<std::string, Carrier>> carriers;
  for (const std::string& kind : kinds) {
    carriers.emplace_back(kind, Carrier::kLinksOfKind);
  }
  if (cost.communication_origin() == costmodel::Origin::kMeasured) {
    carriers.emplace_back("intra-host links (measured)", Carrier::kMeasuredInHosts);
    carriers.emplace_back("inter-host links (measured)", Carrier::kMeasuredAcrossHosts);
  }
  for (const auto& [name, carrier] : carriers) {
    const costmodel::SpeedScale scale{
        .bandwidth_ppm = kFaster, .bandwidth_of = carrier, .link_kind = name};
    TRY(const SimulatedPlan faster, simulate_plan(cost.scaled(scale), simulated.plan));
    limits.links.push_back({name, simulated.step_ps() - faster.step_ps()});
  }
  std::ranges::stable_sort(limits.links, std::greater<>(), &LinkEffect::saved_ps);
  return {};
}

// ---- ways to fit ----

/// At least this recomputation, and this ZeRO of embedding and head too.
plan::Plan raised(plan::Plan plan, plan::Recompute recompute, int zero) {
  const auto raise_zero = [&](plan::LayerStrategy& s) {
    if (s.replicas() == 1 || s.zero >= zero) return;
    s.zero = zero;
    if (zero >= 2) s.grad_reduce = plan::GradReduce::kMicroBatch;
  };
  for (plan::Stage& stage : plan.stages) {
    for (plan::LayerRun& run : stage.runs) {
      run.strategy.recompute = std::max(run.strategy.recompute, recompute);
      raise_zero(run.strategy);
    }
  }
  raise_zero(plan.vocabulary);
  return plan::canonical(std::move(plan));
}

struct Change {
  std::string text;
  plan::Plan plan;
};

std::vector<Change> candidates(const plan::Plan& plan) {
  std::vector<Change> all;
  for (const plan::Recompute to :
       {plan::Recompute::kSelective, plan::Recompute::kOperator, plan::Recompute::kFull})
    all.push_back({fmt::format("recompute={}", plan::to_string(to)), raised(plan, to, 0)});
  for (const int zero : {1, 2, 3})
    all.push_back({fmt::format("zero {}", zero), raised(plan, plan::Recompute::kNone, zero)});
  constexpr int kDoublings = 4;
  for (int i = 1; i <= kDoublings; ++i) {
    plan::Plan finer = plan;
    finer.micro_batches = plan.micro_batches << i;
    if (finer.global_batch % finer.micro_batches == 0)
      all.push_back({fmt::format("{} micro-batches", finer.micro_batches), std::move(finer)});
  }
  all.push_back({"zero 3 and recompute=full", raised(plan, plan::Recompute::kFull, 3)});
  std::erase_if(all, [&](const Change& c) { return c.plan == plan::canonical(plan); });
  return all;
}

}  // namespace

base::Result<Limits> limits_of(const costmodel::CostModel& cost, const SimulatedPlan& simulated,
                               std::int64_t limit_bytes) {
  Limits limits;
  add_memory(simulated, limit_bytes, limits);
  add_time(simulated, limits);
  TRY_VOID(add_links(cost, simulated, limits));
  return limits;
}

TimeBound bound_of(const SimulatedPlan& simulated, double compute, double bandwidth) {
  const double bubble =
      real(simulated.parts()[index(TimePart::kBubble)]) / real(simulated.step_ps());
  compute *= 1 - bubble;
  bandwidth *= 1 - bubble;
  if (bubble > compute && bubble > bandwidth) return TimeBound::kBubble;
  return bandwidth > compute ? TimeBound::kCommunication : TimeBound::kCompute;
}

base::Result<std::vector<Relaxation>> ways_to_fit(const costmodel::CostModel& cost,
                                                  const SimulatedPlan& simulated,
                                                  std::int64_t limit_bytes) {
  ORRERY_CHECK(simulated.peak_bytes() > limit_bytes, "the plan fits {} bytes", limit_bytes);
  const auto gib = [](std::int64_t bytes) {
    return fmt::format("{:.2f} GiB", real(bytes) / (1 << 30));
  };
  std::vector<Relaxation> ways{
      {fmt::format("memory {} → {}", gib(limit_bytes), gib(simulated.peak_bytes())),
       simulated.peak_bytes(), simulated.step_ps()}};
  for (const Change& change : candidates(simulated.plan)) {
    if (!plan::validate(change.plan, cost.model()).empty()) continue;
    TRY(const SimulatedPlan changed, simulate_plan(cost, change.plan));
    if (changed.peak_bytes() <= limit_bytes)
      ways.push_back({change.text, changed.peak_bytes(), changed.step_ps()});
  }
  return ways;
}

}  // namespace orrery::search

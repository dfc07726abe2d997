#include "search/explain/limits.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/check.h"

namespace orrery::search {
namespace {

using sim::TimePart;

constexpr std::int64_t kFaster = 1'100'000;

std::size_t index(TimePart part) { return static_cast<std::size_t>(part); }

bool communicates(std::size_t part) {
  return part >= index(TimePart::kTensor) && part < index(TimePart::kBubble);
}

void add_memory(const Account& account, std::int64_t limit_bytes, Limits& limits) {
  limits.fullest_stage = account.fullest_stage();
  limits.peak_bytes = account.peak_bytes();
  limits.limit_bytes = limit_bytes;
  const auto& categories =
      account.report.stages[static_cast<std::size_t>(limits.fullest_stage)].memory_at_peak;
  const auto most = std::ranges::max_element(categories);
  limits.fullest_category = static_cast<plan::BufferCategory>(most - categories.begin());
  limits.category_bytes = *most;
}

void add_time(const Account& account, Limits& limits) {
  const Parts& parts = account.parts();
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
  for (const sim::StageReport& s : account.report.stages)
    waiting += s.parts[index(TimePart::kBubble)];
  limits.mean_work_ps =
      account.step_ps() - waiting / static_cast<std::int64_t>(account.report.stages.size());
}

base::Result<void> add_links(const costmodel::CostModel& cost, const Account& account,
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
    TRY(const Account faster, account_of(cost.scaled(scale), account.plan));
    limits.links.push_back({name, account.step_ps() - faster.step_ps()});
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
  for (const plan::Recompute to : {plan::Recompute::kSelective, plan::Recompute::kFull})
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

base::Result<Limits> limits_of(const costmodel::CostModel& cost, const Account& account,
                               std::int64_t limit_bytes) {
  Limits limits;
  add_memory(account, limit_bytes, limits);
  add_time(account, limits);
  TRY_VOID(add_links(cost, account, limits));
  return limits;
}

TimeBound bound_of(const Account& account, double compute, double bandwidth) {
  const double bubble = static_cast<double>(account.parts()[index(TimePart::kBubble)]) /
                        static_cast<double>(account.step_ps());
  compute *= 1 - bubble;
  bandwidth *= 1 - bubble;
  if (bubble > compute && bubble > bandwidth) return TimeBound::kBubble;
  return bandwidth > compute ? TimeBound::kCommunication : TimeBound::kCompute;
}

base::Result<std::vector<Relaxation>> ways_to_fit(const costmodel::CostModel& cost,
                                                  const Account& account,
                                                  std::int64_t limit_bytes) {
  ORRERY_CHECK(account.peak_bytes() > limit_bytes, "the plan fits {} bytes", limit_bytes);
  const auto gib = [](std::int64_t bytes) {
    return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
  };
  std::vector<Relaxation> ways{
      {fmt::format("memory {} → {}", gib(limit_bytes), gib(account.peak_bytes())),
       account.peak_bytes(), account.step_ps()}};
  for (const Change& change : candidates(account.plan)) {
    if (!plan::validate(change.plan, cost.model()).empty()) continue;
    TRY(const Account changed, account_of(cost, change.plan));
    if (changed.peak_bytes() <= limit_bytes)
      ways.push_back({change.text, changed.peak_bytes(), changed.step_ps()});
  }
  return ways;
}

}  // namespace orrery::search

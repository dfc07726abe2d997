#include "search/explain/improvements.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/numbers.h"
#include "topologies/topology.h"

namespace orrery::search {
namespace {

constexpr std::int64_t kMillion = 1'000'000, kGiB = std::int64_t{1} << 30;
constexpr std::size_t kRivals = 3;  // known plans that compete on a changed machine

/// Sequences a second of `then` above those of `now`.
std::int64_t gain_ppm(const plan::Plan& now, std::int64_t now_ps, std::int64_t batch,
                      std::int64_t then_ps) {
  const double ratio = real(batch) * real(now_ps) / (real(now.global_batch) * real(then_ps));
  return static_cast<std::int64_t>((ratio - 1) * real(kMillion) + (ratio < 1 ? -0.5 : 0.5));
}

bool recomputes(const plan::Plan& plan) {
  return std::ranges::any_of(runs_of(plan), [](const plan::LayerRun& run) {
    return run.strategy.recompute != plan::Recompute::kNone;
  });
}

/// As many sequences a micro-batch, more of them.
plan::Plan with_batch(plan::Plan plan, std::int64_t times) {
  plan.global_batch *= times;
  plan.micro_batches *= times;
  return plan;
}

class Doubling {
 public:
  Doubling(const costmodel::CostModel& cost, const SimulatedPlan& now, bool kept,
           const PlanRequest& problem, KnownPlans& here)
      : cost_(cost), now_(now), kept_(kept), problem_(problem), here_(here) {}

  base::Result<std::vector<Improvement>> run() {
    TRY_VOID(attempt("computation twice as fast", cost_.scaled({.compute_ppm = 2 * kMillion}),
                     problem_, now_.plan, true));
    TRY_VOID(attempt("links of twice the bandwidth", cost_.scaled({.bandwidth_ppm = 2 * kMillion}),
                     problem_, now_.plan, true));
    PlanRequest roomier = problem_;
    roomier.memory_bytes *= 2;
    TRY_VOID(attempt("devices of twice the memory", cost_, roomier, now_.plan, true));
    PlanRequest larger = problem_;
    larger.global_batch *= 2;
    if (larger.space.fix_micro_batches) *larger.space.fix_micro_batches *= 2;
    TRY_VOID(attempt(fmt::format("twice the global batch ({})", larger.global_batch), cost_, larger,
                     with_batch(now_.plan, 2), false));
    TRY_VOID(more_hosts());
    std::ranges::stable_sort(found_, std::greater<>(), &Improvement::best_gain_ppm);
    return std::move(found_);
  }

 private:
  /// Twice the hosts of a catalog cluster; measured communication says nothing of a larger machine.
  base::Result<void> more_hosts() {
    if (cost_.communication_origin() == costmodel::Origin::kMeasured) return {};
    PlanRequest wider = problem_;
    wider.hosts = as_int(2 * cost_.topology().hosts());
    auto topology = topologies::catalog_topology(problem_.cluster, as_u32(wider.hosts));
    if (!topology) return {};
    const std::string what = fmt::format("twice the hosts ({} devices)", topology->device_count());
    const auto larger = costmodel::CostModel::make(cost_.model(), *std::move(topology),
                                                   cost_.profile(), cost_.options());
    return larger ? attempt(what, *larger, wider, std::nullopt, false) : base::Result<void>{};
  }

  base::Result<void> attempt(std::string what, const costmodel::CostModel& there,
                             PlanRequest problem, const std::optional<plan::Plan>& kept,
                             bool same_work) {
    problem.relax = problem.multipliers = false;
    KnownPlans known(there, problem.memory_bytes, problem.threads);
    TRY(const PlanAnswer answer, find_plan(there, problem));
    known.add(answer.candidates);
    Improvement row{std::move(what), std::nullopt, 0, {}};
    if (kept && plan::validate(*kept, there.model()).empty()) {
      TRY(SimulatedPlan simulated, simulate_plan(there, *kept));
      if (kept_ && simulated.peak_bytes() <= problem.memory_bytes)
        row.kept_gain_ppm = gain(problem, simulated.step_ps());
      known.add(std::move(simulated));
    }
    for (std::size_t i = 0; same_work && i < std::min(kRivals, here_.plans().size()); ++i)
      TRY_VOID(known.add(here_.plans()[i].plan));
    if (known.plans().empty()) return {};
    if (same_work) TRY_VOID(here_.add(known.plans().front().plan));
    row.best_gain_ppm = gain(problem, known.plans().front().step_ps());
    row.best = known.plans().front().plan;
    found_.push_back(std::move(row));
    return {};
  }
  [[nodiscard]] std::int64_t gain(const PlanRequest& problem, std::int64_t ps) const {
    return gain_ppm(now_.plan, now_.step_ps(), problem.global_batch, ps);
  }

  const costmodel::CostModel& cost_;
  const SimulatedPlan& now_;
  bool kept_;
  const PlanRequest& problem_;
  KnownPlans& here_;
  std::vector<Improvement> found_;
};

/// Answers of the search by memory, each asked once.
class Memories {
 public:
  Memories(const costmodel::CostModel& cost, const PlanRequest& problem)
      : cost_(cost), problem_(problem) {
    problem_.relax = problem_.multipliers = false;
  }
  base::Result<const PlanAnswer*> at(std::int64_t gib) {
    const auto known = answers_.find(gib);
    if (known != answers_.end()) return &known->second;
    problem_.memory_bytes = gib * kGiB;
    TRY(PlanAnswer answer, find_plan(cost_, problem_));
    return &answers_.emplace(gib, std::move(answer)).first->second;
  }
  /// The least memory in (low, high] where `test` holds, if it holds at `high` and once true stays
  /// so; else one where it does and a GiB less does not.
  template <class Test>
  base::Result<std::optional<MemoryMark>> least(std::int64_t low, std::int64_t high,
                                                const Test& test) {
    TRY(const PlanAnswer* answer, at(high));
    if (!test(*answer)) return std::nullopt;
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      TRY(answer, at(middle));
      (test(*answer) ? high : low) = middle;
    }
    TRY(answer, at(high));
    return MemoryMark{high * kGiB, simulate_plan(answer->candidates.front())};
  }

 private:
  const costmodel::CostModel& cost_;
  PlanRequest problem_;
  std::map<std::int64_t, PlanAnswer> answers_;
};

}  // namespace

double elasticity(std::int64_t less_ps, std::int64_t more_ps, std::int64_t step_ps) {
  return real(more_ps - less_ps) / (0.2 * real(step_ps));
}

base::Result<TimeBound> bound_on(const costmodel::CostModel& cost,
                                 const costmodel::SpeedScale& scale, const plan::Plan& plan) {
  const auto scaled = [](std::int64_t ppm, std::int64_t tenths) { return ppm / 10 * tenths; };
  const auto step = [&](std::int64_t compute, std::int64_t bandwidth) {
    return simulate_plan(cost.scaled({.compute_ppm = scaled(scale.compute_ppm, compute),
                                      .bandwidth_ppm = scaled(scale.bandwidth_ppm, bandwidth)}),
                         plan);
  };
  TRY(const SimulatedPlan here, step(10, 10));
  TRY(const SimulatedPlan less_compute, step(9, 10));
  TRY(const SimulatedPlan more_compute, step(11, 10));
  TRY(const SimulatedPlan less_bandwidth, step(10, 9));
  TRY(const SimulatedPlan more_bandwidth, step(10, 11));
  return bound_of(here, -elasticity(less_compute.step_ps(), more_compute.step_ps(), here.step_ps()),
                  -elasticity(less_bandwidth.step_ps(), more_bandwidth.step_ps(), here.step_ps()));
}

base::Result<std::vector<Improvement>> improvements_of(const costmodel::CostModel& cost,
                                                       const SimulatedPlan& now, bool kept,
                                                       const PlanRequest& problem,
                                                       KnownPlans& known) {
  return Doubling(cost, now, kept, problem, known).run();
}

base::Result<MemoryMarks> memory_marks(const costmodel::CostModel& cost,
                                       const PlanRequest& problem) {
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 20;  // a PiB a device
  Memories memories(cost, problem);
  TRY(const PlanAnswer* unlimited, memories.at(kUnlimited));
  if (unlimited->candidates.empty()) return MemoryMarks{};
  const std::int64_t most = std::ranges::max(unlimited->certificate.stage_peak_bytes) / kGiB + 1;
  const std::int64_t floor = problem.memory_bytes / kGiB;
  if (most <= floor) return MemoryMarks{};
  const std::int64_t optimum = unlimited->certificate.cost_ps;
  constexpr std::int64_t kThousand = 1000;
  MemoryMarks marks;
  const auto enough = [&](const PlanAnswer& a) {
    return !a.candidates.empty() && (a.certificate.cost_ps - optimum) * kThousand <= optimum;
  };
  const auto stores_all = [](const PlanAnswer& a) {
    return !a.candidates.empty() && !recomputes(a.candidates.front().plan);
  };
  PlanRequest here = problem;
  here.relax = here.multipliers = false;
  TRY(const PlanAnswer today, find_plan(cost, here));
  if (!enough(today)) {
    TRY(marks.enough, memories.least(floor, most, enough));
  }
  if (!stores_all(today)) {
    TRY(marks.no_recomputation, memories.least(floor, most, stores_all));
  }
  return marks;
}

base::Result<std::optional<Release>> release_of(const costmodel::CostModel& cost,
                                                const SimulatedPlan& simulated, TimeBound bound) {
  const auto try_out = [&](std::string what, const costmodel::SpeedScale& scale,
                           const plan::Plan& plan) -> base::Result<std::optional<Release>> {
    TRY(const TimeBound then, bound_on(cost, scale, plan));
    if (then == bound) return std::nullopt;
    TRY(const SimulatedPlan there, simulate_plan(cost.scaled(scale), plan));
    return Release{
        std::move(what),
        gain_ppm(simulated.plan, simulated.step_ps(), plan.global_batch, there.step_ps()), then};
  };
  if (bound == TimeBound::kCommunication) {
    for (const std::int64_t percent : {125, 150, 200, 300, 400, 600, 800, 1200, 1600, 3200}) {
      TRY(auto release, try_out(fmt::format("{:.3g} times the bandwidth", real(percent) / 100),
                                {.bandwidth_ppm = percent * (kMillion / 100)}, simulated.plan));
      if (release) return release;
    }
  }
  if (bound == TimeBound::kBubble) {
    for (const std::int64_t times : {2, 3, 4, 6, 8, 12, 16, 32}) {
      const plan::Plan larger = with_batch(simulated.plan, times);
      if (!plan::validate(larger, cost.model()).empty()) continue;
      TRY(auto release,
          try_out(fmt::format("a global batch of {}", larger.global_batch), {}, larger));
      if (release) return release;
    }
  }
  return std::nullopt;
}

}  // namespace orrery::search

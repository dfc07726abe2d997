#include "search/loop/candidates.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/numbers.h"
#include "base/process.h"
#include "costmodel/energy/power.h"
#include "plan/lowering/lower.h"
#include "plan/program/expand.h"
#include "sim/simulate.h"

namespace orrery::search {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

std::int64_t operations_of(const plan::Program& program) {
  std::int64_t operations = 0;
  for (const plan::RankClass& c : program.classes) operations += plan::op_count(program, c);
  return operations;
}
/// About what simulating it takes.
std::int64_t ticks_of(const plan::Program& program) {
  return std::int64_t{program.world_size} * as_int(program.groups.size()) + operations_of(program);
}

plan::Plan few_micro_batches(plan::Plan plan, std::int64_t a_rank) {
  const std::int64_t few = a_rank * plan.pipeline_degree();
  plan.global_batch = plan.global_batch / plan.micro_batches * few;
  plan.micro_batches = few;
  return plan;
}

/// Micro-batches a pipeline rank of the two shorter steps that stand for a long one.
constexpr std::int64_t kFew = 8, kMore = 16, kLong = 48;
/// Of operations: 1 to 2 s of simulation, more than anyone waits for; and what takes long where
/// several plans are to be compared.
constexpr std::int64_t kMostOperations = 3'000'000, kMostCompared = 300'000;
/// Whether two shorter steps say what it takes: memory does not grow with its micro-batches, and
/// all of it has more than `most` operations.
bool is_long(const plan::Plan& plan, const plan::Program& program,
             std::int64_t most = kMostOperations) {
  return operations_of(program) > most && plan.schedule != plan::Schedule::kGPipe &&
         plan.micro_batches >= kLong * plan.pipeline_degree();
}

/// Of a long step what two shorter ones say.
base::Result<sim::SimReport> report_of(const costmodel::CostModel& cost, const plan::Plan& plan,
                                       const plan::Program& program, bool energy = false,
                                       std::int64_t most = kMostOperations) {
  if (!is_long(plan, program, most)) return sim::simulate(program, cost, {.energy = energy});
  TRY(const plan::Program few, plan::lower(few_micro_batches(plan, kFew), cost.model()));
  TRY(const plan::Program more, plan::lower(few_micro_batches(plan, kMore), cost.model()));
  return sim::extrapolated_report(few, more, cost, plan.micro_batches, energy);
}

base::Result<sim::SimReport> simulate_plan(const costmodel::CostModel& cost, const plan::Plan& plan,
                                           bool energy, std::int64_t most = kMostOperations) {
  TRY(const plan::Program program, plan::lower(plan, cost.model()));
  return report_of(cost, plan, program, energy, most);
}

/// What is drawn above waiting over a simulated timeline, as time; 0 where time is minimised.
std::int64_t drawn_ps(const costmodel::CostModel& cost, const sim::SimReport& report) {
  if (!report.energy) return 0;
  const auto power = costmodel::MachinePower::of(cost.topology());
  const double waiting_watts = power->waiting(cost.topology()).raw();
  return std::llround(report.energy->total() / waiting_watts * 1e12) - report.step_time_ps;
}

int order_changes_of(const std::vector<Candidate>& candidates) {
  int changes = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    for (std::size_t j = i + 1; j < candidates.size(); ++j) {
      const Candidate &a = candidates[i], &b = candidates[j];
      const auto form = a.closed_form_ps <=> b.closed_form_ps,
                 simulated = a.simulated_ps() <=> b.simulated_ps();
      if ((form < 0 && simulated > 0) || (form > 0 && simulated < 0)) ++changes;
    }
  }
  return changes;
}

/// Whether routes between devices of a host pass through PCIe, where groups meet.
bool shares_links(const topologies::Topology& topology) {
  constexpr std::uint32_t kLooked = 8;  // devices of the first host
  const std::uint32_t devices = std::min(kLooked, topology.devices_per_host());
  for (std::uint32_t a = 0; a < devices; ++a) {
    for (std::uint32_t b = 0; b < devices; ++b) {
      for (const topologies::LinkId link : topology.route(a, b)) {
        if (topology.link(link).kind == "pcie") return true;
      }
    }
  }
  return false;
}

std::int64_t first_error_ppm(const costmodel::CostModel& cost) {
  if (shares_links(cost.topology())) return kSharedLinksErrorPpm;
  return cost.overlap_slowdown_ppm() > kMillion ? kSlowedErrorPpm : kExpectedErrorPpm;
}

/// Whether all ranks of a pipeline are alike, but that the last may have more to do.
bool alike(const plan::Plan& plan, const costmodel::CostModel& cost) {
  const int p = plan.pipeline_degree();
  if (p == 1) return true;
  if (cost.mixed() || cost.model().kinds() > 1) return false;
  std::vector<int> layers(as_index(p), 0);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const plan::Stage& stage = plan.stages[i];
    if (stage.runs.size() > 1 || !stage.runs.front().alike(plan.stages.front().runs.front()))
      return false;
    layers[i % layers.size()] += stage.layers();
  }
  return std::ranges::max(layers) == layers.back();
}

}  // namespace

/// Steps of few micro-batches that say how long a plan takes, in half the time or less: one where
/// ranks are alike, else two; empty where none do.
struct ShorterSteps {
  std::vector<plan::Program> programs;
  std::int64_t ticks = 0;
  [[nodiscard]] bool of_alike() const { return programs.size() == 1; }
  [[nodiscard]] std::int64_t error_ppm() const {
    return of_alike() ? kLookErrorPpm : kLookUnlikeErrorPpm;
  }
  [[nodiscard]] base::Result<std::int64_t> step_ps(const costmodel::CostModel& cost,
                                                   std::int64_t micro_batches) const {
    return of_alike() ? sim::extrapolated_step_ps(programs[0], cost, micro_batches)
                      : sim::extrapolated_step_ps(programs[0], programs[1], cost, micro_batches);
  }
};

namespace {

base::Result<ShorterSteps> shorter_steps(const plan::Plan& plan, const costmodel::CostModel& cost) {
  using Lengths = std::vector<std::int64_t>;  // micro-batches a pipeline rank, as the next two
  const Lengths of_one{2}, of_two{4, 8};
  constexpr std::int64_t kLeastForOne = 4, kLeastForTwo = 48;
  ShorterSteps steps;
  if (plan.schedule != plan::Schedule::k1F1B && plan.schedule != plan::Schedule::kInterleaved)
    return steps;
  const bool one = alike(plan, cost);
  if (plan.micro_batches < (one ? kLeastForOne : kLeastForTwo) * plan.pipeline_degree())
    return steps;
  if (!one && cost.mixed()) return steps;
  for (const std::int64_t length : one ? of_one : of_two) {
    TRY(plan::Program program, plan::lower(few_micro_batches(plan, length), cost.model()));
    steps.ticks += ticks_of(program);
    steps.programs.push_back(std::move(program));
  }
  if (one) return steps;
  TRY(const plan::Program whole, plan::lower(plan, cost.model()));
  return 2 * steps.ticks <= ticks_of(whole) ? std::move(steps) : ShorterSteps{};
}

}  // namespace

base::Result<Finalist> finalist_of(costmodel::LayerCosts& costs, plan::Plan plan) {
  TRY(const costmodel::PlanCost priced, costmodel::plan_cost(costs, plan));
  return Finalist{std::move(plan), priced.step_ps, priced.pass_by_pass_ps, priced.stage_peak_bytes,
                  priced.energy_ps};
}

Contest::Contest(const costmodel::CostModel& cost, const KnownPlan& known,
                 costmodel::Objective objective)
    : cost_(cost),
      energy_(objective == costmodel::Objective::kEnergy),
      known_ps_(known.step_ps),
      only_better_(known.only_better),
      error_ppm_(first_error_ppm(cost)) {}

bool Contest::may_win(std::int64_t expected_ps) const {
  return expected_ps - expected_ps / kMillion * error_ppm_ < std::min(best_ps(), bar_ps_);
}

bool Contest::ends_before(std::int64_t ps, std::int64_t error_ppm) const {
  const bool wins = ps + ps / kMillion * error_ppm < best_ps();
  return ticks_ > (wins ? 2 : 1) * kContestTicks;
}

Contest::Frame Contest::frame_of(const plan::Plan& plan) {
  return {plan.pipeline_degree(), plan.stages.front().runs.front().strategy.tp, plan.micro_batches,
          plan.schedule};
}

bool Contest::may_win(const Finalist& finalist) const {
  const auto known = std::ranges::find(excess_, frame_of(finalist.plan), &Excess::frame);
  std::int64_t error_ppm = error_ppm_;
  if (known != excess_.end()) error_ppm = std::min(error_ppm, known->ppm + kFrameErrorPpm);
  const std::int64_t time_ps = finalist.expected_ps - finalist.energy_ps;
  return finalist.expected_ps - time_ps / kMillion * error_ppm < std::min(best_ps(), bar_ps_);
}

std::int64_t Contest::best_known_ps(const Finalist& finalist) const {
  const auto seen = std::ranges::find(seen_, finalist.plan, &Seen::plan);
  if (seen == seen_.end()) return finalist.expected_ps;
  return std::max(seen->step_ps.value_or(finalist.expected_ps), seen->least_ps);
}

const sim::SimReport* Contest::known_report(const plan::Plan& plan) const {
  const auto known =
      std::ranges::find(reports_, plan, [](const auto& r) -> const plan::Plan& { return r.first; });
  return known == reports_.end() ? nullptr : &known->second;
}

void Contest::learn(const Finalist& finalist, std::int64_t least_ps, bool bound) {
  const auto seen = std::ranges::find(seen_, finalist.plan, &Seen::plan);
  if (seen != seen_.end() && !bound) seen->step_ps = least_ps;
  if (seen != seen_.end() && bound) seen->least_ps = least_ps;
  const std::int64_t time_ps = least_ps - finalist.energy_ps;
  const std::int64_t ppm =
      std::max<std::int64_t>(0, (finalist.expected_ps - least_ps) / (time_ps / kMillion + 1));
  if (!bound) error_ppm_ = std::max(error_ppm_, ppm * 3 / 2);
  const Excess now{frame_of(finalist.plan), ppm, bound};
  const auto known = std::ranges::find(excess_, now.frame, &Excess::frame);
  if (known == excess_.end())
    excess_.push_back(now);
  else if (known->bound == bound)
    known->ppm = bound ? std::min(known->ppm, ppm) : std::max(known->ppm, ppm);
  else if (known->bound)
    *known = now;
}

bool Contest::keep(const Finalist& finalist, std::int64_t step_ps) {
  if (step_ps >= fastest_ps_ || (only_better_ && step_ps >= known_ps_)) return false;
  fastest_ps_ = step_ps;
  fastest_ = finalist;
  report_.reset();
  return true;
}

base::Result<void> Contest::simulate(const Finalist& finalist, bool in_full) {
  TRY(const plan::Program program, plan::lower(finalist.plan, cost_.model()));
  const bool long_here = ticks_ + ticks_of(program) > kContestTicks;
  const std::int64_t most = energy_ || long_here ? kMostCompared : kMostOperations;
  const bool shorter = is_long(finalist.plan, program, most);
  const std::int64_t run = (kFew + kMore) * finalist.plan.pipeline_degree();  // micro-batches
  ticks_ += shorter ? ticks_of(program) / finalist.plan.micro_batches * run : ticks_of(program);
  if ((in_full && !energy_) || shorter) {
    TRY(sim::SimReport report, report_of(cost_, finalist.plan, program, energy_, most));
    const std::int64_t cost_ps = report.step_time_ps + finalist.energy_ps;
    learn(finalist, cost_ps, false);
    const bool fastest = keep(finalist, cost_ps);
    // what is shorter only to be compared is simulated again where it is the answer
    if (fastest && (!shorter || is_long(finalist.plan, program))) report_ = report;
    if (energy_) reports_.emplace_back(finalist.plan, std::move(report));
    return {};
  }
  const std::int64_t cutoff = needs_no_other() || !looks_.empty() ? best_ps() : kNever;
  const std::int64_t time_cutoff = std::max<std::int64_t>(cutoff - finalist.energy_ps, 0);
  TRY(const std::optional<std::int64_t> step_ps,
      sim::simulated_step_ps(program, cost_, time_cutoff));
  const std::int64_t cost_ps = step_ps ? *step_ps + finalist.energy_ps : cutoff;
  learn(finalist, cost_ps, !step_ps);
  if (step_ps) keep(finalist, cost_ps);
  return {};
}

base::Result<void> Contest::look_ahead(const Finalist& finalist, const ShorterSteps& shorter) {
  ticks_ += shorter.ticks;
  TRY(std::int64_t step_ps, shorter.step_ps(cost_, finalist.plan.micro_batches));
  step_ps += finalist.energy_ps;
  learn(finalist, step_ps, false);
  looks_.push_back({finalist, step_ps, shorter.error_ppm()});
  looked_ps_ = std::min(looked_ps_, step_ps + step_ps / kMillion * shorter.error_ppm());
  return {};
}

base::Result<void> Contest::begin(const Finalist& first) {
  TRY(const plan::Program program, plan::lower(first.plan, cost_.model()));
  TRY(const ShorterSteps shorter, shorter_steps(first.plan, cost_));
  const std::int64_t ticks = shorter.programs.empty() ? ticks_of(program) : shorter.ticks;
  if (shorter.of_alike() || ticks < kContestTicks / 8) return look(first, shorter, true);
  bar_ps_ = first.expected_ps + first.expected_ps / kMillion * (error_ppm_ + kFrameErrorPpm);
  return {};
}

base::Result<void> Contest::look(const Finalist& finalist, const ShorterSteps& shorter,
                                 bool in_full) {
  seen_.push_back({finalist.plan});
  return shorter.programs.empty() ? simulate(finalist, in_full) : look_ahead(finalist, shorter);
}

base::Result<void> Contest::enter_all(std::vector<Finalist> finalists) {
  std::ranges::stable_sort(finalists, {}, &Finalist::expected_ps);
  bar_ps_ = kNever;
  bool in_full = true;
  for (const Finalist& f : finalists) {
    if (!may_win(f.expected_ps) || ends_before(f.expected_ps, error_ppm_)) break;
    if (!may_win(f) || std::ranges::count(seen_, f.plan, &Seen::plan) > 0) continue;
    TRY(const ShorterSteps shorter, shorter_steps(f.plan, cost_));
    TRY_VOID(look(f, shorter, in_full));
    in_full = false;
  }
  std::ranges::stable_sort(looks_, {}, &Look::step_ps);
  looked_ps_ = kNever;
  in_full = true;
  for (const Look& look : looks_) {
    const std::int64_t least_ps = look.step_ps - look.step_ps / kMillion * look.error_ppm;
    const bool ends = least_ps >= best_ps() || ends_before(look.step_ps, look.error_ppm);
    if (needs_no_other() && ends) continue;
    TRY_VOID(simulate(look.finalist, in_full));
    in_full = false;
  }
  looks_.clear();
  return {};
}

base::Result<std::int64_t> about_step_ps(const costmodel::CostModel& cost,
                                         const Finalist& finalist) {
  constexpr std::int64_t kManyTicks = 1'000'000;
  TRY(const plan::Program program, plan::lower(finalist.plan, cost.model()));
  if (ticks_of(program) > kManyTicks) {
    TRY(const ShorterSteps shorter, shorter_steps(finalist.plan, cost));
    if (shorter.programs.empty()) return finalist.expected_ps - finalist.energy_ps;
    return shorter.step_ps(cost, finalist.plan.micro_batches);
  }
  TRY(const std::optional<std::int64_t> step_ps, sim::simulated_step_ps(program, cost));
  return *step_ps;
}

namespace {

/// Reports 0 .. n - 1, side by side. Errors: the first one's.
template <class Simulate>
base::Result<std::vector<sim::SimReport>> simulated(std::size_t n, int threads,
                                                    const Simulate& simulate) {
  std::vector<std::optional<base::Result<sim::SimReport>>> results(n);
  const auto one = [&](std::size_t i) { results[i] = simulate(i); };
  base::run_in_parallel(n, threads, [&] { return one; });
  std::vector<sim::SimReport> reports;
  for (auto& result : results) {
    TRY(sim::SimReport report, *std::move(result));
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace

base::Result<LeastDrawing> least_drawing(const costmodel::CostModel& cost, const Contest& contest,
                                         const std::vector<Finalist>& finalists, int threads) {
  constexpr std::size_t kMost = 6;
  const Finalist& fastest = contest.fastest();
  const std::int64_t least_ps = contest.best_known_ps(fastest),
                     most_ps = least_ps + least_ps / kMillion * kEnergyErrorPpm;
  std::vector<Finalist> near{fastest};
  for (const Finalist& f : finalists)
    if (f.plan != fastest.plan && contest.best_known_ps(f) <= most_ps) near.push_back(f);
  std::ranges::stable_sort(near.begin() + 1, near.end(), {},
                           [&](const Finalist& f) { return contest.best_known_ps(f); });
  if (near.size() > kMost) near.resize(kMost);
  TRY(std::vector<sim::SimReport> reports,
      simulated(near.size(), threads, [&](std::size_t i) -> base::Result<sim::SimReport> {
        if (const sim::SimReport* known = contest.known_report(near[i].plan)) return *known;
        return simulate_plan(cost, near[i].plan, true, kMostCompared);
      }));
  LeastDrawing best;
  std::int64_t best_ps = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < near.size(); ++i) {
    const std::int64_t ps = reports[i].step_time_ps + drawn_ps(cost, reports[i]);
    if (ps >= best_ps) continue;
    best_ps = ps;
    best = {std::move(near[i]), std::move(reports[i])};
  }
  if (best.report.simulated_micro_batches > 0) {
    TRY(sim::SimReport whole, simulate_plan(cost, best.finalist.plan, true));
    best.report = std::move(whole);
  }
  return best;
}

base::Result<Evaluated> evaluate(const costmodel::CostModel& cost,
                                 const std::vector<Finalist>& finalists, int threads,
                                 const std::optional<sim::SimReport>& first, bool energy) {
  TRY(std::vector<sim::SimReport> reports,
      simulated(finalists.size(), threads, [&](std::size_t i) -> base::Result<sim::SimReport> {
        if (i == 0 && first) return *first;
        return simulate_plan(cost, finalists[i].plan, energy);
      }));
  Evaluated all;
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    const std::int64_t drawn = drawn_ps(cost, reports[i]);
    all.candidates.push_back(
        {finalists[i].plan, finalists[i].closed_form_ps, std::move(reports[i]), drawn});
  }
  all.order_changes = order_changes_of(all.candidates);
  std::ranges::stable_sort(all.candidates, [](const Candidate& a, const Candidate& b) {
    if (a.simulated_ps() != b.simulated_ps()) return a.simulated_ps() < b.simulated_ps();
    return a.closed_form_ps < b.closed_form_ps;
  });
  return all;
}

}  // namespace orrery::search

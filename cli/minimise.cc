#include "cli/minimise.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>

#include "base/numbers.h"
#include "base/process.h"
#include "cli/inputs.h"
#include "cli/run_options.h"
#include "costmodel/energy/power.h"
#include "search/loop/candidates.h"

namespace orrery::cli {
namespace {

constexpr double kPsPerSecond = 1e12, kSecondsPerHour = 3600;
constexpr std::uint64_t kMostStates = 1'000'000;  // of one number of hosts; 64 of them in 10 s
constexpr double kNever = std::numeric_limits<double>::infinity();

/// What a plan on some hosts takes for each picosecond that its step costs, and when its run is
/// late or too dear.
struct Scale {
  double per_ps = 0;
  double latest_ps = kNever;
};

Result<Scale> scale_of(const base::Options& o, const PlanQuestion& question) {
  const Topology& topology = question.scene.cost.topology();
  const auto devices = as_int(topology.device_count());
  double goodput = 1, hours = devices / kSecondsPerHour;  // a step of a second
  Scale scale;
  if (o.has("tokens")) {
    const double tokens =
        real(question.request.global_batch * question.scene.cost.options().sequence);
    TRY(const sim::RunReport run, run_of(o, topology, devices, tokens, failures_of(o)));
    goodput = run.cost.goodput;
    hours = run.cost.device_hours;
    if (run.limits.deadline)
      scale.latest_ps = kPsPerSecond * run.limits.deadline->raw() / run.cost.wall.raw();
    if (run.limits.budget_dollars && *run.cost.dollars > 0)
      scale.latest_ps =
          std::min(scale.latest_ps, kPsPerSecond * *run.limits.budget_dollars / *run.cost.dollars);
  }
  if (question.minimise == Minimise::kEnergy) {
    TRY(const auto power, costmodel::MachinePower::of(topology));
    scale.per_ps = power.waiting(topology).raw() / goodput / kPsPerSecond;
  } else {
    scale.per_ps = hours / kPsPerSecond;
  }
  return scale;
}

/// Half of them, a quarter, ..., whose plans cut off most others; then the others, most first.
std::vector<int> fewer_than(int hosts) {
  std::vector<int> all;
  for (int h = hosts / 2; h >= 1; h /= 2) all.push_back(h);
  for (int h = hosts - 1; h >= 1; --h)
    if (std::ranges::count(all, h) == 0) all.push_back(h);
  return all;
}

/// How far a plan's closed form, and its energy where no timeline says it, may be above what
/// simulation says.
constexpr double kFormError = 0.01, kEnergyError = real(search::kEnergyErrorPpm) / 1e6;
/// What a plan must beat. Closed forms are not the last word: a little above it a plan may still be
/// cheaper in simulation.
search::KnownPlan below(double ps) {
  search::KnownPlan known;
  if (ps >= real(known.step_ps)) return known;
  known.step_ps = static_cast<std::int64_t>(ps) + 1;
  known.closed_form_ps = static_cast<std::int64_t>(real(known.step_ps) * (1 + kFormError));
  known.only_better = true;
  return known;
}

class Least {
 public:
  Least(const base::Options& options, PlanQuestion& question)
      : options_(options), what_(question.minimise), question_(question) {}

  Result<LeastAnswer> run() {
    const int all = question_.request.hosts;
    TRY(best_.answer, answer_to(question_));
    const bool fixed = question_.scene.cost.topology().hosts() != as_u32(all);  // by its file
    if (what_ == Minimise::kTime || fixed) return std::move(best_);
    best_.hosts = best_.given = all;
    TRY(const Scale whole, scale_of(options_, question_));
    least_ = value(best_.answer, whole);
    note_bound(best_.answer, whole);
    request_ = question_.request;
    request_.relax = false;
    request_.max_states = std::min(request_.max_states, kMostStates);
    request_.on_progress = {};
    std::vector<Point> points;
    for (const int hosts : fewer_than(all))
      if (possible(hosts)) points.push_back({hosts});
    if (what_ == Minimise::kEnergy && !question_.target && !question_.scene.cost.mixed())
      TRY_VOID(order_by_closed_form(points));
    TRY_VOID(
        search_all(points, true, least_, [&](Point&, Tried tried) { take(std::move(tried)); }));
    best_.met = least_ < kNever;
    best_.undecided =
        as_int(std::ranges::count_if(bounds_, [&](double bound) { return bound < least_; }));
    return std::move(best_);
  }

 private:
  /// Never: there is no plan, or its run is late.
  [[nodiscard]] double value(const search::PlanAnswer& answer, const Scale& scale) const {
    if (answer.candidates.empty()) return kNever;
    const search::Candidate& best = answer.candidates.front();
    if (real(best.report.step_time_ps) > scale.latest_ps) return kNever;
    return scale.per_ps * real(best.simulated_ps());
  }
  void note_bound(const search::PlanAnswer& answer, const Scale& scale) {
    if (answer.status == search::Status::kBudget)
      bounds_.push_back(scale.per_ps * real(answer.certificate.bound_ps));
  }
  /// Degrees that are fixed may need more devices.
  [[nodiscard]] bool possible(int hosts) const {
    const search::Space& space = question_.request.space;
    const std::int64_t needed = std::int64_t{space.fix_tp.value_or(1)} * space.fix_pp.value_or(1) *
                                space.fix_cp.value_or(1) * space.fix_dp.value_or(1);
    return needed <= std::int64_t{hosts} * question_.scene.cost.topology().devices_per_host();
  }
  Result<PlanQuestion> question_on(int hosts) const {
    TRY(PlanQuestion there, question_of(options_, hosts));
    there.request = request_;
    there.request.hosts = hosts;
    return there;
  }
  /// A number of hosts, with what it takes at least by closed form, and the bound of its search
  /// where that ended at its limit.
  struct Point {
    int hosts = 1;
    double least = 0, bound = kNever;
  };
  struct Tried {
    PlanQuestion question;
    Scale scale;
    search::PlanAnswer answer;
  };
  /// For a plan of less than `least`.
  Result<Tried> search(int hosts, bool simulates, double least, int threads) const {
    TRY(PlanQuestion there, question_on(hosts));
    TRY(const Scale scale, scale_of(options_, there));
    there.request.known = known_of(least, scale);
    there.request.threads = threads;
    there.request.simulates = simulates;
    there.request.multipliers = there.request.multipliers && simulates;
    TRY(search::PlanAnswer answer, answer_to(there));
    return Tried{std::move(there), scale, std::move(answer)};
  }
  /// Numbers of hosts that may take less than `least`, which `use` may lower: one, since its plan
  /// cuts off most others, then always four at once, so that no answer depends on the threads.
  template <class Use>  // void(Point&, Tried)
  Result<void> search_all(std::vector<Point>& points, bool simulates, double& least,
                          const Use& use) {
    constexpr std::size_t kTogether = 4;
    const int threads = question_.request.threads;
    for (std::size_t from = 0, count = 0; from < points.size(); from += count) {
      count = from == 0 ? 1 : std::min(kTogether, points.size() - from);
      const std::span<Point> together(&points[from], count);
      std::vector<std::optional<Result<Tried>>> tried(count);
      const auto try_one = [&](std::size_t i) {
        if (together[i].least <= least * (1 + kFormError))
          tried[i] = search(together[i].hosts, simulates, least, count > 1 ? 1 : threads);
      };
      base::run_in_parallel(count, threads, [&] { return try_one; });
      for (std::size_t i = 0; i < count; ++i) {
        if (!tried[i]) {
          bounds_.push_back(together[i].bound);
          continue;
        }
        TRY(Tried one, *std::move(tried[i]));
        use(together[i], std::move(one));
      }
      report(from + count, points.size());
    }
    return {};
  }
  void report(std::size_t done, std::size_t total) const {
    const std::int64_t step_ps =
        best_.answer.candidates.empty() ? 0 : best_.answer.candidates.front().report.step_time_ps;
    if (question_.request.on_progress)
      question_.request.on_progress({done, total, step_ps, 0, "numbers of hosts"});
  }
  /// Searches all numbers of hosts, simulates none, and puts that of the least closed form first:
  /// few timelines are simulated then, which takes longer than a search.
  Result<void> order_by_closed_form(std::vector<Point>& points) {
    double least = least_;
    TRY_VOID(search_all(points, false, least, [&](Point& point, const Tried& tried) {
      const auto& [question, scale, answer] = tried;
      if (answer.status == search::Status::kBudget)
        point.bound = scale.per_ps * real(answer.certificate.bound_ps);
      if (answer.runners_up.empty()) {
        // What was known may prove dearer in simulation than by closed form.
        const bool none = answer.status == search::Status::kInfeasible;
        point.least = none ? kNever : scale.per_ps * real(question.request.known.closed_form_ps);
        return;
      }
      const search::RunnerUp& best = answer.runners_up.front();
      point.least = scale.per_ps * real(best.closed_form_ps);
      const double time_ps = real(best.closed_form_ps - best.energy_ps);
      if (time_ps * (1 + kFormError) < scale.latest_ps)  // a late one cuts off nothing
        least = std::min(least, point.least * (1 + kFormError));
    }));
    std::ranges::stable_sort(points, {}, &Point::least);
    return {};
  }
  [[nodiscard]] search::KnownPlan known_of(double least, const Scale& scale) const {
    const double cutoff = least / scale.per_ps;
    // Of energy the cost is more than the time, so a deadline cuts off no plan by its cost.
    return below(what_ == Minimise::kMoney ? std::min(cutoff, scale.latest_ps)
                                           : cutoff * (1 + kEnergyError));
  }
  void take(Tried tried) {
    const double here = value(tried.answer, tried.scale);
    note_bound(tried.answer, tried.scale);
    if (here >= least_) return;
    least_ = here;
    best_.hosts = tried.question.request.hosts;
    best_.answer = std::move(tried.answer);
    tried.question.request.threads = question_.request.threads;
    tried.question.request.on_progress = std::move(question_.request.on_progress);
    question_ = std::move(tried.question);
  }

  const base::Options& options_;
  Minimise what_;
  PlanQuestion& question_;
  search::PlanRequest request_;  // of other numbers of hosts
  LeastAnswer best_;
  double least_ = kNever;
  std::vector<double> bounds_;  // of searches that ended at their limits
};

}  // namespace

Result<LeastAnswer> least_answer(const base::Options& options, PlanQuestion& question) {
  return Least(options, question).run();
}

}  // namespace orrery::cli

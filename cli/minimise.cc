#include "cli/minimise.h"

#include <algorithm>
#include <limits>

#include "base/numbers.h"
#include "cli/inputs.h"
#include "cli/run_options.h"
#include "costmodel/energy/power.h"

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

/// What a plan must beat. Closed forms are not the last word: a little above it a plan may still be
/// cheaper in simulation.
search::KnownPlan below(double ps) {
  search::KnownPlan known;
  if (ps >= real(known.step_ps)) return known;
  known.step_ps = static_cast<std::int64_t>(ps) + 1;
  known.closed_form_ps = known.step_ps + known.step_ps / 100;
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
    const search::PlanRequest request = question_.request;
    for (const int hosts : fewer_than(all)) {
      TRY(PlanQuestion there, question_of(options_, hosts));
      there.request = request;
      there.request.hosts = hosts;
      if (possible(there)) TRY_VOID(try_hosts(std::move(there)));
    }
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
  static bool possible(const PlanQuestion& question) {
    const search::Space& space = question.request.space;
    const std::int64_t needed = std::int64_t{space.fix_tp.value_or(1)} * space.fix_pp.value_or(1) *
                                space.fix_cp.value_or(1) * space.fix_dp.value_or(1);
    return needed <= question.scene.cost.topology().device_count();
  }
  Result<void> try_hosts(PlanQuestion there) {
    TRY(const Scale scale, scale_of(options_, there));
    // Of energy the cost is more than the time, so a deadline cuts off no plan by its cost.
    const double cutoff = least_ / scale.per_ps;
    there.request.known =
        below(what_ == Minimise::kMoney ? std::min(cutoff, scale.latest_ps) : cutoff);
    there.request.relax = false;
    there.request.max_states = std::min(there.request.max_states, kMostStates);
    TRY(search::PlanAnswer answer, answer_to(there));
    const double here = value(answer, scale);
    note_bound(answer, scale);
    if (here >= least_) return {};
    least_ = here;
    best_.hosts = there.request.hosts;
    best_.answer = std::move(answer);
    question_ = std::move(there);
    return {};
  }

  const base::Options& options_;
  Minimise what_;
  PlanQuestion& question_;
  LeastAnswer best_;
  double least_ = kNever;
  std::vector<double> bounds_;  // of searches that ended at their limits
};

}  // namespace

Result<LeastAnswer> least_answer(const base::Options& options, PlanQuestion& question) {
  return Least(options, question).run();
}

}  // namespace orrery::cli

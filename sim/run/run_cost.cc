#include "sim/run/run_cost.h"

#include "base/check.h"

namespace orrery::sim {

using base::Seconds;

namespace {

constexpr double kHour = 3600;
constexpr double kLongestSeconds = 1e6 * 365.25 * 24 * kHour;
constexpr double kJoulesPerMwh = 3.6e9;

void check(const RunRequest& r) {
  ORRERY_CHECK(r.tokens > 0 && r.tokens_per_s > 0 && r.devices > 0 && r.pue >= 1,
               "{} tokens, {} a second, {} devices, PUE {}", r.tokens, r.tokens_per_s, r.devices,
               r.pue);
}

/// Joules at the wall, with PUE. `parts` of one interval, of `intervals`.
double joules_of(const RunRequest& r, const IntervalParts& parts, double intervals) {
  const double steps_s = intervals * parts.working.raw(),
               waiting_s = intervals * (parts.all() - parts.working).raw();
  return r.pue * (r.power->steps.raw() * steps_s + r.power->waiting.raw() * waiting_s);
}

}  // namespace

base::Result<RunCost> run_cost(const RunRequest& request) {
  check(request);
  RunCost cost;
  cost.useful = Seconds(request.tokens / request.tokens_per_s);
  // Without failures the run is one interval of work alone.
  IntervalParts parts{cost.useful, {}, {}, {}};
  double intervals = 1;
  if (request.failures) {
    const Seconds interval = request.interval.value_or(best_interval(*request.failures));
    parts = interval_parts(*request.failures, interval);
    intervals = cost.useful / interval;
    cost.waiting = waiting_share(*request.failures);
  }
  cost.wall = intervals * parts.all();
  if (!(cost.wall.raw() <= kLongestSeconds)) {
    return base::fail(base::make_error(base::ErrorCode::kUnsupported,
                                       "the run does not end within a million years")
                          .with_hint("fewer tokens, rarer failures, or checkpoints and restarts "
                                     "that take less time than passes between failures"));
  }
  cost.goodput = cost.useful / cost.wall;
  cost.device_hours = request.devices * cost.wall.raw() / kHour;
  if (request.dollars_per_device_hour)
    cost.dollars = cost.device_hours * *request.dollars_per_device_hour;
  if (request.power) cost.mwh = joules_of(request, parts, intervals) / kJoulesPerMwh;
  if (cost.mwh && request.carbon_g_per_kwh) cost.kg_co2 = *cost.mwh * *request.carbon_g_per_kwh;
  return cost;
}

RunVerdict verdict_of(const RunCost& cost, const RunLimits& limits) {
  RunVerdict verdict;
  if (limits.deadline) verdict.deadline = cost.wall <= *limits.deadline;
  if (limits.budget_dollars) {
    ORRERY_CHECK(cost.dollars.has_value(), "a budget without a price");
    verdict.budget = *cost.dollars <= *limits.budget_dollars;
  }
  return verdict;
}

}  // namespace orrery::sim

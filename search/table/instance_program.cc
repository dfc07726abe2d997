#include "search/table/instance_program.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/json.h"
#include "base/numbers.h"
#include "search/table/instance_dual.h"
#include "search/table/instance_labels.h"
#include "search/table/instance_runs.h"

namespace orrery::search {
namespace {

constexpr std::string_view kSchema = "orrery.solution/1";
constexpr std::uint64_t kCountEffort = 20'000'000;
constexpr base::Named<Status> kStatuses[] = {{"optimal", Status::kOptimal},
                                             {"infeasible", Status::kInfeasible},
                                             {"budget", Status::kBudget}};

}  // namespace

Solution solve_instance(const Instance& instance, std::uint64_t max_states) {
  const InstanceClasses classes(instance);
  InstanceDual dual = solve_dual(instance, classes);
  Solution solution;
  solution.least_memory_bytes = dual.least_memory.memory_bytes;
  if (!dual.feasible) return solution;
  solution.multiplier = {dual.best.price, dual.best.scale};
  solution.bound_ps = dual.bound_ps;
  InstanceAnswer best{dual.within, std::move(dual.within_path)};
  // Counts may explode where many options lie on one line: labels take over.
  Effort counts{.limit =
                    max_states == 0 ? kCountEffort : std::max<std::uint64_t>(max_states / 2, 1)};
  const RunsOutcome outcome = search_runs(instance, best, counts);
  Effort labels{.limit =
                    max_states == 0 ? 0 : max_states - std::min(counts.states, max_states - 1)};
  solution.proved_ps = outcome == RunsOutcome::kOptimal
                           ? best.totals.time_ps
                           : search_labels(instance, classes, dual, best, labels);
  solution.status = solution.proved_ps == best.totals.time_ps ? Status::kOptimal : Status::kBudget;
  solution.choices = std::move(best.choices);
  solution.time_ps = best.totals.time_ps;
  solution.memory_bytes = best.totals.memory_bytes;
  if (solution.time_ps > 0) {
    solution.gap = real(solution.time_ps - solution.bound_ps) / real(solution.time_ps);
  }
  solution.states = counts.states + labels.states;
  return solution;
}

base::Json to_json(const Solution& solution, const Instance& instance) {
  base::Json json{{"schema", kSchema},
                  {"status", std::string(to_string(solution.status))},
                  {"budget_bytes", instance.budget_bytes},
                  {"least_memory_bytes", solution.least_memory_bytes},
                  {"states", solution.states}};
  if (solution.status == Status::kInfeasible) {
    json["shortfall_bytes"] = solution.least_memory_bytes - instance.budget_bytes;
    return json;
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < solution.choices.size(); ++i) {
    names.push_back(instance.layers[i][as_index(solution.choices[i])].name);
  }
  json["time_ps"] = solution.time_ps;
  json["memory_bytes"] = solution.memory_bytes;
  json["choices"] = std::move(names);
  json["choice_indices"] = solution.choices;
  json["proved_ps"] = solution.proved_ps;
  json["certificate"] = {{"multiplier",
                          {{"numerator", solution.multiplier.numerator},
                           {"denominator", solution.multiplier.denominator}}},
                         {"bound_ps", solution.bound_ps},
                         {"gap", solution.gap}};
  return json;
}

base::Result<Solution> read_solution(const base::Node& root) {
  constexpr base::IntRange kCount{0, std::numeric_limits<std::int64_t>::max()};
  base::ErrorSink sink;
  base::Reader r(root, "solution", sink);
  const std::string schema = r.required_string("schema");
  if (sink.ok() && schema != kSchema) {
    return base::fail_at(r.span("schema"), base::ErrorCode::kUnsupported, "schema '{}' is not '{}'",
                         schema, kSchema);
  }
  Solution s;
  s.status = r.required_enum("status", kStatuses);
  s.least_memory_bytes = r.required_int("least_memory_bytes", kCount);
  for (const char* key : {"budget_bytes", "states", "seconds", "check", "choices"}) r.ignore(key);
  if (s.status == Status::kInfeasible) {
    r.ignore("shortfall_bytes");
  } else {
    s.time_ps = r.required_int("time_ps", kCount);
    s.memory_bytes = r.required_int("memory_bytes", kCount);
    s.proved_ps = r.required_int("proved_ps", kCount);
    for (const std::int64_t choice : r.required_ints("choice_indices", {0, kMaxInstanceOptions})) {
      s.choices.push_back(static_cast<std::int32_t>(choice));
    }
    base::Reader certificate(r.required_object("certificate"), "certificate", sink);
    s.bound_ps = certificate.required_int("bound_ps", kCount);
    s.gap = certificate.required_double("gap");
    base::Reader multiplier(certificate.required_object("multiplier"), "multiplier", sink);
    s.multiplier.numerator = multiplier.required_int("numerator", kCount);
    s.multiplier.denominator = multiplier.required_int("denominator", {1, kCount.max});
    multiplier.finish();
    certificate.finish();
  }
  r.finish();
  return sink.result(std::move(s));
}

}  // namespace orrery::search

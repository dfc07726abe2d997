#include "search/instance_program.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "search/instance_dual.h"
#include "search/instance_labels.h"
#include "search/layer_program.h"

namespace orrery::search {
namespace {

constexpr std::string_view kSchema = "orrery.solution/1";
constexpr base::Named<Status> kStatuses[] = {
    {"optimal", Status::kOptimal}, {"infeasible", Status::kInfeasible}, {"budget", Status::kBudget}};

/// Layouts of a transition table: options that cost nothing to exchange and the same to all others. Nothing when there
/// are more than kMaxLayouts, or the table between them is no metric.
struct Layouts {
  std::vector<int> of;  // [option]
  std::vector<std::size_t> representative;
};
std::optional<Layouts> find_layouts(const Instance& instance) {
  const std::size_t options = instance.layers.front().size();
  Layouts layouts{.of = std::vector<int>(options, 0), .representative = {0}};
  const auto r = [&](std::size_t from, std::size_t to) { return instance.transition(0, from, to); };
  const auto exchangeable = [&](std::size_t a, std::size_t b) {
    if (r(a, b) != 0 || r(b, a) != 0 || r(a, a) != 0 || r(b, b) != 0) return false;
    for (std::size_t k = 0; k < options; ++k) {
      if (r(a, k) != r(b, k) || r(k, a) != r(k, b)) return false;
    }
    return true;
  };
  for (std::size_t s = 0; s < options; ++s) {
    if (r(s, s) != 0) return std::nullopt;
    auto& known = layouts.representative;
    const auto found = std::ranges::find_if(known, [&](std::size_t other) { return exchangeable(other, s); });
    layouts.of[s] = static_cast<int>(found - known.begin());
    if (found == known.end()) known.push_back(s);
    if (known.size() > static_cast<std::size_t>(kMaxLayouts)) return std::nullopt;
  }
  for (const std::size_t a : layouts.representative) {
    for (const std::size_t b : layouts.representative) {
      for (const std::size_t c : layouts.representative) {
        if (r(a, c) > r(a, b) + r(b, c)) return std::nullopt;
      }
    }
  }
  return layouts;
}

/// The same problem as one of equal layers; nothing when it is none.
std::optional<LayerProblem> as_equal_layers(const Instance& instance) {
  if (instance.layers.size() < 2 || (instance.layers.size() > 2 && instance.transition_ps.size() > 1)) return std::nullopt;
  const auto same = [](const InstanceOption& a, const InstanceOption& b) {
    return a.time_ps == b.time_ps && a.memory_bytes == b.memory_bytes;
  };
  for (const auto& layer : instance.layers) {
    if (!std::ranges::equal(layer, instance.layers.front(), same)) return std::nullopt;
  }
  const auto layouts = find_layouts(instance);
  if (!layouts) return std::nullopt;
  LayerProblem problem;
  problem.layers = static_cast<int>(instance.layers.size());
  problem.layouts = static_cast<int>(layouts->representative.size());
  problem.budget_bytes = std::min(instance.budget_bytes, kMaxInstanceTotal);
  for (std::size_t s = 0; s < layouts->of.size(); ++s) {
    const InstanceOption& o = instance.layers.front()[s];
    problem.options.push_back({.steady_ps = o.time_ps, .memory_bytes = o.memory_bytes, .layout = layouts->of[s]});
  }
  for (const std::size_t from : layouts->representative) {
    for (const std::size_t to : layouts->representative) problem.transition_ps.push_back(instance.transition(0, from, to));
  }
  return problem;
}

/// Improves `best`; true when that is the optimum.
bool solve_equal(LayerProblem problem, InstanceAnswer& best, Effort& effort) {
  constexpr Weights kTime{1, 0};
  for (;;) {
    // The least time, then less memory at that time until there is none.
    const Bounded found = solve_layers(problem, kTime, static_cast<__int128>(best.totals.time_ps) + 1, effort);
    if (found.answer) best = {{found.answer->steady_ps, found.answer->memory_bytes}, found.answer->sequence};
    if (!found.answer || effort.exhausted || best.totals.memory_bytes == 0) return !effort.exhausted;
    problem.budget_bytes = best.totals.memory_bytes - 1;
  }
}

}  // namespace

Solution solve_instance(const Instance& instance, std::uint64_t max_states) {
  const InstanceClasses classes(instance);
  InstanceDual dual = solve_dual(instance, classes);
  Solution solution;
  solution.least_memory_bytes = dual.lightest.memory_bytes;
  if (!dual.feasible) return solution;
  solution.multiplier = {dual.best.price, dual.best.scale};
  solution.bound_ps = dual.bound_ps;
  Effort effort{.limit = max_states};
  InstanceAnswer best{dual.within, std::move(dual.within_path)};
  solution.proved_ps = dual.bound_ps;
  if (auto equal = as_equal_layers(instance)) {
    if (solve_equal(*std::move(equal), best, effort)) solution.proved_ps = best.totals.time_ps;
  } else {
    solution.proved_ps = search_labels(instance, classes, dual, best, effort);
  }
  solution.status = solution.proved_ps == best.totals.time_ps ? Status::kOptimal : Status::kBudget;
  solution.choices = std::move(best.choices);
  solution.time_ps = best.totals.time_ps;
  solution.memory_bytes = best.totals.memory_bytes;
  if (solution.time_ps > 0) {
    solution.gap = static_cast<double>(solution.time_ps - solution.bound_ps) / static_cast<double>(solution.time_ps);
  }
  solution.states = effort.states;
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
    names.push_back(instance.layers[i][static_cast<std::size_t>(solution.choices[i])].name);
  }
  json["time_ps"] = solution.time_ps;
  json["memory_bytes"] = solution.memory_bytes;
  json["choices"] = std::move(names);
  json["choice_indices"] = solution.choices;
  json["proved_ps"] = solution.proved_ps;
  json["certificate"] = {
      {"multiplier", {{"numerator", solution.multiplier.numerator}, {"denominator", solution.multiplier.denominator}}},
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
    return base::fail_at(r.span("schema"), base::ErrorCode::kUnsupported, "schema '{}' is not '{}'", schema, kSchema);
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

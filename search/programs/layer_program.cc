#include "search/programs/layer_program.h"

#include <algorithm>

#include "base/check.h"
#include "base/numbers.h"
#include "search/programs/count_search.h"
#include "search/programs/layout_paths.h"

namespace orrery::search {
namespace {

bool dominates(const LayerOption& a, const LayerOption& b, std::int64_t flight) {
  return a.layout == b.layout && a.steady_ps <= b.steady_ps && a.once_ps <= b.once_ps &&
         a.memory_bytes <= b.memory_bytes &&
         a.memory_bytes - a.stash_bytes <= b.memory_bytes - b.stash_bytes &&
         a.transient_bytes <= b.transient_bytes && a.forward_bytes <= b.forward_bytes &&
         a.neighbour_bytes <= b.neighbour_bytes && a.step_bytes <= b.step_bytes &&
         a.memory_bytes - flight * a.stash_bytes <= b.memory_bytes - flight * b.stash_bytes;
}

std::vector<std::int64_t> distinct(std::vector<std::int64_t> values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}
std::vector<std::int64_t> distinct(const std::vector<Column>& columns,
                                   std::int64_t Column::*field) {
  std::vector<std::int64_t> values;
  for (const Column& c : columns) values.push_back(c.*field);
  return distinct(std::move(values));
}

/// Few rounds whatever the number of options (memory_conditions.h).
void classify(std::vector<Column>& columns) {
  constexpr std::size_t kClasses = 8;
  std::vector<std::int64_t> transients;
  std::int64_t least_gather = kForbidden;
  for (const Column& c : columns) {
    transients.push_back(c.values.transient_bytes);
    if (c.values.neighbour_bytes > 0)
      least_gather = std::min(least_gather, c.values.neighbour_bytes);
  }
  transients = distinct(std::move(transients));
  const std::size_t classes = std::min(kClasses, transients.size());
  for (Column& c : columns) {
    const auto rank = as_index(std::ranges::lower_bound(transients, c.values.transient_bytes) -
                               transients.begin());
    // Class k starts at rank ceil(k n / classes).
    const std::size_t k = rank * classes / transients.size();
    c.round_transient_bytes = transients[(k * transients.size() + classes - 1) / classes];
    c.round_neighbour_bytes = c.values.neighbour_bytes > 0 ? least_gather : 0;
  }
}

/// Options that no other of the same layout beats in everything; of equals the first.
std::vector<Column> columns_of(const LayerProblem& problem) {
  std::vector<Column> columns;
  for (std::size_t i = 0; i < problem.options.size(); ++i) {
    const LayerOption& option = problem.options[i];
    bool beaten = false;
    for (std::size_t j = 0; j < problem.options.size() && !beaten; ++j) {
      if (j == i || !dominates(problem.options[j], option, problem.flight)) continue;
      beaten = problem.options[j] != option || j < i;
    }
    if (!beaten) columns.push_back({static_cast<std::int32_t>(i), option, 0, 0});
  }
  classify(columns);
  return columns;
}

__int128 objective(const LayerOption& o, const Weights& w) {
  return static_cast<__int128>(w.steady) * o.steady_ps + static_cast<__int128>(w.once) * o.once_ps;
}

LayerAnswer answer_of(const LayerOrder& orders, const Counts& counts) {
  return {orders.sequence(*counts.of, *counts.order), counts.steady_ps, counts.once_ps,
          counts.memory_bytes};
}

/// Keeps the best answer; the cutoff is its objective.
struct BestSink {
  Weights weights;
  __int128 best;
  std::optional<LayerAnswer> answer = std::nullopt;
  const LayerOrder* orders = nullptr;

  [[nodiscard]] __int128 cutoff() const { return best; }
  void offer(const Counts& counts) {
    best = static_cast<__int128>(weights.steady) * counts.steady_ps +
           static_cast<__int128>(weights.once) * counts.once_ps;
    answer = answer_of(*orders, counts);
  }
};

/// Keeps the staircase of (steady, total); the cutoff is the costliest corner between neighbours.
struct FrontierSink {
  Weights weights;
  FrontierLimits limits;
  std::vector<LayerAnswer> points = {};
  __int128 window = 0;
  const LayerOrder* orders = nullptr;

  static std::int64_t total(const LayerAnswer& a) { return a.steady_ps + a.once_ps; }
  [[nodiscard]] __int128 value(std::int64_t steady_ps, std::int64_t total_ps) const {
    return static_cast<__int128>(weights.steady) * steady_ps +
           static_cast<__int128>(weights.once) * (total_ps - steady_ps);
  }
  [[nodiscard]] __int128 cutoff() const { return window; }
  void offer(const Counts& counts) {
    const std::int64_t total_ps = counts.steady_ps + counts.once_ps;
    if (total_ps >= limits.total_ps) return;
    for (const LayerAnswer& p : points) {
      if (p.steady_ps <= counts.steady_ps && total(p) <= total_ps) return;
    }
    insert(answer_of(*orders, counts));
  }
  void insert(LayerAnswer answer) {
    std::erase_if(points, [&](const LayerAnswer& p) {
      return answer.steady_ps <= p.steady_ps && total(answer) <= total(p);
    });
    const auto place = std::ranges::find_if(
        points, [&](const LayerAnswer& p) { return p.steady_ps > answer.steady_ps; });
    points.insert(place, std::move(answer));
    window = 0;
    for (std::size_t i = 0; i + 1 < points.size(); ++i) {
      window = std::max(
          window, value(points[i + 1].steady_ps, std::min(limits.total_ps, total(points[i]))));
    }
    window = std::min(window, limits.weighted);
  }
};

/// Runs every round, most promising first: by a quick bound, then by the best conditions on memory,
/// found when its turn comes. Returns the least bound.
template <class Sink>
__int128 search_all(const LayerProblem& problem, const std::vector<Column>& columns,
                    const Weights& weights, std::int64_t steady_limit, Effort& effort, Sink& sink) {
  CountSearch<Sink> search(problem, columns, weights, steady_limit, effort, sink);
  sink.orders = &search.orders();
  struct Round {
    __int128 bound;
    std::int64_t transient, neighbours;
    bool priced = false;
  };
  std::vector<Round> rounds;
  const std::vector<std::int64_t> transients = distinct(columns, &Column::round_transient_bytes);
  for (const std::int64_t neighbours : distinct(columns, &Column::round_neighbour_bytes)) {
    for (const std::int64_t transient : transients)
      rounds.push_back({search.least_level(transient, neighbours), transient, neighbours});
  }
  __int128 least = kNoAnswer;
  const Round* prepared = nullptr;
  while (!rounds.empty()) {
    const auto next = std::ranges::min_element(rounds, {}, &Round::bound);
    if (next->priced || next->bound >= sink.cutoff()) least = std::min(least, next->bound);
    if (next->bound >= std::min(kNoAnswer, sink.cutoff())) break;
    const bool ready = prepared == &*next;
    if (!next->priced) {
      next->bound = search.prepare(next->transient, next->neighbours);
      next->priced = true;
      prepared = &*next;
    } else {
      if (ready || search.prepare(next->transient, next->neighbours) < sink.cutoff()) search.run();
      next->bound = kNoAnswer;
      prepared = nullptr;
    }
  }
  return least;
}

void check_problem(const LayerProblem& p, const Weights& w) {
  const auto k = as_index(p.layouts);
  ORRERY_CHECK(p.layers >= 1 && p.layouts >= 1 && p.layouts <= kMaxLayouts, "{} layers, {} layouts",
               p.layers, p.layouts);
  ORRERY_CHECK(p.transition_ps.empty() || p.transition_ps.size() == k * k);
  ORRERY_CHECK((p.entry_ps.empty() || p.entry_ps.size() == k) &&
               (p.exit_ps.empty() || p.exit_ps.size() == k));
  ORRERY_CHECK(w.steady >= 0 && w.once >= 0 && w.steady + w.once > 0);
  for (const LayerOption& o : p.options) {
    ORRERY_CHECK(o.layout >= 0 && o.layout < p.layouts && o.steady_ps >= 0 && o.once_ps >= 0 &&
                     o.stash_bytes >= 0 && o.stash_bytes * p.flight <= o.memory_bytes &&
                     o.neighbour_bytes >= 0 && o.transient_bytes >= 0 && o.forward_bytes >= 0,
                 "option of layout {}", o.layout);
  }
}

}  // namespace

Bounded solve_layers(const LayerProblem& problem, const Weights& weights, __int128 cutoff,
                     Effort& effort, std::int64_t steady_limit) {
  check_problem(problem, weights);
  effort.ticks += problem.options.size();
  const std::vector<Column> columns = columns_of(problem);
  BestSink sink{weights, cutoff};
  Bounded result;
  result.bound = search_all(problem, columns, weights, steady_limit, effort, sink);
  result.answer = std::move(sink.answer);
  return result;
}

LayerBound layer_bound(const LayerProblem& problem, const Weights& weights) {
  check_problem(problem, weights);
  LayerBound least;
  const std::vector<Column> columns = columns_of(problem);
  if (columns.empty()) return least;
  // Any path enters and leaves somewhere; the least transient may come last, behind the least
  // gather.
  std::int64_t path = problem.entry_ps.empty() ? 0 : std::ranges::min(problem.entry_ps);
  path += problem.exit_ps.empty() ? 0 : std::ranges::min(problem.exit_ps);
  if (path >= kForbidden) return least;
  std::vector<Item> items;
  std::vector<std::int64_t> steady;
  for (const std::int64_t neighbours : distinct(columns, &Column::round_neighbour_bytes)) {
    items.clear();
    steady.clear();
    std::int64_t last = kForbidden;
    for (const Column& c : columns) {
      if (c.round_neighbour_bytes < neighbours) continue;
      items.push_back({objective(c.values, weights), c.values.memory_bytes});
      steady.push_back(c.values.steady_ps);
      last = std::min(last, c.values.transient_bytes + (problem.layers > 1 ? neighbours : 0));
    }
    const std::int64_t capacity =
        problem.budget_bytes - std::max(problem.transient_floor_bytes, last);
    const LinearRelaxation lp = relax(items, problem.layers, capacity);
    if (!lp.feasible) continue;
    const __int128 value = lp.bound() + static_cast<__int128>(weights.steady) * path;
    if (value >= least.value) continue;
    // Of the layers, (capacity - L m_b) / (m_a - m_b) are on a.
    const __int128 spare = static_cast<__int128>(capacity) -
                           static_cast<__int128>(items[lp.b].memory) * problem.layers;
    const __int128 heavy = lp.a == lp.b ? 0 : spare * (steady[lp.a] - steady[lp.b]) / lp.scale;
    least = {value, path + problem.layers * steady[lp.b] + static_cast<std::int64_t>(heavy)};
  }
  return least;
}

std::vector<LayerAnswer> layer_frontier(const LayerProblem& problem, const Weights& weights,
                                        const FrontierLimits& limits, Effort& effort) {
  Bounded cheap = solve_layers(problem, {1, 1}, limits.total_ps, effort, limits.steady_ps);
  if (!cheap.answer) return {};
  FrontierSink sink{weights, limits};
  Bounded quick = solve_layers(problem, {1, 0}, cheap.answer->steady_ps, effort, limits.steady_ps);
  const std::int64_t least_total = FrontierSink::total(*cheap.answer);
  sink.insert(*std::move(cheap.answer));
  if (quick.answer && FrontierSink::total(*quick.answer) > least_total)
    sink.insert(*std::move(quick.answer));
  else if (quick.answer)
    sink.points = {*std::move(quick.answer)};
  if (sink.points.size() > 1)
    search_all(problem, columns_of(problem), weights, limits.steady_ps, effort, sink);
  std::erase_if(sink.points, [&](const LayerAnswer& p) {
    return FrontierSink::total(p) >= limits.total_ps ||
           sink.value(p.steady_ps, FrontierSink::total(p)) >= limits.weighted;
  });
  return std::move(sink.points);
}

std::int64_t least_memory(const LayerProblem& problem) {
  const std::vector<Column> columns = columns_of(problem);
  if (LayoutPaths(problem).superset_cost(0) >= kForbidden) return kForbidden;
  std::int64_t best = kForbidden;
  std::vector<std::int64_t> transients;
  for (const Column& c : columns) transients.push_back(c.values.transient_bytes);
  for (const std::int64_t transient : distinct(std::move(transients))) {
    // Some layer has just this transient, the others at least.
    std::int64_t least = kForbidden / problem.layers / 4, own = least;
    for (const Column& c : columns) {
      if (c.values.transient_bytes < transient) continue;
      least = std::min(least, c.values.memory_bytes);
      if (c.values.transient_bytes == transient) own = std::min(own, c.values.memory_bytes);
    }
    best = std::min(best, own + least * (problem.layers - 1) +
                              std::max(transient, problem.transient_floor_bytes));
  }
  return best;
}

}  // namespace orrery::search

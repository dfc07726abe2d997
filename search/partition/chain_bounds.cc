#include "search/partition/chain_bounds.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/numbers.h"

namespace orrery::search {
namespace {

using namespace plan;  // names of LayerOperator

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 4;
constexpr std::size_t kTogether = 32;  // columns that are asked for at once

}  // namespace

ChainBounds::ChainBounds(const Operators& operators, const FusedTable& fused, const EdgeOf& edge_of)
    : operators_(operators), fused_(fused) {
  after_[kStreamOut].assign(as_index(op(kStreamOut).classes), 0);
  for (int i = kStreamOut - 1; i >= 0; --i) {
    edges_[as_index(i)] = edge_from(i, edge_of);
    after_[as_index(i)] = after_rows(edges_[as_index(i)], as_index(op(i).classes));
    if (i == kValueProduct) find_fused();
  }
}

std::int64_t ChainBounds::own(int i, int plan) const {
  return i == kStreamOut ? 0 : op(i).cost[as_index(plan)];
}

/// What it costs from the plan on, to the next layer's stream.
std::int64_t ChainBounds::from(int i, int plan) const {
  const std::int64_t apart =
      own(i, plan) + after_[as_index(i)][as_index(op(i).class_of[as_index(plan)])];
  return i == kScoreProduct ? std::min(apart, from_fused_[as_index(plan)]) : apart;
}

void ChainBounds::find_fused() {
  from_fused_.assign(op(kScoreProduct).cost.size(), kFar);
  for (std::size_t v = 0; v < fused_.cost.size(); ++v) {
    std::int64_t& least = from_fused_[as_index(fused_.scores[v])];
    const auto values_class = as_index(op(kValueProduct).class_of[v]);
    if (fused_.cost[v] < kNever)
      least = std::min(least, fused_.cost[v] + after_[kValueProduct][values_class]);
  }
}

ChainBounds::Edge ChainBounds::edge_from(int i, const EdgeOf& edge_of) const {
  Edge edge;
  edge.order.resize(op(i + 1).cost.size());
  std::iota(edge.order.begin(), edge.order.end(), 0);
  std::vector<std::int64_t> costs;
  for (const int p : edge.order) costs.push_back(from(i + 1, p));
  std::ranges::stable_sort(edge.order, {}, [&](int p) { return costs[as_index(p)]; });
  edge.chain = edge_of(i, edge.order);
  for (std::size_t at = 0; at < edge.order.size(); ++at)
    if (as_index(edge.chain.column[at]) == edge.least.size())  // the column's first, its cheapest
      edge.least.push_back(costs[as_index(edge.order[at])]);
  edge.bound = edge.least;
  for (std::size_t c = edge.bound.size(); c-- > 0;) {
    edge.bound[c] -= edge.chain.saved_by_column[c];
    if (c + 1 < edge.bound.size()) edge.bound[c] = std::min(edge.bound[c], edge.bound[c + 1]);
  }
  return edge;
}

/// Least over all columns, by row.
std::vector<std::int64_t> ChainBounds::after_rows(const Edge& edge, std::size_t rows) const {
  std::vector<std::int64_t> after(rows, kFar);
  std::array<Ticks, kTogether> cells;
  for (std::size_t row = 0; row < rows; ++row) {
    const Ticks saved = edge.chain.saved_by_row[row];
    for (std::size_t first = 0; first < edge.least.size(); first += kTogether) {
      if (edge.bound[first] - saved >= after[row]) break;
      const std::size_t n = std::min(kTogether, edge.least.size() - first);
      edge.chain.cells(row, first, {cells.data(), n});
      for (std::size_t c = 0; c < n; ++c)
        after[row] = std::min(after[row], edge.least[first + c] + cells[c]);
    }
  }
  return after;
}

/// Cost to every column from rows that are reached at `before`, where the whole can stay within the
/// limit.
std::vector<std::int64_t> ChainBounds::reached(const Edge& edge,
                                               const std::vector<std::int64_t>& before,
                                               std::int64_t limit) const {
  std::vector<std::int64_t> columns(edge.least.size(), kFar);
  std::array<Ticks, kTogether> cells;
  for (std::size_t row = 0; row < before.size(); ++row) {
    if (before[row] == kFar) continue;
    const Ticks saved = edge.chain.saved_by_row[row];
    for (std::size_t first = 0; first < columns.size(); first += kTogether) {
      if (before[row] + edge.bound[first] - saved > limit) break;
      const std::size_t n = std::min(kTogether, columns.size() - first);
      edge.chain.cells(row, first, {cells.data(), n});
      for (std::size_t c = 0; c < n; ++c)
        columns[first + c] = std::min(columns[first + c], before[row] + cells[c]);
    }
  }
  return columns;
}

std::int64_t ChainBounds::least() const {
  std::int64_t least = kFar;
  for (std::size_t p = 0; p < op(kStreamIn).cost.size(); ++p)
    least = std::min(least, from(kStreamIn, as_int(p)));
  return least;
}

std::array<PlanNumbers, kLayerOperators> ChainBounds::within(std::int64_t limit) const {
  std::array<PlanNumbers, kLayerOperators> kept;
  std::vector<std::int64_t> before(as_index(op(kStreamIn).classes), kFar);
  const auto keep = [&](int i, int plan, std::int64_t cost) {
    kept[as_index(i)].push_back(plan);
    std::int64_t& least = before[as_index(op(i).class_of[as_index(plan)])];
    least = std::min(least, cost);
  };
  for (int p = 0; p < as_int(op(kStreamIn).cost.size()); ++p)
    if (from(kStreamIn, p) <= limit) keep(kStreamIn, p, own(kStreamIn, p));
  std::vector<std::int64_t> scores(op(kScoreProduct).cost.size(), kFar);  // cost to their operands
  for (int i = kStreamIn + 1; i < kLayerOperators; ++i) {
    const Edge& edge = edges_[as_index(i - 1)];
    const std::vector<std::int64_t> columns = reached(edge, before, limit);
    before.assign(as_index(op(i).classes), kFar);
    for (std::size_t at = 0; at < edge.order.size(); ++at) {
      const int p = edge.order[at];
      const std::int64_t to = columns[as_index(edge.chain.column[at])];
      std::int64_t cost = to + own(i, p), whole = to + from(i, p);
      if (i == kScoreProduct) scores[as_index(p)] = to;
      if (i == kValueProduct && !fused_.cost.empty() && fused_.cost[as_index(p)] < kNever) {
        const std::int64_t in_one =
            scores[as_index(fused_.scores[as_index(p)])] + fused_.cost[as_index(p)];
        whole += std::min(in_one - cost, std::int64_t{0});
        cost = std::min(cost, in_one);
      }
      if (whole <= limit) keep(i, p, cost);
    }
  }
  auto& streams = kept[kStreamIn];
  for (const LayerOperator i : {kStreamMiddle, kStreamOut})
    streams.insert(streams.end(), kept[i].begin(), kept[i].end());
  for (PlanNumbers& plans : kept) {
    if (plans.empty()) plans = {0};  // a softmax, where attention in one operation wins by far
    std::ranges::sort(plans);
    plans.erase(std::unique(plans.begin(), plans.end()), plans.end());
  }
  kept[kStreamMiddle] = kept[kStreamOut] = streams;
  return kept;
}

bool proves(std::span<const std::int64_t> runs, std::int64_t limit) {
  const std::size_t layers = runs.size() - 1;
  // [layers] with a dearer one among them, and whether or not
  std::vector<std::int64_t> dearer(layers + 1, kFar), least(layers + 1, 0);
  for (std::size_t n = 1; n <= layers; ++n) {
    for (std::size_t before = 0; before < n; ++before)
      dearer[n] = std::min(dearer[n], least[before] + limit + 1 + runs[n - 1 - before]);
    least[n] = std::min(runs[n], dearer[n]);
  }
  return dearer[layers] > runs[layers];
}

std::int64_t proving_limit(std::span<const std::int64_t> runs) {
  std::int64_t too_low = -1, enough = runs.back();  // any dearer layer is more than all
  while (enough - too_low > 1) {
    const std::int64_t middle = std::midpoint(too_low, enough);
    (proves(runs, middle) ? enough : too_low) = middle;
  }
  return enough;
}

}  // namespace orrery::search

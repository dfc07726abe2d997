#include "sim/kernel/refinement.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace orrery::sim::kernel {
namespace {

struct Edge {
  std::uint32_t from, to, type;
  std::int64_t weight;
};

/// The naive twin: rounds over everything, until the number of cells stays.
std::vector<std::uint32_t> rounds(std::vector<std::uint32_t> cells,
                                  const std::vector<Edge>& edges) {
  // (cell, type): weight
  using Sums = std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t>;
  for (std::size_t before = 0;;) {
    std::vector<Sums> sums(cells.size());
    for (const Edge& e : edges) sums[e.to][{cells[e.from], e.type}] += e.weight;
    std::map<std::pair<std::uint32_t, Sums>, std::uint32_t> numbers;
    for (std::size_t x = 0; x < cells.size(); ++x) {
      cells[x] =
          numbers.try_emplace({cells[x], sums[x]}, static_cast<std::uint32_t>(numbers.size()))
              .first->second;
    }
    if (numbers.size() == before) return cells;
    before = numbers.size();
  }
}

RC_GTEST_PROP(RefinementProperty, EqualsRoundsOverEverything, ()) {
  const auto n = *rc::gen::inRange<std::uint32_t>(1, 40);
  std::vector<std::uint32_t> colours;
  for (std::uint32_t x = 0; x < n; ++x) colours.push_back(*rc::gen::inRange<std::uint32_t>(0, 2));
  std::vector<Edge> edges;
  const int m = *rc::gen::inRange(0, 80);
  for (int i = 0; i < m; ++i) {
    edges.push_back({*rc::gen::inRange<std::uint32_t>(0, n), *rc::gen::inRange<std::uint32_t>(0, n),
                     *rc::gen::inRange<std::uint32_t>(0, 3),
                     *rc::gen::inRange<std::int64_t>(1, 3)});
  }
  // a ring below: cells of more than one element survive
  const bool regular = *rc::gen::inRange(0, 2) == 0;
  if (regular) edges.clear();
  for (std::uint32_t x = 0; x < n; ++x) {
    edges.push_back({x, (x + 1) % n, 0, 1});
    edges.push_back({x, (x + 3) % n, 1, 2});
  }
  Refinement refinement(colours);
  for (const Edge& e : edges) refinement.add_edge(e.from, e.to, e.type, e.weight);
  RC_ASSERT(refinement.run() == rounds(colours, edges));
}

}  // namespace
}  // namespace orrery::sim::kernel

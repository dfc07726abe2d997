// The layer programs against brute force over all sequences, equal to the picosecond.
#include "search/programs/layer_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/rng.h"
#include "tests/oracle/search/random_layers.h"

namespace orrery::search {
namespace {

struct Totals {
  std::int64_t steady = 0, once = 0, memory = 0;
  bool canonical = true;
};

/// The definition of layer_program.h, word by word.
Totals evaluate(const LayerProblem& p, const std::vector<std::int32_t>& sequence) {
  Totals t;
  std::vector<LayerOption> layers;
  for (std::size_t i = 0; i < sequence.size(); ++i)
    layers.push_back(p.options[static_cast<std::size_t>(sequence[i])]);
  const auto k = static_cast<std::size_t>(p.layouts);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto l = static_cast<std::size_t>(layers[i].layout);
    t.steady += layers[i].steady_ps;
    t.steady += i == 0 ? p.entry_ps[l]
                       : p.transition_ps[static_cast<std::size_t>(layers[i - 1].layout) * k + l];
    t.once += layers[i].once_ps;
    t.canonical = t.canonical && follows(layers, sequence, i);
  }
  t.steady += p.exit_ps[static_cast<std::size_t>(layers.back().layout)];
  t.memory = naive_peak(p, layers);
  return t;
}

/// Every sequence of options in canonical order that fits.
template <class Visit>
void for_each_sequence(const LayerProblem& p, Visit&& visit) {
  std::vector<std::int32_t> choice(static_cast<std::size_t>(p.layers), 0);
  for (;;) {
    const Totals t = evaluate(p, choice);
    if (t.memory <= p.budget_bytes && t.canonical) visit(t.steady, t.once, t.memory);
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == static_cast<std::int32_t>(p.options.size()))
      choice[i++] = 0;
    if (i == choice.size()) return;
  }
}

std::optional<std::int64_t> brute_force(const LayerProblem& p, const Weights& w) {
  std::optional<std::int64_t> best;
  for_each_sequence(p, [&](std::int64_t steady, std::int64_t once, std::int64_t) {
    const std::int64_t cost = w.steady * steady + w.once * once;
    if (!best || cost < *best) best = cost;
  });
  return best;
}

std::int64_t objective(const LayerAnswer& a, const Weights& w) {
  return w.steady * a.steady_ps + w.once * a.once_ps;
}

/// The answer's own numbers, recomputed from its sequence.
void expect_consistent(const LayerProblem& p, const LayerAnswer& a) {
  ASSERT_EQ(a.sequence.size(), static_cast<std::size_t>(p.layers));
  const Totals t = evaluate(p, a.sequence);
  EXPECT_EQ(a.steady_ps, t.steady);
  EXPECT_EQ(a.once_ps, t.once);
  EXPECT_EQ(a.memory_bytes, t.memory);
  EXPECT_LE(a.memory_bytes, p.budget_bytes);
}

TEST(LayerProgramOracle, EqualLayersMatchBruteForce) {
  int feasible = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    base::Rng rng(seed);
    const LayerProblem p =
        random_problem(rng, 1 + static_cast<int>(rng.below(5)), 1 + static_cast<int>(rng.below(5)));
    const Weights w{1 + static_cast<std::int64_t>(rng.below(8)),
                    static_cast<std::int64_t>(rng.below(3))};
    const auto expected = brute_force(p, w);
    Effort effort;
    const Bounded found = solve_layers(p, w, kNoAnswer, effort);
    ASSERT_EQ(found.answer.has_value(), expected.has_value()) << "seed " << seed;
    EXPECT_TRUE(!expected || layer_bound(p, w).value <= *expected) << "seed " << seed;
    if (!expected) continue;
    ++feasible;
    EXPECT_EQ(objective(*found.answer, w), *expected) << "seed " << seed;
    EXPECT_TRUE(found.bound <= static_cast<__int128>(*expected)) << "seed " << seed;
    expect_consistent(p, *found.answer);
  }
  EXPECT_EQ(feasible, 2318);
}

TEST(LayerProgramOracle, SteadyLimitMatchesBruteForce) {
  int feasible = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    base::Rng rng(seed + 1'000'000);
    const LayerProblem p =
        random_problem(rng, 1 + static_cast<int>(rng.below(4)), 2 + static_cast<int>(rng.below(3)));
    std::int64_t limit = 0;
    for_each_sequence(p, [&](std::int64_t steady, std::int64_t, std::int64_t) {
      if (limit == 0 || rng.below(4) == 0) limit = steady;
    });
    std::optional<std::int64_t> expected;
    for_each_sequence(p, [&](std::int64_t steady, std::int64_t once, std::int64_t) {
      if (steady <= limit && (!expected || steady + once < *expected)) expected = steady + once;
    });
    Effort effort;
    const Bounded found = solve_layers(p, {1, 1}, kNoAnswer, effort, limit);
    ASSERT_EQ(found.answer.has_value(), expected.has_value()) << "seed " << seed;
    if (!expected) continue;
    ++feasible;
    EXPECT_EQ(objective(*found.answer, {1, 1}), *expected) << "seed " << seed;
  }
  EXPECT_EQ(feasible, 1615);
}

TEST(LayerProgramOracle, FrontierMatchesBruteForce) {
  int frontiers = 0;
  std::size_t points = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    base::Rng rng(seed + 2'000'000);
    const LayerProblem p =
        random_problem(rng, 1 + static_cast<int>(rng.below(4)), 1 + static_cast<int>(rng.below(5)));
    std::vector<std::pair<std::int64_t, std::int64_t>> all, expected, got;
    for_each_sequence(
        p, [&](std::int64_t n, std::int64_t y, std::int64_t) { all.emplace_back(n, n + y); });
    std::ranges::sort(all);
    for (const auto& point : all) {
      if (expected.empty() || point.second < expected.back().second) expected.push_back(point);
    }
    Effort effort;
    const Weights w{3 + draw(rng, 9), 1 + draw(rng, 3)};
    for (const LayerAnswer& a : layer_frontier(p, w, {}, effort)) {
      got.emplace_back(a.steady_ps, a.steady_ps + a.once_ps);
      expect_consistent(p, a);
    }
    ASSERT_EQ(got, expected) << "seed " << seed;
    if (expected.empty()) continue;
    ++frontiers;
    points += expected.size();
    // Limits cut the same frontier.
    const std::int64_t steady = expected[rng.below(expected.size())].first,
                       total = expected[rng.below(expected.size())].second;
    std::erase_if(expected,
                  [&](const auto& point) { return point.first > steady || point.second >= total; });
    got.clear();
    for (const LayerAnswer& a : layer_frontier(
             p, w, {.steady_ps = steady, .total_ps = total, .weighted = kNoAnswer}, effort))
      got.emplace_back(a.steady_ps, a.steady_ps + a.once_ps);
    ASSERT_EQ(got, expected) << "seed " << seed;
  }
  EXPECT_EQ(frontiers, 1558);
  EXPECT_EQ(points, 1970U);
}

TEST(LayerProgramOracle, LeastMemoryIsALowerBound) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    base::Rng rng(seed + 3'000'000);
    LayerProblem p =
        random_problem(rng, 1 + static_cast<int>(rng.below(4)), 1 + static_cast<int>(rng.below(4)));
    p.budget_bytes = kForbidden;
    std::int64_t expected = kForbidden;
    for_each_sequence(
        p, [&](std::int64_t, std::int64_t, std::int64_t m) { expected = std::min(expected, m); });
    EXPECT_LE(least_memory(p), expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace orrery::search

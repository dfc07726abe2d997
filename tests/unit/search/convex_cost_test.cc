#include "search/programs/convex_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/rng.h"

namespace orrery::search {
namespace {

std::int64_t small(__int128 value) {
  return value >= kNever ? std::numeric_limits<std::int64_t>::max()
                         : static_cast<std::int64_t>(value);
}

TEST(ConvexCost, WorkedExample) {
  const std::vector<Line> f{{0, 2}, {-6, 5}}, g{{0, 3}};
  const std::vector<ConvexCost> stages{ConvexCost(f, 1, 4), ConvexCost(g, 1, 4)};
  EXPECT_EQ(small(LeastSum(stages).value(5)), 13);
  EXPECT_EQ(LeastSum(stages).partition(5), (std::vector<int>{2, 3}));
  EXPECT_EQ(small(LeastSum(stages).value_through(5, 0, 3)), 15);
  EXPECT_EQ(small(ConvexCost(stages[0], stages[1]).at(5)), 13);
  EXPECT_EQ(small(least_maximum(stages, 5)), 9);
}

/// Few lines with small numbers: ties, equal slopes and lines below all others are common.
struct Drawn {
  std::vector<Line> lines;
  int fewest = 0, most = 0;
  [[nodiscard]] __int128 at(int n) const {
    if (n < fewest || n > most) return kNever;
    __int128 value = lines.front().constant + lines.front().slope * n;
    for (const Line& l : lines) value = std::max(value, l.constant + l.slope * n);
    return value;
  }
};
Drawn drawn(base::Rng& rng) {
  Drawn d;
  d.lines.push_back({0, static_cast<__int128>(rng.below(3))});
  for (std::uint64_t i = 0; i <= rng.below(5); ++i) {
    d.lines.push_back(
        {static_cast<__int128>(rng.below(40)) - 30, static_cast<__int128>(rng.below(8))});
  }
  std::ranges::stable_sort(d.lines, [](const Line& a, const Line& b) { return a.slope < b.slope; });
  d.fewest = static_cast<int>(rng.below(4));
  d.most = d.fewest + static_cast<int>(rng.below(7));
  return d;
}

/// Every partition; `join` of the stages' values, the least.
template <class Join>
__int128 every_partition(const std::vector<Drawn>& stages, std::size_t i, int layers, Join join,
                         std::optional<std::size_t> fixed = {}, int own = 0) {
  if (i == stages.size()) return layers == 0 ? 0 : kNever;
  __int128 best = kNever;
  for (int n = stages[i].fewest; n <= std::min(stages[i].most, layers); ++n) {
    if (fixed == i && n != own) continue;
    const __int128 rest = every_partition(stages, i + 1, layers - n, join, fixed, own);
    if (rest < kNever) best = std::min(best, join(stages[i].at(n), rest));
  }
  return best;
}

/// Of every second one the ends are cut off, in `d` too.
ConvexCost cost_of(Drawn& d, base::Rng& rng) {
  ConvexCost cost(d.lines, d.fewest, d.most);
  if (rng.below(2) == 0) {
    d.fewest += static_cast<int>(rng.below(2));
    d.most -= static_cast<int>(rng.below(2));
    d.most = std::max(d.most, d.fewest);
    cost.restrict_to(d.fewest, d.most);
    d.fewest = cost.fewest();
    d.most = cost.most();
  }
  return cost;
}

TEST(ConvexCost, SumsAndMaximaEqualThoseOfEveryPartition) {
  const auto sum = [](__int128 a, __int128 b) { return a + b; };
  const auto largest = [](__int128 a, __int128 b) { return std::max(a, b); };
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    base::Rng rng(seed);
    std::vector<Drawn> stages;
    std::vector<ConvexCost> costs;
    ConvexCost joined = ConvexCost::nothing();
    for (std::uint64_t i = 0; i <= rng.below(4); ++i) {
      stages.push_back(drawn(rng));
      costs.push_back(cost_of(stages.back(), rng));
    }
    if (!std::ranges::all_of(costs, &ConvexCost::possible)) continue;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      joined = ConvexCost(joined, costs[i]);
      for (int n = 0; n < 12; ++n)
        ASSERT_EQ(small(costs[i].at(n)), small(stages[i].at(n))) << "seed " << seed;
      for (int limit = -30; limit < 60; limit += 7) {
        int most = stages[i].fewest - 1;
        for (int n = stages[i].fewest; n <= stages[i].most && stages[i].at(n) <= limit; ++n)
          most = n;
        ASSERT_EQ(costs[i].most_within(limit), most) << "seed " << seed;
      }
    }
    for (const bool first : {true, false}) {
      const LeastSum least(costs, first);
      for (int layers = 0; layers < 25; ++layers) {
        const __int128 expected = every_partition(stages, 0, layers, sum);
        ASSERT_EQ(small(least.value(layers)), small(expected)) << "seed " << seed;
        ASSERT_EQ(small(joined.at(layers)), small(expected)) << "seed " << seed;
        ASSERT_EQ(small(least_maximum(costs, layers)),
                  small(every_partition(stages, 0, layers, largest)))
            << "seed " << seed;
        const std::size_t stage = seed % stages.size();
        for (int own = 0; own < 8; ++own)
          ASSERT_EQ(small(least.value_through(layers, stage, own)),
                    small(every_partition(stages, 0, layers, sum, stage, own)))
              << "seed " << seed;
        if (expected >= kNever) continue;
        const std::vector<int> partition = least.partition(layers);
        __int128 value = 0;
        int placed = 0;
        for (std::size_t i = 0; i < partition.size(); ++i) {
          value += stages[i].at(partition[i]);
          placed += partition[i];
        }
        ASSERT_EQ(placed, layers);
        ASSERT_EQ(small(value), small(expected)) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace orrery::search

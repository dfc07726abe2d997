// The least cycle that leaves room for all layers, worked by hand and against every way of sharing
// them out.
#include "search/costs/rank_room.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/rng.h"

namespace orrery::search {
namespace {

/// Least over all n_r of the largest N_r(n_r).
std::int64_t by_enumeration(const RankSpan& span, const std::vector<RankFit>& ranks,
                            std::size_t next, int layers) {
  if (next == ranks.size()) return layers == 0 ? 0 : kForbidden;
  std::int64_t least = kForbidden;
  for (int n = span.first; n <= std::min(span.end, layers); ++n) {
    const std::int64_t own = ranks[next].cycle_ps[static_cast<std::size_t>(n - span.first)];
    least = std::min(least, std::max(own, by_enumeration(span, ranks, next + 1, layers - n)));
  }
  return least;
}

TEST(RankRoom, WorkedExample) {
  const RankFit end{{15, 30, 45}, 15}, between{{10, 20, 90}, 10};
  const RankRoom room({1, 3}, {end, between, between, end});
  EXPECT_EQ(room.least_cycle_ps(8), 30);
  EXPECT_EQ(room.least_cycle_ps(9), 45);
  EXPECT_EQ(room.least_cycle_ps(11), 90);
  EXPECT_EQ(room.least_cycle_ps(13), kForbidden);
  EXPECT_EQ(room.least_layer_ps(), 10);
}

TEST(RankRoom, OtherEndsReplaceItsOwn) {
  const RankFit end{{15, 30, 45}, 15}, between{{10, 20, 90}, 10}, heavy{{50, 70, kForbidden}, 15};
  const RankRoom room({1, 3}, {end, between, between, end});
  EXPECT_EQ(room.least_cycle_ps(heavy, end, 4), 50);
  EXPECT_EQ(room.least_cycle_ps(heavy, heavy, 8), 70);
}

TEST(RankRoom, EqualsTheBestOfAllWaysToShareLayers) {
  base::Rng rng(5);
  for (int round = 0; round < 300; ++round) {
    const RankSpan span{1 + static_cast<int>(rng.below(2)), 3 + static_cast<int>(rng.below(3))};
    std::vector<RankFit> ranks;
    const std::uint64_t count = 2 + rng.below(4);
    for (std::uint64_t r = 0; r < count; ++r) {
      if (!ranks.empty() && rng.below(2) == 0) {
        ranks.push_back(RankFit(ranks.back()));
        continue;
      }
      RankFit fit;
      std::int64_t cycle = 0;
      for (int n = span.first; n <= span.end; ++n) {
        cycle = rng.below(8) == 0
                    ? kForbidden
                    : std::min(kForbidden, cycle + 1 + static_cast<std::int64_t>(rng.below(20)));
        fit.cycle_ps.push_back(cycle);
      }
      ranks.push_back(std::move(fit));
    }
    const int p = static_cast<int>(ranks.size()),
              layers = p * span.first + static_cast<int>(rng.below(static_cast<std::uint64_t>(
                                            p * (span.end - span.first) + 2)));
    EXPECT_EQ(RankRoom(span, ranks).least_cycle_ps(layers), by_enumeration(span, ranks, 0, layers))
        << "round " << round;
  }
}

}  // namespace
}  // namespace orrery::search

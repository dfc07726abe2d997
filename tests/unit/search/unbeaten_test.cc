#include "search/costs/unbeaten.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/numbers.h"
#include "base/rng.h"

namespace orrery::search {
namespace {

/// Each compared with each: what both overloads promise.
std::vector<std::size_t> compared_pair_by_pair(const std::vector<Point>& all) {
  std::vector<std::size_t> numbers(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) numbers[i] = i;
  return unbeaten(numbers, [&](std::size_t a, std::size_t b) {
    return all[a].group == all[b].group &&
           std::ranges::equal(all[a].costs, all[b].costs, std::ranges::less_equal{});
  });
}

TEST(Unbeaten, WhoTakesNoMoreOfAnythingBeatsOthersOfItsClass) {
  const std::vector<Point> all{{0, {2, 3}}, {0, {2, 2}}, {1, {9, 9}}, {0, {1, 4}}, {0, {1, 5}}};
  EXPECT_EQ(unbeaten(all), (std::vector<std::size_t>{1, 2, 3}));
}

TEST(Unbeaten, OfEqualsTheFirstIsKept) {
  const std::vector<Point> all{{1, {4, 4}}, {0, {1, 2}}, {0, {1, 2}}, {1, {4, 4}}, {0, {1, 2}}};
  EXPECT_EQ(unbeaten(all), (std::vector<std::size_t>{0, 1}));
}

TEST(Unbeaten, OfNoneNoneIsKept) { EXPECT_TRUE(unbeaten(std::vector<Point>{}).empty()); }

// Few values, so that many are equal, in classes that do not lie together.
TEST(Unbeaten, SortedAndPairByPairTheSameAreKept) {
  base::Rng rng(7);
  std::size_t kept = 0, of = 0;
  for (int turn = 0; turn < 300; ++turn) {
    const std::uint64_t goods = 1 + rng.below(4), values = 2 + rng.below(6);
    std::vector<Point> all(rng.below(60));
    for (Point& t : all) {
      t.group = as_int(rng.below(3));
      for (std::uint64_t g = 0; g < goods; ++g)
        t.costs.push_back(static_cast<std::int64_t>(rng.below(values)));
    }
    const std::vector<std::size_t> found = unbeaten(all);
    EXPECT_EQ(found, compared_pair_by_pair(all)) << "turn " << turn;
    kept += found.size();
    of += all.size();
  }
  EXPECT_GT(kept, of / 20);
  EXPECT_LT(kept, of / 2);
}

}  // namespace
}  // namespace orrery::search

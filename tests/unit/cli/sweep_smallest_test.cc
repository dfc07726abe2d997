// The smallest cluster in time, against a cluster whose speed is not monotone in its hosts.
#include "cli/tables/sweep_smallest.h"

#include <gmock/gmock.h>

#include <set>

namespace orrery::cli {
namespace {

using testing::HasSubstr;

/// 8 devices a host at MFU 0.5; 1,000 tokens a second and host, half of it where 3 divides the
/// hosts. 10^6 tokens in 100 s need 10,000 tokens a second: 10 hosts.
struct Cluster {
  std::set<int> asked;

  PointResult at(int hosts) {
    asked.insert(hosts);
    PointResult r;
    r.status = PointStatus::kOk;
    r.devices = r.ranks = 8 * hosts;
    r.mfu = hosts % 3 == 0 ? 0.25 : 0.5;
    r.tokens = 1000 * hosts;
    r.step_ps = hosts % 3 == 0 ? 2'000'000'000'000 : 1'000'000'000'000;
    r.days = 1e6 / r.tokens_per_s() / 86'400;
    r.met = r.tokens_per_s() >= 10'000;
    return r;
  }
  std::vector<PointResult> run(const std::vector<Assignment>& points) {
    std::vector<PointResult> results;
    for (const Assignment& point : points) results.push_back(at(std::stoi(point[0].second)));
    return results;
  }
};

Sweep sweep_of(const std::string& axis) {
  Sweep sweep;
  const std::vector<std::string> texts{axis};
  sweep.axes = parse_axes(texts).value();
  sweep.points = points_of(sweep.axes).value();
  return sweep;
}

base::Result<void> search(Cluster& cluster, Sweep& sweep, std::size_t at_a_time = 1) {
  return find_smallest(sweep, {.tokens = 1e6, .deadline = base::Seconds(100)}, at_a_time,
                       [&](const auto& points) { return cluster.run(points); });
}

TEST(SmallestCluster, IsTheFirstThatMeetsTheDeadline) {
  for (const std::size_t at_a_time : {1U, 3U, 64U}) {
    Cluster cluster;
    Sweep sweep = sweep_of("hosts=1..40:1");
    ASSERT_TRUE(search(cluster, sweep, at_a_time));
    EXPECT_EQ(sweep.points.back()[0].second, "10");
    EXPECT_TRUE(*sweep.results.back().met);
    EXPECT_EQ(sweep.points.size(), sweep.results.size());
  }
}

TEST(SmallestCluster, PassesOverWhatCannotBeInTimeAtItsPeak) {
  Cluster cluster;
  Sweep sweep = sweep_of("hosts=1..40:1");
  ASSERT_TRUE(search(cluster, sweep));
  // At MFU 1 a host makes 2,000 tokens a second: fewer than 5 hosts cannot.
  EXPECT_THAT(cluster.asked, testing::ElementsAre(5, 6, 7, 8, 9, 10, 40));
}

TEST(SmallestCluster, IsTheLargestWhereNoneSmallerWill) {
  Cluster cluster;
  Sweep sweep = sweep_of("hosts=6,9,20");
  ASSERT_TRUE(search(cluster, sweep));
  EXPECT_EQ(sweep.points.back()[0].second, "20");
  Sweep late = sweep_of("hosts=6,9");
  ASSERT_TRUE(search(cluster, late));
  EXPECT_FALSE(*late.results.back().met);
}

TEST(SmallestCluster, WantsHostsThatAscend) {
  Cluster cluster;
  for (const char* axis : {"hosts=8,4", "global-batch=8,16"}) {
    Sweep sweep = sweep_of(axis);
    const auto refused = search(cluster, sweep);
    ASSERT_FALSE(refused) << axis;
    EXPECT_THAT(base::to_string(refused.error()), HasSubstr("--smallest goes with one axis"));
  }
}

}  // namespace
}  // namespace orrery::cli

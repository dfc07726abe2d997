#include "topologies/routes/route_solver.h"

#include <gmock/gmock.h>

namespace orrery::topologies {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<uint32_t> solve(const RouteSolver& solver, uint32_t from, uint32_t to) {
  return solver.route(from, to, solver.costs_from(from));
}

// s = 0, t = 3 are devices, a = 1 and b = 2 switches.
TEST(RouteSolver, PrefersTheWiderBottleneckOverTheSmallerId) {
  const RouteSolver solver(LinkGraph({false, true, true, false},
                                     {{0, 1, 10, 1}, {1, 3, 4, 1}, {0, 2, 9, 1}, {2, 3, 5, 1}}));
  EXPECT_THAT(solve(solver, 0, 3), ElementsAre(2, 3));
}

TEST(RouteSolver, PrefersFewerHopsOverLessLatency) {
  const RouteSolver solver(
      LinkGraph({false, true, false}, {{0, 1, 10, 1}, {1, 2, 10, 1}, {0, 2, 1, 1000}}));
  EXPECT_THAT(solve(solver, 0, 2), ElementsAre(2));
}

TEST(RouteSolver, PrefersLessLatencyOverTheWiderBottleneck) {
  const RouteSolver solver(LinkGraph({false, true, true, false},
                                     {{0, 1, 100, 5}, {1, 3, 100, 5}, {0, 2, 1, 4}, {2, 3, 1, 5}}));
  EXPECT_THAT(solve(solver, 0, 3), ElementsAre(2, 3));
}

TEST(RouteSolver, BreaksFullTiesByLinkIds) {
  const RouteSolver solver(LinkGraph({false, true, true, false},
                                     {{1, 3, 7, 1}, {0, 2, 7, 1}, {0, 1, 7, 1}, {2, 3, 7, 1}}));
  EXPECT_THAT(solve(solver, 0, 3), ElementsAre(1, 3));  // 1 < 2 decides at the source
}

// The first half of s-a-c-t is wider than that of s-b-c-t, but both share the narrow last link: ids
// decide.
TEST(RouteSolver, AWiderPrefixDoesNotCountOnceTheBottleneckIsShared) {
  const RouteSolver solver(
      LinkGraph({false, true, true, true, false},
                {{0, 2, 5, 1}, {2, 3, 5, 1}, {0, 1, 9, 1}, {1, 3, 9, 1}, {3, 4, 2, 1}}));
  EXPECT_THAT(solve(solver, 0, 4), ElementsAre(0, 1, 4));
}

TEST(RouteSolver, ParallelLinksUseTheWiderOne) {
  const RouteSolver solver(LinkGraph({false, false}, {{0, 1, 3, 1}, {0, 1, 8, 1}}));
  EXPECT_THAT(solve(solver, 0, 1), ElementsAre(1));
}

TEST(RouteSolver, DevicesDoNotForward) {
  const RouteSolver solver(LinkGraph({false, false, false}, {{0, 1, 1, 1}, {1, 2, 1, 1}}));
  EXPECT_THAT(solve(solver, 0, 2), IsEmpty());
  EXPECT_THAT(solve(solver, 1, 2), ElementsAre(1));
  EXPECT_EQ(solver.costs_from(0)[2], kUnreachable);
  const std::vector<uint32_t> terminals{0, 1, 2};
  EXPECT_EQ(solver.unreachable_pair(terminals), (std::pair<uint32_t, uint32_t>{0, 2}));
}

TEST(RouteSolver, RouteToItselfIsEmpty) {
  const RouteSolver solver(LinkGraph({false, true}, {{0, 1, 1, 1}, {1, 0, 1, 1}}));
  EXPECT_THAT(solve(solver, 0, 0), IsEmpty());
}

TEST(RouteSolver, ASharedSwitchConnectsEveryPair) {
  const RouteSolver solver(
      LinkGraph({false, false, true}, {{0, 2, 1, 1}, {2, 0, 1, 1}, {1, 2, 1, 1}, {2, 1, 1, 1}}));
  const std::vector<uint32_t> terminals{0, 1};
  EXPECT_EQ(solver.unreachable_pair(terminals), std::nullopt);
}

TEST(RouteSolver, OneWayLinksAreNotReturned) {
  const RouteSolver solver(LinkGraph({false, false, true}, {{0, 2, 1, 1}, {2, 1, 1, 1}}));
  const std::vector<uint32_t> terminals{0, 1};
  EXPECT_EQ(solver.unreachable_pair(terminals), (std::pair<uint32_t, uint32_t>{1, 0}));
}

}  // namespace
}  // namespace orrery::topologies

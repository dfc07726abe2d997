#include "sim/kernel/max_min.h"

#include <gtest/gtest.h>

#include <vector>

namespace orrery::sim::kernel {
namespace {

/// A system under construction: variables are active at once.
struct System {
  MaxMin shares;
  ConstraintId link(std::int64_t capacity) { return shares.add_constraint(capacity); }
  VariableId flow(std::vector<Consumption> uses, std::int64_t cap = MaxMin::kNoCap) {
    const VariableId v = shares.add_variable(cap, uses);
    shares.activate(v);
    return v;
  }
};

// C = 10, one flow: x = 10.
TEST(MaxMin, AloneTakesTheWholeLink) {
  System s;
  const auto x = s.flow({{s.link(10)}});
  s.shares.solve();
  EXPECT_EQ(s.shares.rate(x), 10);
}

// x1 + x2 <= 10, x2 + 3 x3 <= 8: first level 8/4 = 2 stops x2, x3; x1 = 10 - 2.
TEST(MaxMin, WorkedExampleOfTheHeader) {
  System s;
  const auto l1 = s.link(10), l2 = s.link(8);
  const auto x1 = s.flow({{l1}}), x2 = s.flow({{l1}, {l2}}), x3 = s.flow({{l2, 3}});
  s.shares.solve();
  EXPECT_EQ(s.shares.rate(x1), 8);
  EXPECT_EQ(s.shares.rate(x2), 2);
  EXPECT_EQ(s.shares.rate(x3), 2);
}

// SimGrid's and everyone's parking lot: a long flow over two links of 12 and 6 with a local flow on
// each. Level 3 stops the long flow and the local one on the link of 6; the other takes 12 - 3.
TEST(MaxMin, ParkingLot) {
  System s;
  const auto a = s.link(12), b = s.link(6);
  const auto longest = s.flow({{a}, {b}}), on_a = s.flow({{a}}), on_b = s.flow({{b}});
  s.shares.solve();
  EXPECT_EQ(s.shares.rate(longest), 3);
  EXPECT_EQ(s.shares.rate(on_a), 9);
  EXPECT_EQ(s.shares.rate(on_b), 3);
}

// x1 <= 2 leaves 8 of 10 for x2, x3: 4 each.
TEST(MaxMin, WhatACapLeavesGoesToTheOthers) {
  System s;
  const auto l = s.link(10);
  const auto x1 = s.flow({{l}}, 2), x2 = s.flow({{l}}), x3 = s.flow({{l}}, 100);
  s.shares.solve();
  EXPECT_EQ(s.shares.rate(x1), 2);
  EXPECT_EQ(s.shares.rate(x2), 4);
  EXPECT_EQ(s.shares.rate(x3), 4);
}

// 11 over 3: 3 each, 2 < 3 left over.
TEST(MaxMin, RoundsDownToWholeRates) {
  System s;
  const auto l = s.link(11);
  const auto a = s.flow({{l}}), b = s.flow({{l}}), c = s.flow({{l}});
  s.shares.solve();
  for (const auto v : {a, b, c}) EXPECT_EQ(s.shares.rate(v), 3);
}

TEST(MaxMin, WithoutConstraintTheCapIsTheRate) {
  System s;
  const auto x = s.flow({}, 17);
  s.shares.solve();
  EXPECT_EQ(s.shares.rate(x), 17);
  s.shares.deactivate(x);
  EXPECT_EQ(s.shares.rate(x), 0);
}

TEST(MaxMin, ReportsWhatChangedAndSolvesOnlyTheComponentTouched) {
  System s;
  const auto a = s.link(10), b = s.link(10);
  const auto x = s.flow({{a}}), y = s.flow({{b}}), z = s.flow({{b}});
  s.shares.solve();
  const auto before = s.shares.ticks();
  s.shares.deactivate(z);
  const auto changed = s.shares.solve();
  ASSERT_EQ(changed.size(), 1U);
  EXPECT_EQ(changed[0], y);
  EXPECT_EQ(s.shares.rate(y), 10);
  EXPECT_EQ(s.shares.rate(x), 10);
  EXPECT_EQ(s.shares.ticks() - before, 1U);
  EXPECT_TRUE(s.shares.solve().empty());
}

TEST(MaxMin, TwoComponentsTouchedAtOnceAreBothSolved) {
  System s;
  const auto a = s.link(10), b = s.link(8);
  const auto x = s.flow({{a}}), y = s.flow({{b}});
  EXPECT_EQ(s.shares.solve().size(), 2U);
  EXPECT_EQ(s.shares.rate(x), 10);
  EXPECT_EQ(s.shares.rate(y), 8);
}

}  // namespace
}  // namespace orrery::sim::kernel

#include "sim/kernel/event_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace orrery::sim::kernel {
namespace {

base::SimTime at(std::int64_t ps) { return base::SimTime::from_ps(ps); }

TEST(EventQueue, PopsByTimeThenPhaseThenOrderOfPush) {
  EventQueue q;
  q.push(at(5), Phase::kRelease, 0, 10);
  q.push(at(3), Phase::kStart, 0, 20);
  q.push(at(3), Phase::kRelease, 0, 30);
  q.push(at(3), Phase::kStart, 0, 40);
  q.push(at(3), Phase::kDeliver, 0, 50);
  std::vector<std::uint32_t> order;
  while (!q.empty()) order.push_back(q.pop().target);
  EXPECT_EQ(order, (std::vector<std::uint32_t>{30, 50, 20, 40, 10}));
  EXPECT_EQ(q.now(), at(5));
}

TEST(EventQueue, TicketNamesTheEvent) {
  EventQueue q;
  const auto first = q.push(at(1), Phase::kRelease, 7, 1);
  const auto second = q.push(at(1), Phase::kRelease, 7, 1);
  EXPECT_NE(first, second);
  EXPECT_NE(first, 0U);
  EXPECT_EQ(q.pop().order, first);
  EXPECT_EQ(q.pop().order, second);
}

TEST(EventQueue, AcceptsEventsOfThePresentInstant) {
  EventQueue q;
  q.push(at(4), Phase::kStart, 0, 1);
  q.pop();
  q.push(at(4), Phase::kRelease, 0, 2);
  EXPECT_TRUE(q.more_now());
  EXPECT_EQ(q.pop().target, 2U);
  EXPECT_FALSE(q.more_now());
}

TEST(EventQueueDeathTest, PastEventsAreOurBug) {
  EventQueue q;
  q.push(at(4), Phase::kStart, 0, 1);
  q.pop();
  EXPECT_DEATH(q.push(at(3), Phase::kStart, 0, 1), "before now");
  EXPECT_DEATH(q.pop(), "check failed");
}

}  // namespace
}  // namespace orrery::sim::kernel

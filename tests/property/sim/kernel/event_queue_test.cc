#include "sim/kernel/event_queue.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace orrery::sim::kernel {
namespace {

/// The naive shadow: a list, searched whole for the least (time, phase, number).
struct Shadow {
  struct Item {
    std::int64_t at;
    int phase;
    std::uint64_t number;
    std::uint32_t target;
  };
  std::vector<Item> items;
  std::uint64_t next = 0;
  void push(std::int64_t at, int phase, std::uint32_t target) {
    items.push_back({at, phase, next++, target});
  }
  Item pop() {
    const auto least =
        std::min_element(items.begin(), items.end(), [](const Item& a, const Item& b) {
          return std::tie(a.at, a.phase, a.number) < std::tie(b.at, b.phase, b.number);
        });
    const Item item = *least;
    items.erase(least);
    return item;
  }
};

RC_GTEST_PROP(EventQueueProperty, PopsLikeItsNaiveShadow, ()) {
  EventQueue queue;
  Shadow shadow;
  const int steps = *rc::gen::inRange(1, 200);
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(steps); ++i) {
    if (queue.empty() || *rc::gen::inRange(0, 3) > 0) {
      // Many ties, and times that differ in any digit.
      const std::int64_t at = queue.now().ps() + (*rc::gen::inRange<std::int64_t>(0, 5)
                                                  << *rc::gen::element(0, 0, 0, 3, 8, 17, 40));
      const int phase = *rc::gen::inRange(0, static_cast<int>(kPhases));
      queue.push(base::SimTime::from_ps(at), static_cast<Phase>(phase), 0, i);
      shadow.push(at, phase, i);
    } else {
      const auto expected = shadow.pop();
      RC_ASSERT(queue.more_now() == (expected.at == queue.now().ps()));
      const Event event = queue.pop();
      RC_ASSERT(event.target == expected.target);
      RC_ASSERT(event.at.ps() == expected.at);
    }
    RC_ASSERT(queue.size() == shadow.items.size());
  }
}

}  // namespace
}  // namespace orrery::sim::kernel

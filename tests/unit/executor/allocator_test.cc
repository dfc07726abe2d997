#include "executor/state/allocator.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"

namespace orrery::executor {
namespace {

using plan::BufferCategory;

constexpr auto kParameter = static_cast<std::size_t>(BufferCategory::kParameter);

// A shadow that counts by hand, over random requests and releases.
TEST(CountingAllocator, EqualsAShadowCount) {
  CountingAllocator allocator;
  base::Rng rng(5);
  std::map<std::uint64_t, std::tuple<c10::DataPtr, std::int64_t, std::size_t>> held;
  std::int64_t live = 0, peak = 0;
  CategoryBytes by_category{}, at_peak{};
  for (std::uint64_t i = 0; i < 2000; ++i) {
    if (rng.below(2) == 0 || held.empty()) {
      const auto category = static_cast<std::size_t>(rng.below(plan::kBufferCategories));
      const auto bytes = static_cast<std::int64_t>(rng.below(300'000));
      const CategoryScope scope(allocator, static_cast<BufferCategory>(category));
      held.emplace(
          i, std::tuple(allocator.allocate(static_cast<std::size_t>(bytes)), bytes, category));
      live += bytes;
      by_category[category] += bytes;
      if (live > peak) {
        peak = live;
        at_peak = by_category;
      }
    } else {
      const auto victim =
          std::next(held.begin(), static_cast<std::ptrdiff_t>(rng.below(held.size())));
      live -= std::get<1>(victim->second);
      by_category[std::get<2>(victim->second)] -= std::get<1>(victim->second);
      held.erase(victim);
    }
    ASSERT_EQ(allocator.count().live, live);
  }
  EXPECT_EQ(allocator.count().peak, peak);
  EXPECT_EQ(allocator.count().at_peak, at_peak);
  EXPECT_EQ(allocator.count().live_by_category, by_category);
  held.clear();
  EXPECT_EQ(allocator.count().live, 0);
}

TEST(CountingAllocator, CountsNothingOfTheHosts) {
  CountingAllocator allocator;
  {
    const CategoryScope scope(allocator, BufferCategory::kHost);
    const c10::DataPtr there = allocator.allocate(100'000);
    EXPECT_NE(there.get(), nullptr);
    EXPECT_EQ(allocator.count().live, 0);
  }
  EXPECT_EQ(allocator.count().live, 0);
  EXPECT_EQ(allocator.count().peak, 0);
}

TEST(CountingAllocator, HandsOutALargeBlockAgain) {
  CountingAllocator allocator;
  c10::DataPtr first = allocator.allocate(1 << 20);
  void* const place = first.get();
  first.clear();
  c10::DataPtr second = allocator.allocate((1 << 20) - 100);
  EXPECT_EQ(second.get(), place);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place) % 64, 0U);
  second.clear();
}

TEST(CountingAllocator, CountsTensorsOfTheProcessByTheirCategory) {
  CountingAllocator& allocator = install_cpu_allocator();
  const MemoryCount before = allocator.count();
  {
    const CategoryScope scope(allocator, BufferCategory::kParameter);
    const at::Tensor t = at::empty({1000}, at::TensorOptions().dtype(at::kFloat));
    EXPECT_EQ(allocator.count().live - before.live, 4000);
    EXPECT_EQ(allocator.count().live_by_category[kParameter] - before.live_by_category[kParameter],
              4000);
  }
  EXPECT_EQ(allocator.count().live, before.live);
  allocator.reset_peak();
  EXPECT_EQ(allocator.count().peak, before.live);
}

}  // namespace
}  // namespace orrery::executor

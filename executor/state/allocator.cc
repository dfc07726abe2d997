#include "executor/state/allocator.h"

#include <c10/core/CPUAllocator.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::executor {

// Stands before the data. 64 bytes, so that data is aligned for AVX-512 as LibTorch's own blocks
// are.
struct alignas(64) CountingAllocator::Header {
  CountingAllocator* owner;
  std::size_t requested;
  std::size_t capacity;  // bytes after the header
  plan::BufferCategory category;
};

namespace {

constexpr std::size_t kAlignment = 64;

// Class sizes 2^k * {4, 5, 6, 7} / 4: the smallest not below `bytes`.
std::size_t size_class(std::size_t bytes) {
  if (bytes < CountingAllocator::kCachedBytes)
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t quarter = std::bit_floor(bytes) / 4;
  return (bytes + quarter - 1) / quarter * quarter;
}

}  // namespace

c10::DataPtr CountingAllocator::allocate(std::size_t bytes) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (bytes == 0) return {nullptr, nullptr, &CountingAllocator::release, cpu};
  const std::size_t capacity = size_class(bytes);
  const std::lock_guard lock(mutex_);
  Header* header = nullptr;
  if (capacity >= kCachedBytes) {
    if (auto found = free_.find(capacity); found != free_.end() && !found->second.empty()) {
      header = found->second.back();
      found->second.pop_back();
    }
  }
  if (header == nullptr) {
    void* block = std::aligned_alloc(kAlignment, sizeof(Header) + capacity);
    if (block == nullptr) throw std::bad_alloc();
    header = new (block) Header{};
  }
  *header = Header{this, bytes, capacity, category_};
  add(static_cast<std::int64_t>(bytes), category_);
  void* data = header + 1;
  return {data, data, &CountingAllocator::release, cpu};
}

c10::DeleterFnPtr CountingAllocator::raw_deleter() const { return &CountingAllocator::release; }

void CountingAllocator::copy_data(void* destination, const void* source, std::size_t count) const {
  std::memcpy(destination, source, count);
}

void CountingAllocator::release(void* data) {
  if (data == nullptr) return;
  Header* header = static_cast<Header*>(data) - 1;
  header->owner->give_back(header);
}

void CountingAllocator::add(std::int64_t bytes, plan::BufferCategory category) {
  if (category == plan::BufferCategory::kHost) return;
  count_.live += bytes;
  count_.live_by_category[as_index(category)] += bytes;
  if (count_.live <= count_.peak) return;
  count_.peak = count_.live;
  count_.at_peak = count_.live_by_category;
}

void CountingAllocator::give_back(Header* header) {
  const std::lock_guard lock(mutex_);
  add(-static_cast<std::int64_t>(header->requested), header->category);
  if (header->capacity >= kCachedBytes) {
    free_[header->capacity].push_back(header);
    return;
  }
  std::free(header);
}

plan::BufferCategory CountingAllocator::set_category(plan::BufferCategory category) {
  const std::lock_guard lock(mutex_);
  return std::exchange(category_, category);
}

MemoryCount CountingAllocator::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

void CountingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  count_.peak = count_.live;
  count_.at_peak = count_.live_by_category;
}

CountingAllocator& install_cpu_allocator() {
  // Never destroyed: tensors with static storage may be freed after it would be.
  static CountingAllocator* const allocator = [] {
    auto* made = new CountingAllocator();
    c10::SetCPUAllocator(made, /*priority=*/100);
    return made;
  }();
  ORRERY_CHECK(c10::GetCPUAllocator() == allocator,
               "another CPU allocator was installed with a higher priority");
  return *allocator;
}

}  // namespace orrery::executor

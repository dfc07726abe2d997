#pragma once
/// A caching, counting allocator for CPU tensors.
///
/// Why: glibc maps and unmaps blocks above its threshold (at most 32 MiB) at every allocation, and
/// the page faults make element-wise operations 3 to 5 times slower. Blocks of kCachedBytes and
/// more are kept in free lists by size class (four classes per power of two, so at most a quarter
/// is wasted) and handed out again, last in first out.
///
/// Counts are of *requested* bytes, so that they can equal what a Program declares, by the category
/// that stands when a block is requested. They are exact; the block remembers its category. What
/// stands for the host's memory (BufferCategory::kHost) is not counted.
#include <c10/core/Allocator.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "plan/program/program.h"

namespace orrery::executor {

using CategoryBytes = std::array<std::int64_t, plan::kBufferCategories>;

struct MemoryCount {
  std::int64_t live = 0;
  std::int64_t peak = 0;  ///< highest total since reset_peak()
  CategoryBytes live_by_category{};
  CategoryBytes at_peak{};  ///< by category, at the instant of the peak
};

/// Thread-safe. Outlives every tensor it served: LibTorch keeps a raw pointer to it for the life of
/// the process.
class CountingAllocator final : public c10::Allocator {
 public:
  static constexpr std::size_t kCachedBytes = 1 << 16;

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, std::size_t count) const override;

  /// Category of the requests that follow; returns the one that stood.
  plan::BufferCategory set_category(plan::BufferCategory category);
  [[nodiscard]] MemoryCount count() const;
  /// The peak starts anew at what is alive now.
  void reset_peak();

 private:
  struct Header;
  static void release(void* data);
  void give_back(Header* header);
  void add(std::int64_t bytes, plan::BufferCategory category);

  mutable std::mutex mutex_;
  plan::BufferCategory category_ = plan::BufferCategory::kActivation;
  MemoryCount count_;
  std::map<std::size_t, std::vector<Header*>> free_;  // by capacity
};

/// Makes the process's CPU tensors come from a CountingAllocator (the first call; later calls
/// return the same one). This is LibTorch's one registry of allocators, process-wide by its design.
CountingAllocator& install_cpu_allocator();

/// Sets a category for a scope.
class CategoryScope {
 public:
  CategoryScope(CountingAllocator& allocator, plan::BufferCategory category)
      : allocator_(allocator), before_(allocator.set_category(category)) {}
  ~CategoryScope() { allocator_.set_category(before_); }
  CategoryScope(const CategoryScope&) = delete;
  CategoryScope& operator=(const CategoryScope&) = delete;

 private:
  CountingAllocator& allocator_;
  plan::BufferCategory before_;
};

}  // namespace orrery::executor

#pragma once
/// \file
/// The memory of this process, and its threads.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "base/numbers.h"

namespace orrery::base {

/// Tells glibc's allocator to keep what is freed for what is allocated next, instead of giving it
/// back to the system. A simulation takes and frees the same megabytes for every plan, and a
/// quarter of its time went into page faults. Of the whole process: for main() to call. Without
/// effect where the C library is not glibc.
void keep_freed_memory();

/// make()(i) once for every i below `count`, on so many threads at most, the caller's among them.
/// Every thread has a worker of its own; results must not depend on which one does what.
template <class Make>
void run_in_parallel(std::size_t count, int threads, const Make& make) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    auto worker = make();
    for (std::size_t i = next++; i < count; i = next++) worker(i);
  };
  std::vector<std::jthread> helpers;
  for (int t = 1; t < std::min<int>(threads, as_int(count)); ++t) helpers.emplace_back(work);
  work();
}

}  // namespace orrery::base

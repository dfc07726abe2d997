#include "base/process.h"

#include <gtest/gtest.h>

#include <numeric>

namespace orrery::base {
namespace {

TEST(RunInParallel, DoesEachPieceOnceOnAnyNumberOfThreads) {
  for (const int threads : {0, 1, 2, 5, 300}) {
    std::vector<int> done(100, 0);
    run_in_parallel(done.size(), threads, [&] { return [&](std::size_t i) { ++done[i]; }; });
    EXPECT_EQ(done, std::vector<int>(100, 1)) << threads;
  }
  run_in_parallel(0, 4, [] { return [](std::size_t) { ADD_FAILURE(); }; });
}

TEST(RunInParallel, GivesEveryThreadAWorkerOfItsOwn) {
  std::atomic<int> workers{0};
  std::vector<int> sums(2, 0);
  run_in_parallel(1000, 2, [&] {
    return [&sum = sums[static_cast<std::size_t>(workers++)]](std::size_t) { ++sum; };
  });
  EXPECT_LE(workers, 2);
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0), 1000);
}

}  // namespace
}  // namespace orrery::base

// Goodput under failures: the formula, its optimum, and the process it describes.
#include "sim/scenario/goodput.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace orrery::sim {
namespace {

using base::Seconds;

const FailureModel kModel{Seconds(10'000), Seconds(50), Seconds(100)};

/// The published approximations of goodput.h.
Seconds young_interval(const FailureModel& m) {
  return Seconds(std::sqrt(2 * m.checkpoint.raw() * m.job_mtbf.raw()));
}
Seconds daly_interval(const FailureModel& m) {
  const double x = m.checkpoint.raw() / (2 * m.job_mtbf.raw());
  if (x >= 1) return m.job_mtbf;
  return Seconds(young_interval(m).raw() * (1 + std::sqrt(x) / 3 + x / 9) - m.checkpoint.raw());
}

TEST(Goodput, WorkedExample) {
  EXPECT_DOUBLE_EQ(young_interval(kModel).raw(), 1000);
  EXPECT_NEAR(daly_interval(kModel).raw(), 1000 * (1 + 0.05 / 3 + 0.0025 / 9) - 50, 1e-9);
  EXPECT_NEAR(best_interval(kModel).raw(), daly_interval(kModel).raw(), 0.1);
  EXPECT_NEAR(goodput(kModel, best_interval(kModel)), 0.8943, 5e-5);
}

TEST(Goodput, NoIntervalBeatsTheBest) {
  for (const double mtbf : {30.0, 1'000.0, 86'400.0, 1e7})
    for (const double checkpoint : {0.5, 20.0, 600.0}) {
      const FailureModel m{Seconds(mtbf), Seconds(checkpoint), Seconds(60)};
      const double best = goodput(m, best_interval(m));
      for (double t = mtbf / 1000; t < 5 * mtbf; t *= 1.05)
        EXPECT_LE(goodput(m, Seconds(t)), best * (1 + 1e-12))
            << mtbf << " " << checkpoint << " " << t;
      EXPECT_GE(best, goodput(m, daly_interval(m)) * (1 - 1e-12));
      if (checkpoint < mtbf / 50) {
        EXPECT_GT(goodput(m, daly_interval(m)), best * 0.9999);
      }
    }
}

TEST(Goodput, RareFailuresCostOnlyCheckpoints) {
  const FailureModel m{Seconds(1e15), Seconds(10), Seconds(100)};
  EXPECT_NEAR(goodput(m, Seconds(90)), 0.9, 1e-9);
  const TrainingRun run = simulate_run(m, Seconds(90), Seconds(900), 1);
  EXPECT_DOUBLE_EQ(run.wall.raw(), 1000);
  EXPECT_EQ(run.failures, 0);
}

// M = 10,000 s, C = 50 s, R = 100 s, t = 1,000 s: e^0.105 = 1.110711, e^0.005 = 1.005013, e^0.01 =
// 1.010050.
TEST(Goodput, ThePartsOfAnIntervalAddUpToIt) {
  const IntervalParts parts = interval_parts(kModel, Seconds(1000));
  EXPECT_NEAR(parts.working.raw(), 1056.98, 0.01);
  EXPECT_NEAR(parts.checkpointing.raw(), 50.125, 0.001);
  EXPECT_NEAR(parts.down.raw(), 11.127, 0.001);
  EXPECT_NEAR((parts.working + parts.checkpointing + parts.down).raw(),
              1000 / goodput(kModel, Seconds(1000)), 1e-9);
}

// Mean of wall time over many runs against Daly's expectation; the standard error is below 0.3 %.
TEST(Goodput, FormulaIsTheMeanOfSimulatedRuns) {
  for (const double interval : {300.0, 967.0, 4000.0}) {
    const double work = 200 * interval;
    double wall = 0;
    constexpr int kRuns = 300;
    for (int i = 0; i < kRuns; ++i)
      wall += simulate_run(kModel, Seconds(interval), Seconds(work),
                           1000 + static_cast<std::uint64_t>(i))
                  .wall.raw();
    EXPECT_NEAR(work * kRuns / wall, goodput(kModel, Seconds(interval)),
                0.01 * goodput(kModel, Seconds(interval)))
        << interval;
  }
}

// a = D / M = 2: 2/3; 2 * 2/3 / (2 + 4/3) = 2/5; 2 * 2/5 / (3 + 4/5) = 4/19.
TEST(Goodput, WaitingForRepairsIsErlangsLoss) {
  FailureModel m = kModel;
  EXPECT_EQ(waiting_share(m), 0);
  m.repair = Seconds(20'000);
  for (const double share : {2.0 / 3, 2.0 / 5, 4.0 / 19}) {
    EXPECT_NEAR(waiting_share(m), share, 1e-15);
    EXPECT_NEAR(goodput(m, Seconds(1000)), (1 - share) * goodput(kModel, Seconds(1000)), 1e-12);
    const IntervalParts parts = interval_parts(m, Seconds(1000));
    EXPECT_NEAR(parts.waiting / parts.all(), share, 1e-12);
    EXPECT_NEAR(parts.all().raw(), 1000 / goodput(m, Seconds(1000)), 1e-8);
    ++m.spares;
  }
  m.spares = 1000;
  EXPECT_LT(waiting_share(m), 1e-300);
}

// Repairs of one length, for which the formula holds as for any.
TEST(Goodput, WaitingIsThatOfSimulatedRuns) {
  for (const int spares : {0, 1, 3}) {
    FailureModel m = kModel;
    m.repair = Seconds(20'000);
    m.spares = spares;
    const double work = 2e6;
    double wall = 0;
    constexpr int kRuns = 300;
    for (int i = 0; i < kRuns; ++i)
      wall += simulate_run(m, Seconds(967), Seconds(work), 5000 + static_cast<std::uint64_t>(i))
                  .wall.raw();
    const double formula = goodput(m, Seconds(967));
    EXPECT_NEAR(work * kRuns / wall, formula, 0.01 * formula) << spares;
  }
}

TEST(Goodput, ARunIsAFunctionOfItsSeedAndAHopelessOneEnds) {
  EXPECT_EQ(simulate_run(kModel, Seconds(500), Seconds(1e6), 7).wall.raw(),
            simulate_run(kModel, Seconds(500), Seconds(1e6), 7).wall.raw());
  EXPECT_NE(simulate_run(kModel, Seconds(500), Seconds(1e6), 7).wall.raw(),
            simulate_run(kModel, Seconds(500), Seconds(1e6), 8).wall.raw());
  const TrainingRun hopeless =
      simulate_run({Seconds(1), Seconds(50), Seconds(1)}, Seconds(500), Seconds(1000), 1, 1000);
  EXPECT_FALSE(hopeless.finished);
  EXPECT_EQ(hopeless.failures, 1000);
}

TEST(Goodput, PercentilesAreNearestRanks) {
  const std::vector<double> samples{1, 2, 3, 4};
  EXPECT_EQ(percentile(samples, 1), 1);
  EXPECT_EQ(percentile(samples, 50), 2);
  EXPECT_EQ(percentile(samples, 51), 3);
  EXPECT_EQ(percentile(samples, 100), 4);
  const std::vector<double> goodputs = goodput_samples(kModel, Seconds(967), Seconds(1e6), 3, 50);
  EXPECT_TRUE(std::is_sorted(goodputs.begin(), goodputs.end()));
  EXPECT_LT(percentile(goodputs, 10), goodput(kModel, Seconds(967)));
  EXPECT_GT(percentile(goodputs, 90), goodput(kModel, Seconds(967)));
}

}  // namespace
}  // namespace orrery::sim

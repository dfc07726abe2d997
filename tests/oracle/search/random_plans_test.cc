// find_plan on random machines, models, batches and spaces against the enumeration of every plan,
// to the picosecond.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "search/loop/planner.h"
#include "tests/oracle/search/every_plan.h"
#include "tests/unit/search/random_machine.h"

namespace orrery::search {
namespace {

struct Tally {
  int limits = 0, feasible = 0, optimal = 0, equal = 0;
};

/// find_plan under one memory limit against every plan.
void compare_at(const EveryPlan& every, const costmodel::CostModel& cost, PlanRequest request,
                std::int64_t limit, Tally& tally) {
  ++tally.limits;
  request.memory_bytes = limit + cost.context_bytes();
  const auto answer = find_plan(cost, request);
  ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
  const std::int64_t expected = every.best(limit),
                     smallest = std::ranges::min(every.all, {}, &Priced::peak_bytes).peak_bytes;
  if (expected < 0) {
    EXPECT_EQ(answer->status, Status::kInfeasible);
    EXPECT_EQ(answer->shortfall_bytes, smallest - limit);
    return;
  }
  ASSERT_NE(answer->status, Status::kInfeasible)
      << "limit " << limit << ", the smallest needs " << smallest;
  EXPECT_LE(answer->certificate.bound_ps, expected) << "limit " << limit;
  EXPECT_GE(answer->certificate.cost_ps, expected) << "limit " << limit;
  EXPECT_EQ(answer->status == Status::kOptimal, answer->certificate.gap == 0);
  if (answer->status == Status::kOptimal) {
    EXPECT_EQ(answer->certificate.cost_ps, expected)
        << "limit " << limit << ", " << every.all.size() << " plans";
  }
  ++tally.feasible;
  tally.optimal += answer->status == Status::kOptimal ? 1 : 0;
  tally.equal += answer->certificate.cost_ps == expected ? 1 : 0;
  for (const std::int64_t peak : answer->certificate.stage_peak_bytes)
    EXPECT_LE(peak, request.memory_bytes);
}

// One to eight devices on one or two hosts, one to three layers of every kind, any batch, any
// dimensions, every vocabulary: limits at the peaks of some plans, to the byte, and one below.
void compare_random_problems(std::uint64_t stream, int problems, int feasible,
                             std::size_t plans_priced) {
  constexpr double kMostPlans = 4000;
  Tally tally;
  std::size_t plans = 0;
  base::Rng rng(stream);
  for (int n = 0; n < problems;) {
    const Machine machine = random_machine(rng, 8);
    model::ModelSpec model =
        block_kind(static_cast<int>(rng.below(kBlockKinds)), static_cast<int>(between(rng, 1, 3)));
    model.tied_embeddings = rng.below(3) == 0;
    const costmodel::CostModel cost = cost_of(machine, model);
    PlanRequest request;
    request.global_batch = between(rng, 1, 8);
    request.space = random_space(rng);
    request.top = 1;
    request.relax = false;
    const double count = EveryPlan::count(cost, request.space, request.global_batch);
    if (count < 2 || count > kMostPlans) continue;
    ++n;
    const EveryPlan every(cost, request.space, request.global_batch);
    ASSERT_EQ(static_cast<double>(every.all.size()), count);
    plans += every.all.size();
    for (int k = 0; k < 8; ++k) {
      SCOPED_TRACE(fmt::format("stream {}, problem {}, limit {}", stream, n, k));
      compare_at(every, cost, request, every.all[rng.below(every.all.size())].peak_bytes - (k % 2),
                 tally);
    }
  }
  std::cout << "optimal " << tally.optimal << ", the true optimum " << tally.equal << ", of "
            << tally.feasible << " that fit, of " << tally.limits << " limits, " << problems
            << " problems, " << plans << " plans\n";
  EXPECT_EQ(tally.limits, 8 * problems);
  EXPECT_EQ(tally.feasible, feasible);
  EXPECT_EQ(plans, plans_priced);
  EXPECT_GE(50 * tally.equal, 49 * tally.feasible);
  EXPECT_GE(100 * tally.optimal, 97 * tally.feasible);  // sharded or not is often nearly a tie
}

TEST(RandomPlansOracle, MatchEveryPlan) { compare_random_problems(21, 250, 1866, 64'300); }
TEST(RandomPlansOracle, OthersMatchEveryPlan) { compare_random_problems(22, 250, 1840, 84'918); }

}  // namespace
}  // namespace orrery::search

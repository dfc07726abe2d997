// Tables made to be hard end within a stated number of states, with an answer and a certified gap:
// what is proved lies below the answer by at most that. A state is counted in lumps (an order of
// layouts, a memory check), so a tenth above the limit is allowed.
#include <gtest/gtest.h>

#include <iostream>

#include "search/loop/planner.h"
#include "search/proof/certificate_check.h"
#include "search/table/instance_program.h"
#include "tests/oracle/search/adversarial.h"
#include "tests/unit/search/random_machine.h"

namespace orrery::search {
namespace {

constexpr std::uint64_t kStates = 200'000, kStatesWithLumps = kStates + kStates / 10;
// of a whole search, a fifth of the command's default
constexpr std::uint64_t kPlanStates = 4'000'000;

/// Parts per million that an answer may lie above what is proved. On one line which choice fills
/// the budget is a subset sum: what is left of the budget costs up to a change of one layer.
std::int64_t gap_ppm(Trouble trouble) {
  switch (trouble) {
    case Trouble::kCollinear: return 400;
    case Trouble::kOneLine: return 10'000;
    case Trouble::kNearTies: return 1;
    case Trouble::kEqual: return 0;
  }
  return 0;
}

void expect_gap(Trouble trouble, __int128 answer, __int128 proved, const std::string& what) {
  EXPECT_TRUE(proved <= answer) << what;
  EXPECT_TRUE((answer - proved) * 1'000'000 <= answer * gap_ppm(trouble))
      << what << ": " << 1e6 * static_cast<double>(answer - proved) / static_cast<double>(answer)
      << " ppm";
}

TEST(Adversarial, InstancesEndWithASmallGapThatTheCheckerRecomputes) {
  for (const Trouble trouble : kTroubles) {
    for (const bool equal : {false, true}) {
      for (const std::int64_t layers : {32, 128, 512}) {
        const std::string what = fmt::format("{}, {} {} layers", to_string(trouble), layers,
                                             equal ? "equal" : "different");
        base::Rng rng(7);
        const Instance instance = troubled_chain(rng, trouble, layers, equal);
        const Solution s = solve_instance(instance, kStates);
        ASSERT_NE(s.status, Status::kInfeasible) << what;
        EXPECT_LE(s.states, kStatesWithLumps) << what;
        EXPECT_TRUE(check_solution(instance, s).holds()) << what;
        expect_gap(trouble, s.time_ps, s.bound_ps, what);
        if (trouble == Trouble::kEqual || trouble == Trouble::kNearTies) {
          EXPECT_EQ(s.status, Status::kOptimal) << what;
        }
      }
    }
  }
}

TEST(Adversarial, LayerProgramsEndWithASmallGap) {
  for (const Trouble trouble : kTroubles) {
    for (const int layers : {32, 128, 1024}) {
      const std::string what = fmt::format("{}, {} layers", to_string(trouble), layers);
      base::Rng rng(7);
      const LayerProblem p = [&] {
        LayerProblem one = troubled_pipeline(rng, trouble, 1, layers).stages.front().layers;
        one.layers = layers;
        return one;
      }();
      const Weights w{4, 1};
      Effort effort{.limit = kStates};
      const Bounded found = solve_layers(p, w, kNoAnswer, effort);
      ASSERT_TRUE(found.answer.has_value()) << what;
      EXPECT_LE(effort.states, kStatesWithLumps) << what;
      EXPECT_LE(found.answer->memory_bytes, p.budget_bytes) << what;
      expect_gap(trouble, w.steady * found.answer->steady_ps + w.once * found.answer->once_ps,
                 found.bound, what);
    }
  }
}

TEST(Adversarial, PipelinesEndWithASmallGap) {
  for (const Trouble trouble : kTroubles) {
    for (const int stages : {2, 4, 8}) {
      for (const int layers : {32, 96}) {
        const std::string what =
            fmt::format("{}, {} layers on {} stages", to_string(trouble), layers, stages);
        base::Rng rng(7);
        const PipelineProblem p = troubled_pipeline(rng, trouble, stages, layers);
        Effort effort{.limit = kStates};
        const auto found = solve_pipeline(p, kForbidden, effort);
        ASSERT_TRUE(found.has_value()) << what;
        EXPECT_LE(effort.states, kStatesWithLumps) << what;
        const std::int64_t proved = effort.exhausted ? pipeline_bound(p) : found->cost_ps;
        expect_gap(trouble, found->cost_ps, proved, what);
      }
    }
  }
}

// A single switch and short sequences: data, ring and Ulysses parallelism, strided or not, cost
// about the same everywhere.
TEST(Adversarial, WholePlansOfManyEqualStrategiesEndWithASmallGap) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    base::Rng rng(seed + 18'000'000);
    Machine machine = random_machine(rng, 1);
    machine.devices_per_host = 8;
    const costmodel::CostModel cost = cost_of(machine, block_kind(0, 24));
    PlanRequest request;
    request.global_batch = 32;
    request.memory_bytes = between(rng, 50, 120) * 1'000'000;
    request.space =
        space_of("dp,zero1,zero2,zero3,tp,sp,ring,ulysses,hybrid,strided,pp,selective,recompute");
    request.max_states = kPlanStates;
    request.top = 1;
    const auto answer = find_plan(cost, request);
    ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
    ASSERT_FALSE(answer->candidates.empty()) << "seed " << seed;
    std::cout << "seed " << seed << ": " << to_string(answer->status) << ", " << answer->states
              << " states, gap " << 1e6 * answer->certificate.gap << " ppm\n";
    EXPECT_LE(answer->states, kPlanStates + kPlanStates / 10) << "seed " << seed;
    EXPECT_LE(answer->certificate.gap, 0.02) << "seed " << seed;
  }
}

}  // namespace
}  // namespace orrery::search

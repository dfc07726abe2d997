// Planted faults of gradients: contributions, reductions, updates.
#include "plan/check/check.h"

#include <gtest/gtest.h>

#include "tests/unit/plan/check_programs.h"

namespace orrery::plan {
namespace {

/// Four replicas in two shard groups; gradients are scattered in place, then cross the replicas.
Program hybrid() {
  Plan plan = small_plan(small_model(), {.dp = 4, .zero = 1});
  plan.vocabulary.shard = plan.stages[0].runs[0].strategy.shard = 2;
  return *lower(plan, small_model());
}

TEST(CheckGradients, HybridGradientsMustCrossTheReplicas) {
  const Program p = hybrid();
  Mutant m(p);
  EXPECT_EQ(text_of(m.faults()), "");
  m.drop(0, m.named(0, "all_reduce(owned gradient)"));
  EXPECT_CAUGHT(m, FaultKind::kNeverReduced);
}

TEST(CheckGradients, HybridGradientsCrossTheReplicasAfterTheyAreScattered) {
  const Program p = hybrid();
  Mutant m(p);
  const std::size_t scatter = m.named(0, "reduce_scatter(gradient)");
  ASSERT_EQ(m.ops(0)[scatter + 1].op->name, "all_reduce(owned gradient)");
  m.swap(0, scatter, scatter + 1);
  EXPECT_CAUGHT(m, FaultKind::kNeverReduced);
}

TEST(CheckGradients, RepeatedContributionIsCaught) {
  const Program p = data_parallel();
  Mutant m(p);
  m.repeat(0, m.named(0, "mlp_out", Phase::kBG));
  EXPECT_CAUGHT(m, FaultKind::kContributionRepeated);
}

TEST(CheckGradients, DroppedContributionIsCaught) {
  const Program p = data_parallel();
  Mutant m(p);
  m.edit(0, m.named(0, "mlp_out", Phase::kBG)).gradients.reset();
  EXPECT_CAUGHT(m, FaultKind::kContributionMissing);
}

TEST(CheckGradients, EveryPieceOfTheTokensContributesOnce) {
  const Program p =
      small_program(small_model(), {.tp = 2, .sequence_parallel = true, .tensor_pieces = 2});
  Mutant dropped(p), repeated(p);
  EXPECT_EQ(text_of(dropped.faults()), "");
  const std::size_t at = dropped.named(0, "mlp_out 2/2", Phase::kBG);
  dropped.edit(0, at).gradients.reset();
  EXPECT_CAUGHT(dropped, FaultKind::kContributionMissing);
  repeated.repeat(0, at);
  EXPECT_CAUGHT(repeated, FaultKind::kContributionRepeated);
}

TEST(CheckGradients, GradientThatIsNotZeroedKeepsTheLastStep) {
  const Program p = data_parallel();
  Mutant m(p);
  m.drop(0, m.first(0, [&](const OpInstance& o) {
    return is_segment(p, o, model::SegmentKind::kZeroGradient) &&
           p.buffers[o.op->updates[0].buffer].category == BufferCategory::kGradient;
  }));
  EXPECT_CAUGHT(m, FaultKind::kContributionRepeated);
}

TEST(CheckGradients, DroppedReductionIsCaught) {
  for (const int zero : {0, 1, 2, 3}) {
    const Program p = data_parallel(zero);
    Mutant m(p);
    m.drop(0, gradient_reduction(m, 0));
    EXPECT_CAUGHT(m, FaultKind::kNeverReduced) << "zero " << zero;
  }
}

TEST(CheckGradients, RepeatedReductionIsCaught) {
  for (const int zero : {0, 1, 2, 3}) {
    const Program p = data_parallel(zero);
    Mutant m(p);
    m.repeat(0, gradient_reduction(m, 0));
    EXPECT_CAUGHT(m, FaultKind::kReducedTwice) << "zero " << zero;
  }
}

TEST(CheckGradients, ReductionBeforeTheLastMicroBatchMissesIt) {
  const Program p = data_parallel();
  Mutant m(p);
  const std::size_t first_backward =
      m.first(0, [](const OpInstance& o) { return o.op->gradients.has_value(); });
  m.move(0, gradient_reduction(m, 0), first_backward);
  EXPECT_CAUGHT(m, FaultKind::kNeverReduced);
}

TEST(CheckGradients, PartialGradientsOfSequenceParallelismNeedTheTensorSum) {
  const Program p = small_program(small_model(), {.tp = 2, .sequence_parallel = true});
  Mutant m(p);
  m.drop(0, m.named(0, "all_reduce(replicated gradients)"));
  EXPECT_CAUGHT(m, FaultKind::kNeverReduced);
}

TEST(CheckGradients, SumOfWholeGradientsOverTheTensorGroupIsCaught) {
  const Program p = small_program(small_model(), {.tp = 2, .sequence_parallel = true});
  Mutant m(p);
  Op& op = m.edit(0, m.named(0, "all_reduce(replicated gradients)"));
  op.slice_elements = 0;
  op.bytes = p.buffers[op.updates[0].buffer].bytes();
  EXPECT_CAUGHT(m, FaultKind::kReducedTwice);
}

TEST(CheckGradients, DroppedUpdateIsCaught) {
  const Program p = data_parallel();
  Mutant m(p);
  m.drop(0, m.named(0, "adamw"));
  EXPECT_CAUGHT(m, FaultKind::kContributionMissing);
}

TEST(CheckGradients, RepeatedUpdateIsCaught) {
  const Program p = data_parallel();
  Mutant m(p);
  m.repeat(0, m.named(0, "adamw"));
  EXPECT_CAUGHT(m, FaultKind::kContributionRepeated);
}

TEST(CheckGradients, TiedTableThatIsNotSummedOverStagesMissesContributions) {
  const Program p = small_program(small_model(), {.tp = 2, .pp = 2});
  Mutant m(p);
  for (const std::size_t c : {0U, 1U}) {
    const auto tied = m.all(c, [&](const OpInstance& o) {
      return o.op->kind == OpKind::kCollective && p.groups[o.op->group].name == "tied";
    });
    ASSERT_FALSE(tied.empty());
    for (std::size_t i = tied.size(); i-- > 0;) m.drop(c, tied[i]);
  }
  EXPECT_CAUGHT(m, FaultKind::kContributionMissing);
}

TEST(CheckGradients, OneStageThatSkipsTheTiedSumIsCaught) {
  const Program p = small_program(small_model(), {.tp = 2, .pp = 2});
  Mutant m(p);
  m.drop(1, m.first(1, [&](const OpInstance& o) {
    return o.op->kind == OpKind::kCollective && p.groups[o.op->group].name == "tied";
  }));
  EXPECT_CAUGHT(m, FaultKind::kCollectiveOrder);
}

TEST(CheckGradients, ParametersThatAreNotGatheredAfterTheUpdateAreCaught) {
  const Program p = data_parallel(1);
  Mutant m(p);
  m.drop(0, m.named(0, "all_gather(parameters)"));
  EXPECT_CAUGHT(m, FaultKind::kNeverReduced);
}

TEST(CheckGradients, LossIsZeroedAndGetsEveryMicroBatchOnce) {
  const Program p = data_parallel();
  Mutant dropped(p), repeated(p), stale(p);
  dropped.drop(0, dropped.named(0, "loss"));
  repeated.repeat(0, repeated.named(0, "loss"));
  stale.drop(0, stale.named(0, "zero(loss)"));
  EXPECT_CAUGHT(dropped, FaultKind::kContributionMissing);
  EXPECT_CAUGHT(repeated, FaultKind::kContributionRepeated);
  EXPECT_CAUGHT(stale, FaultKind::kContributionRepeated);
}

}  // namespace
}  // namespace orrery::plan

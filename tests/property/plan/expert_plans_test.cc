// What holds for every Program holds for those of mixtures of experts.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>

#include "plan/check.h"
#include "plan/lower.h"
#include "tests/property/plan/random_plan.h"
#include "tests/unit/plan/mutant.h"

namespace orrery::plan {
namespace {

std::string text_of(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& f : faults) text += fmt::format("\nstage {} op {} {}: {}", f.stage, f.op, to_string(f.kind), f.message);
  return text;
}

TEST(ExpertPlans, EveryLoweredProgramIsCorrect) {
  ASSERT_TRUE(rc::check("zero faults", [](std::uint64_t seed) {
    const RandomPlan r = random_expert_plan(seed);
    const auto program = lower(r.plan, r.model);
    if (!program) RC_FAIL(base::to_string(program.error()));
    const std::vector<Fault> faults = check(*program);
    if (!faults.empty()) RC_FAIL(base::to_text(to_json(r.plan)) + text_of(faults));
  }));
}

/// Zeroing twice and gathering twice change nothing.
bool is_idempotent(const Program& program, const Op& op) {
  if (op.kind == OpKind::kCollective) return op.collective == Collective::kAllGather && !op.updates.empty();
  return op.kind == OpKind::kCompute && program.segments[op.segment].kind == model::SegmentKind::kZeroGradient && !op.updates.empty();
}

TEST(ExpertPlans, NoOperationCanBeLeftOutOrRepeated) {
  ASSERT_TRUE(rc::check("caught", [](std::uint64_t seed) {
    const RandomPlan r = random_expert_plan(seed);
    const auto program = lower(r.plan, r.model);
    RC_ASSERT(program.has_value());
    const auto c = static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(program->classes.size())));
    Mutant without(*program), twice(*program);
    const auto i = static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(without.ops(c).size())));
    const Op& op = *without.ops(c)[i].op;
    const std::string what = fmt::format("stage {} op {} '{}' {}", c, i, op.name, base::to_text(to_json(r.plan)));
    without.drop(c, i);
    if (without.faults().empty()) RC_FAIL("left out: " + what);
    if (is_idempotent(*program, op)) return;
    twice.repeat(c, i);
    if (twice.faults().empty()) RC_FAIL("repeated: " + what);
  }));
}

// Experts travel, tokens come back: a mixture without expert parallelism has the same parameters on all its ranks together.
TEST(ExpertPlans, RanksTogetherHoldEveryParameter) {
  ASSERT_TRUE(rc::check("each parameter once per replica", [](std::uint64_t seed) {
    const RandomPlan r = random_expert_plan(seed);
    const auto program = lower(r.plan, r.model);
    RC_ASSERT(program.has_value());
    for (std::uint32_t u = 0; u < program->units.size(); ++u) {
      const ParameterUnit& unit = program->units[UnitId(u)];
      for (const Parameter& p : unit.parameters) {
        if (!p.name.starts_with("blocks.")) continue;
        std::int64_t global = 1, local = 1;
        for (const std::int64_t n : p.shape) global *= n;
        for (const std::int64_t n : p.local_shape) local *= n;
        const std::int64_t owners = (p.shard_dim >= 0 ? unit.strategy.tp : 1) * (p.expert_dim >= 0 ? unit.strategy.ep : 1);
        RC_ASSERT(local * owners == global);
      }
    }
  }));
}

}  // namespace
}  // namespace orrery::plan

// The checker accepts every Program that lowering emits.
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

void expect_no_faults(const RandomPlan& r) {
  const auto program = lower(r.plan, r.model);
  if (!program) RC_FAIL(base::to_string(program.error()));
  const std::vector<Fault> faults = check(*program);
  if (!faults.empty()) RC_FAIL(base::to_text(to_json(r.plan)) + text_of(faults));
}

TEST(CheckProperty, EveryLoweredProgramIsCorrect) {
  ASSERT_TRUE(rc::check("zero faults", [](std::uint64_t seed) { expect_no_faults(random_plan(seed)); }));
}

TEST(CheckProperty, EveryLoweredProgramOfAnEncoderIsCorrect) {
  ASSERT_TRUE(rc::check("zero faults", [](std::uint64_t seed) { expect_no_faults(random_encoder_plan(seed)); }));
}

/// Zeroing twice and gathering twice change nothing.
bool is_idempotent(const Program& program, const Op& op) {
  if (op.kind == OpKind::kCollective) return op.collective == Collective::kAllGather && !op.updates.empty();
  return op.kind == OpKind::kCompute && program.segments[op.segment].kind == model::SegmentKind::kZeroGradient && !op.updates.empty();
}

TEST(CheckProperty, NoOperationCanBeLeftOutOrRepeated) {
  ASSERT_TRUE(rc::check("caught", [](std::uint64_t seed) {
    const RandomPlan r = random_plan(seed);
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

TEST(CheckProperty, LoweringIsDeterministic) {
  ASSERT_TRUE(rc::check("same fingerprint", [](std::uint64_t seed) {
    const RandomPlan r = random_plan(seed);
    const auto a = lower(r.plan, r.model), b = lower(r.plan, r.model);
    RC_ASSERT(a.has_value() && b.has_value());
    RC_ASSERT(a->fingerprint() == b->fingerprint());
  }));
}

}  // namespace
}  // namespace orrery::plan

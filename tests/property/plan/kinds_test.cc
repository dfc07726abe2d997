// What holds for every Program holds for those of models with blocks of several kinds.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <string>

#include "tests/property/plan/program_laws.h"
#include "tests/property/plan/random_kinds.h"

namespace orrery::plan {
namespace {

TEST(KindsPlans, EveryLoweredProgramIsCorrect) {
  ASSERT_TRUE(rc::check("zero faults",
                        [](std::uint64_t seed) { expect_no_faults(random_kinds_plan(seed)); }));
}

/// A sum of activations (gradients of what several blocks read) is not counted, unlike one of
/// parameter gradients.
bool is_activation_sum(const Program& program, const Op& op) {
  return op.kind == OpKind::kCompute &&
         program.segments[op.segment].kind == model::SegmentKind::kAccumulate &&
         op.updates.size() == 1 &&
         program.buffers[op.updates[0].buffer].category == BufferCategory::kActivation;
}

TEST(KindsPlans, NoOperationCanBeLeftOutOrRepeated) {
  ASSERT_TRUE(rc::check("caught", [](std::uint64_t seed) {
    expect_operation_matters(random_kinds_plan(seed), [](const Program& p, const Op& op) {
      return is_idempotent(p, op) || is_activation_sum(p, op);
    });
  }));
}

// Each parameter of the model is there, as often as there are layers of its kind, and in its whole
// size.
TEST(KindsPlans, ProgramHoldsTheModelsParameters) {
  ASSERT_TRUE(rc::check("the model's count", [](std::uint64_t seed) {
    const RandomPlan r = random_kinds_plan(seed);
    const auto program = lower(r.plan, r.model);
    RC_ASSERT(program.has_value());
    // (name, layer): a tied table is in two stages
    std::map<std::pair<std::string, std::int64_t>, std::int64_t> counted;
    for (const RankClass& c : program->classes) {
      for (const RankClass::Persistent& p : c.persistent) {
        const BufferDecl& decl = program->buffers[p.buffer];
        if (decl.category != BufferCategory::kParameter) continue;
        for (const Parameter& parameter : program->units[*decl.unit].parameters) {
          std::int64_t n = 1;
          for (const std::int64_t extent : parameter.shape) n *= extent;
          counted[{parameter.name, decl.scope == Scope::kStep ? -1 : p.layer}] = n;
        }
      }
    }
    std::int64_t sum = 0;
    for (const auto& [key, n] : counted) sum += n;
    RC_ASSERT(sum == r.model.parameters());
  }));
}

}  // namespace
}  // namespace orrery::plan

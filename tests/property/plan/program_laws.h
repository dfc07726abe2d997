#pragma once
/// What holds for every lowered Program, whatever the family of its model.
#include <rapidcheck.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "tests/property/plan/random_plan.h"
#include "tests/unit/plan/mutant.h"

namespace orrery::plan {

inline std::string text_of(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& f : faults)
    text += fmt::format("\nstage {} op {}: {}", f.stage, f.op, f.message);
  return text;
}

inline void expect_no_faults(const RandomPlan& r) {
  const auto program = lower(r.plan, r.model);
  if (!program) RC_FAIL(base::to_string(program.error()));
  const std::vector<Fault> faults = check(*program);
  if (!faults.empty())
    RC_FAIL(std::string(to_string(r.model.family)) + " " + base::to_text(to_json(r.plan)) +
            text_of(faults));
}

/// Zeroing twice and gathering twice change nothing.
inline bool is_idempotent(const Program& program, const Op& op) {
  if (op.kind == OpKind::kCollective)
    return op.collective == Collective::kAllGather && !op.updates.empty();
  return op.kind == OpKind::kCompute &&
         program.segments[op.segment].kind == model::SegmentKind::kZeroGradient &&
         !op.updates.empty();
}

/// Leaves one operation out, then repeats it where `may_repeat` does not exempt it: the checker
/// finds a fault each time.
template <class MayRepeat>
void expect_operation_matters(const RandomPlan& r, const MayRepeat& may_repeat) {
  const auto program = lower(r.plan, r.model);
  RC_ASSERT(program.has_value());
  const auto c =
      static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(program->classes.size())));
  Mutant without(*program), twice(*program);
  const auto i =
      static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(without.ops(c).size())));
  const Op& op = *without.ops(c)[i].op;
  const std::string what =
      fmt::format("stage {} op {} '{}' {}", c, i, op.name, base::to_text(to_json(r.plan)));
  without.drop(c, i);
  if (without.faults().empty()) RC_FAIL("left out: " + what);
  if (may_repeat(*program, op)) return;
  twice.repeat(c, i);
  if (twice.faults().empty()) RC_FAIL("repeated: " + what);
}

}  // namespace orrery::plan

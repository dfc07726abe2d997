/// A step whose runs are one operation each takes as long as the step itself.

#include "sim/step/fused_program.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include "costmodel/profiles/profiles.h"
#include "plan/lowering/lower.h"
#include "sim/simulate.h"
#include "tests/property/plan/random_kinds.h"
#include "tests/property/plan/random_plan.h"

namespace orrery::sim {
namespace {

/// On hosts with links of their own for tensor parallelism, on hosts whose groups share a bus, with
/// and without a slowdown of what overlaps.
costmodel::CostModel cost_of(const plan::RandomPlan& r) {
  const auto* cluster =
      *rc::gen::element("dgx-a100", "h100-fat-tree", "rtx-titan-pcie", "dgx-1-v100");
  auto topology = topologies::catalog_topology(cluster, *rc::gen::element<std::uint32_t>(1, 4));
  RC_ASSERT(topology.has_value());
  model::Profile profile;
  profile.name = "overlap";
  profile.overlap_slowdown = *rc::gen::element(1.0, 1.0, 1.0, 1.2);
  auto made = costmodel::CostModel::make(r.model, *std::move(topology), profile,
                                         {r.plan.precision, r.plan.sequence});
  RC_ASSERT(made.has_value());
  return *std::move(made);
}

void takes_as_long(const plan::RandomPlan& r) {
  const costmodel::CostModel cost = cost_of(r);
  if (r.plan.world_size() > static_cast<int>(cost.topology().device_count())) RC_DISCARD();
  const auto program = plan::lower(r.plan, r.model);
  RC_ASSERT(program.has_value());
  const auto report = simulate(*program, cost);
  RC_ASSERT(report.has_value());
  const std::int64_t step_ps = report->step_time_ps;
  const auto below = [&](std::int64_t cutoff_ps) {
    const auto step = simulated_step_ps(*program, cost, cutoff_ps);
    RC_ASSERT(step.has_value());
    return *step;
  };
  RC_ASSERT(below(std::numeric_limits<std::int64_t>::max()) == step_ps);
  RC_ASSERT(below(step_ps) == step_ps);
  RC_ASSERT(below(step_ps - 1) == std::nullopt);
}

RC_GTEST_PROP(FusedProgram, TakesAsLongAsItsOperations, (std::uint64_t seed)) {
  takes_as_long(plan::random_plan(seed, *rc::gen::element(4, 8)));
}

RC_GTEST_PROP(FusedProgram, TakesAsLongWithExperts, (std::uint64_t seed)) {
  takes_as_long(plan::random_expert_plan(seed, *rc::gen::element(4, 8)));
}

}  // namespace
}  // namespace orrery::sim

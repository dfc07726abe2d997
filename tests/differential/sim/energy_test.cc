/// The energy that a search minimises against the integral over the simulated timeline.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/numbers.h"
#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/energy/power.h"
#include "model/spec.h"
#include "plan/lowering/lower.h"
#include "sim/simulate.h"

namespace orrery::sim {
namespace {

using costmodel::Objective;
using costmodel::PowerKind;

struct Energies {
  double minimised = 0, integral = 0;  // joules
};
/// A layer's floor, by which bounds leave strategies out, is no more than what it draws.
void expect_floors(costmodel::LayerCosts& costs, const plan::Plan& plan) {
  const plan::LayerContext context{.precision = plan.precision,
                                   .sequence = plan.sequence,
                                   .micro_batch_sequences = plan.micro_batch_sequences(),
                                   .micro_batches = plan.micro_batches,
                                   .global_batch = plan.global_batch,
                                   .stages = plan.pipeline_degree(),
                                   .split_backward = plan::splits_backward(plan.schedule)};
  const int devices = plan.devices_per_stage();
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::LayerRun& run : stage.runs) {
      const std::int64_t all = costs.block(run, context, 0, devices).energy_ps,
                         least = costs.block_floor(run.strategy, context, 0, devices).energy_ps;
      EXPECT_GT(least, 0) << to_string(run.strategy);
      EXPECT_LE(least, all) << to_string(run.strategy);
    }
  }
}
/// Of a plan on hosts of a cluster of the catalog.
Energies both(const std::string& cluster, int hosts, const plan::UniformOptions& options) {
  auto model = model::find_model("llama-2-7b").value();
  model.layers = 8;
  const auto topology =
      topologies::catalog_topology(cluster, static_cast<std::uint32_t>(hosts)).value();
  const auto cost =
      costmodel::CostModel::make(model, topology, std::nullopt,
                                 {.precision = options.precision, .sequence = options.sequence})
          .value();
  const plan::Plan plan = plan::uniform_plan(model, cluster, hosts, options).value();
  costmodel::LayerCosts costs(cost, Objective::kEnergy), times(cost);
  const costmodel::PlanCost priced = costmodel::plan_cost(costs, plan).value(),
                            timed = costmodel::plan_cost(times, plan).value();
  EXPECT_EQ(priced.step_ps, timed.step_ps + priced.energy_ps);
  EXPECT_EQ(priced.pass_by_pass_ps, timed.pass_by_pass_ps + priced.energy_ps);
  EXPECT_EQ(priced.stage_ps, timed.stage_ps);
  EXPECT_EQ(priced.stage_sync_ps, timed.stage_sync_ps);
  EXPECT_EQ(timed.energy_ps, 0);
  expect_floors(costs, plan);
  const plan::Program program = plan::lower(plan, model).value();
  const SimReport report = simulate(program, cost, {.energy = true}).value();
  const double waiting = costmodel::MachinePower::of(topology)->waiting(topology).raw();
  EXPECT_NEAR(waiting, report.energy->waiting_watts, 1e-9 * waiting);
  return {waiting * real(report.step_time_ps + priced.energy_ps) / 1e12, report.energy->total()};
}

std::vector<plan::UniformOptions> plans(int devices) {
  const std::int64_t sequence = 2048, batch = 4 * std::int64_t{devices};
  const auto of = [&](plan::UniformOptions o) {
    o.global_batch = batch;
    o.sequence = sequence;
    return o;
  };
  return {of({.dp = devices, .zero = 3}),
          of({.dp = devices, .zero = 2, .recompute = plan::Recompute::kFull}),
          of({.tp = 4, .dp = devices / 4, .zero = 1, .sequence_parallel = true}),
          of({.tp = 2, .pp = 2, .dp = devices / 4}),
          of({.tp = 2, .pp = 2, .dp = devices / 4, .schedule = plan::Schedule::kZeroBubbleH1}),
          of({.pp = 4,
              .dp = devices / 4,
              .zero = 1,
              .schedule = plan::Schedule::kInterleaved,
              .virtual_stages = 2})};
}

TEST(EnergyForm, IsNearTheIntegral) {
  for (const char* cluster : {"dgx-a100", "dgx-h100"}) {
    for (const int hosts : {1, 2}) {
      double worst = 0;
      for (const plan::UniformOptions& options : plans(8 * hosts)) {
        const Energies e = both(cluster, hosts, options);
        worst = std::max(worst, std::abs(e.minimised / e.integral - 1));
      }
      EXPECT_LT(worst, 0.01) << cluster << ", " << hosts;
      EXPECT_GT(worst, 0) << "it is simplified";
      RecordProperty(cluster + std::to_string(hosts), std::to_string(worst));
    }
  }
}

struct Step {
  double seconds = 0;
  StepEnergy energy;
};
/// With a host that issues a kernel in so many seconds.
Step with_host(double kernel_seconds) {
  auto model = model::find_model("llama-2-7b").value();
  model.layers = 8;
  const auto topology = topologies::catalog_topology("dgx-h100", 1).value();
  const auto cost =
      costmodel::CostModel::make(
          model, topology,
          model::Profile{.framework = model::Framework{.kernel_seconds = kernel_seconds}},
          {.precision = model::Precision::kBFloat16, .sequence = 2048})
          .value();
  const plan::Plan plan =
      plan::uniform_plan(model, "dgx-h100", 1, {.tp = 8, .global_batch = 4, .sequence = 2048})
          .value();
  const SimReport report =
      simulate(plan::lower(plan, model).value(), cost, {.energy = true}).value();
  return {real(report.step_time_ps) / 1e12, *report.energy};
}

// A device that waits for the host computes no more than one that does not.
TEST(EnergyForm, WaitingForTheHostDrawsWhatWaitingDoes) {
  const Step quick = with_host(0), late = with_host(100e-6);
  ASSERT_GT(late.seconds, 1.5 * quick.seconds);
  const double waited = late.energy.waiting_watts * (late.seconds - quick.seconds);
  EXPECT_NEAR(late.energy.total(), quick.energy.total() + waited, 1e-3 * quick.energy.total());
  for (const PowerKind kind : {PowerKind::kProduct, PowerKind::kMemory, PowerKind::kInHost})
    EXPECT_NEAR(late.energy.devices[as_index(kind)], quick.energy.devices[as_index(kind)],
                1e-3 * quick.energy.total());
}

}  // namespace
}  // namespace orrery::sim

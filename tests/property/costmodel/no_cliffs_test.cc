#include <gtest/gtest.h>

#include <algorithm>

#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"
#include "costmodel/profiles/profiles.h"
#include "model/spec.h"
#include "plan/program/plan.h"

namespace orrery::costmodel {
namespace {

/// A step with tensor parallelism over up to eight devices of a host, by what ships for the device.
std::int64_t step_of(const topologies::Topology& topology) {
  const model::ModelSpec model = model::find_model("llama-2-7b").value();
  int tp = 1;
  while (2 * tp <= std::min(8, as_int(topology.devices_per_host()))) tp *= 2;
  const plan::Plan plan =
      plan::uniform_plan(
          model, topology.name(), 1,
          {.tp = tp, .zero = 0, .micro_batch = 4, .global_batch = 16, .sequence = 2048})
          .value();
  const CostModel cost = CostModel::make(model, topology, device_profile(topology, model).value(),
                                         {.precision = plan.precision, .sequence = plan.sequence})
                             .value();
  return plan_cost(cost, plan).value().step_ps;
}

// Measured collectives were dropped where a link's rate was not exactly the one measured on.
TEST(NoCliffs, LinksThatDifferByAThousandthChangeAStepByLessThanAHundredth) {
  int machines = 0;
  for (const topologies::CatalogEntry& entry : topologies::list_catalog()) {
    const auto topology = topologies::catalog_topology(entry.name);
    if (!topology) continue;
    ++machines;
    const auto step = real(step_of(*topology));
    for (const std::int64_t ppm : {999'000, 1'001'000}) {
      EXPECT_NEAR(real(step_of(topology->with_link_rates(ppm))) / step, 1, 0.01)
          << entry.name << " at " << ppm;
    }
    // Measured on links of 1, priced on links of 1.5: faster, by no more than that.
    const auto faster = real(step_of(topology->with_link_rates(1'500'000)));
    EXPECT_LE(faster, 1.001 * step) << entry.name;
    EXPECT_GE(faster, step / 1.5) << entry.name;
  }
  EXPECT_GT(machines, 15);
}

}  // namespace
}  // namespace orrery::costmodel

/// Errors of prices, three ways: by closed form, simulated, and the first-order form sqrt(sum of
/// squares) of what each source does alone.

#include <gtest/gtest.h>

#include <cmath>

#include "costmodel/profiles/profiles.h"
#include "costmodel/uncertainty/uncertainty.h"
#include "plan/lowering/lower.h"
#include "sim/simulate.h"

namespace orrery::sim {
namespace {

using costmodel::band_of;

double half_width(const costmodel::Band& band) { return std::log(band.high / band.low) / 2; }

const model::Spread kSpread{.operators = 0.06,
                            .products = 0.08,
                            .attention = 0.08,
                            .streams = 0.1,
                            .launches = 0.1,
                            .in_hosts = 0.2,
                            .fabric = 0.2,
                            .step = 0.03};

struct Scene {
  model::ModelSpec model = model::find_model("llama-2-7b").value();
  topologies::Topology topology = topologies::catalog_topology("dgx-a100").value();
  costmodel::CostModel cost =
      costmodel::CostModel::make(model, topology,
                                 costmodel::device_profile(topology, model).value(),
                                 {.precision = model::Precision::kBFloat16,
                                  .sequence = 1024,
                                  .library = costmodel::usual_library(topology).value()})
          .value();
  std::vector<plan::Plan> plans;
  Scene() {
    for (const plan::UniformOptions& o :
         {plan::UniformOptions{
              .tp = 2, .pp = 2, .dp = 2, .micro_batch = 2, .global_batch = 32, .sequence = 1024},
          plan::UniformOptions{.pp = 8, .micro_batch = 1, .global_batch = 8, .sequence = 1024},
          plan::UniformOptions{.tp = 8, .micro_batch = 1, .global_batch = 8, .sequence = 1024},
          plan::UniformOptions{
              .dp = 8, .zero = 3, .micro_batch = 2, .global_batch = 32, .sequence = 1024}})
      plans.push_back(plan::uniform_plan(model, "dgx-a100", 1, o).value());
  }
};

TEST(Draws, ByClosedFormAreThoseSimulated) {
  const Scene s;
  const auto errors = costmodel::draw_errors(kSpread, 8);
  for (const plan::Plan& plan : s.plans) {
    const auto program = plan::lower(plan, s.model).value();
    const auto simulated = [&](const costmodel::CostModel& cost) {
      return static_cast<double>(simulate(program, cost).value().step_time_ps);
    };
    const plan::Plan* const plans[] = {&plan};
    const auto by_form = costmodel::drawn_steps(s.cost, plans, errors).value().front();
    for (std::size_t k = 0; k < errors.size(); ++k)
      EXPECT_NEAR(by_form[k] / (simulated(s.cost.drawn(errors[k])) / simulated(s.cost)), 1, 0.01)
          << k;
  }
}

TEST(Draws, AgreeWithTheFirstOrderForm) {
  const Scene s;
  for (const plan::Plan& plan : s.plans) {
    double squares = 0;
    for (const auto& [name, field] : model::kSpreadFields) {
      model::Spread one;
      one.*field = kSpread.*field;
      const double w = half_width(band_of(s.cost, plan, one).value());
      squares += w * w;
    }
    // measured 0.99, 1.13, 1.22 and 1.02; over eight tensor ranks most kernels wait for the host
    const double tolerance = plan.vocabulary.tp == 8 ? 0.25 : 0.2;
    EXPECT_NEAR(half_width(band_of(s.cost, plan, kSpread).value()) / std::sqrt(squares), 1,
                tolerance);
  }
}

}  // namespace
}  // namespace orrery::sim

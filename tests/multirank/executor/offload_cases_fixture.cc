#include <stdexcept>

#include "plan_cases_fixture.h"

namespace orrery::executor::testing {

std::vector<PlanCase> offload_cases() {
  const auto offloads = [](std::string name, plan::UniformOptions options) {
    options.recompute = plan::Recompute::kOffload;
    options.global_batch = 8;
    options.sequence = 32;
    options.precision = model::Precision::kFloat32;
    const auto make = [options](const model::ModelSpec& model) {
      base::Result<plan::Plan> made = plan::uniform_plan(model, "local", 1, options);
      if (!made) throw std::runtime_error(base::to_string(made.error()));
      return *std::move(made);
    };
    return PlanCase{std::move(name), options.tp * options.pp * options.dp, make};
  };
  return {offloads("dp2_zero3_offload", {.dp = 2, .zero = 3, .micro_batch = 1}),
          offloads("pp2_interleaved_offload", {.pp = 2,
                                               .states = plan::States::kHost,
                                               .schedule = plan::Schedule::kInterleaved,
                                               .micro_batch = 2,
                                               .virtual_stages = 2}),
          offloads("tp2_sp_pp2_offload",
                   {.tp = 2, .pp = 2, .sequence_parallel = true, .micro_batch = 2})};
}

}  // namespace orrery::executor::testing

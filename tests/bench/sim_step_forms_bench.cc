/// How far the two forms of a step's time are from the simulated step, by schedule: every uniform
/// plan of a few models and clusters that fits, a twelfth of them. Counters: plans; of the closed
/// form and of the form pass by pass (costmodel/closed_form/step_times.h) the mean absolute error,
/// its 90th percentile and the largest error of either sign, in percent of the simulated time.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/profiles/profiles.h"
#include "model/spec.h"
#include "plan/lowering/lower.h"
#include "sim/simulate.h"

namespace orrery::sim {
namespace {

struct Scene {
  const char *model, *cluster;
  std::uint32_t hosts;
  std::int64_t batch, sequence;
};
constexpr std::array kScenes{
    Scene{"gpt2-xl", "dgx-1-v100", 1, 64, 1024}, Scene{"llama-2-7b", "rtx-titan-pcie", 2, 32, 2048},
    Scene{"llama-2-7b", "dgx-a100", 1, 64, 2048}, Scene{"llama-2-13b", "dgx-h100", 4, 128, 4096},
    Scene{"llama-3-70b", "dgx-h100", 16, 256, 8192}};

/// Every uniform plan of one schedule.
template <class Visit>
void uniform_plans(const Scene& scene, const model::ModelSpec& model, int world,
                   plan::Schedule schedule, const Visit& visit) {
  plan::UniformOptions o;
  o.schedule = schedule;
  o.global_batch = scene.batch;
  o.sequence = scene.sequence;
  o.uneven_stages = true;
  const bool interleaved = schedule == plan::Schedule::kInterleaved;
  for (o.pp = interleaved ? 2 : 1; o.pp <= world; o.pp *= 2) {
    for (o.tp = 1; o.tp * o.pp <= world && o.tp <= 8; o.tp *= 2) {
      o.dp = world / o.pp / o.tp;
      for (o.micro_batch = 1; o.micro_batch * o.dp <= scene.batch; o.micro_batch *= 2) {
        for (o.virtual_stages = interleaved ? 2 : 1; o.virtual_stages <= (interleaved ? 5 : 1);
             ++o.virtual_stages) {
          for (o.zero = 0; o.zero <= 3; ++o.zero) {
            for (const bool sp : {false, true}) {
              o.sequence_parallel = sp;
              if (sp && o.tp == 1) continue;
              for (const auto recompute : {plan::Recompute::kNone, plan::Recompute::kFull}) {
                o.recompute = recompute;
                if (const auto plan = plan::uniform_plan(model, scene.cluster, 1, o)) visit(*plan);
              }
            }
          }
        }
      }
    }
  }
}

struct Errors {
  std::vector<double> all;
  void add(std::int64_t form, std::int64_t simulated) {
    all.push_back(100.0 * static_cast<double>(form - simulated) / static_cast<double>(simulated));
  }
  void report(benchmark::State& state, const std::string& name) {
    if (all.empty()) return;
    std::ranges::sort(all);
    std::vector<double> absolute;
    double sum = 0;
    for (const double e : all) {
      absolute.push_back(std::abs(e));
      sum += std::abs(e);
    }
    std::ranges::sort(absolute);
    state.counters[name + "_mean_%"] = sum / static_cast<double>(all.size());
    state.counters[name + "_p90_%"] = absolute[absolute.size() * 9 / 10];
    state.counters[name + "_least_%"] = all.front();
    state.counters[name + "_most_%"] = all.back();
  }
};

/// Arguments: scene, schedule.
void forms(benchmark::State& state) {
  const Scene& scene = kScenes[static_cast<std::size_t>(state.range(0))];
  const auto schedule = static_cast<plan::Schedule>(state.range(1));
  const model::ModelSpec model = model::find_model(scene.model).value();
  const auto cost =
      costmodel::CostModel::make(
          model, topologies::catalog_topology(scene.cluster, scene.hosts).value(), std::nullopt,
          {.precision = model::Precision::kBFloat16, .sequence = scene.sequence})
          .value();
  const auto world = static_cast<int>(cost.topology().device_count());
  const std::int64_t memory = cost.topology().device_models().front().memory_bytes;
  const bool prints = std::getenv("ORRERY_PRINT_FORMS") != nullptr;
  Errors closed, passes;
  for (auto _ : state) {
    costmodel::LayerCosts costs(cost);
    closed = passes = {};
    std::size_t seen = 0;
    uniform_plans(scene, model, world, schedule, [&](const plan::Plan& plan) {
      const auto priced = costmodel::plan_cost(costs, plan);
      if (!priced || std::ranges::max(priced->stage_peak_bytes) > memory) return;
      if (seen++ % 12 != 0) return;  // a sample
      const auto program = plan::lower(plan, model).value();
      const std::int64_t simulated = simulate(program, cost)->step_time_ps;
      closed.add(priced->step_ps, simulated);
      passes.add(priced->pass_by_pass_ps, simulated);
      if (prints)
        std::printf("%s pp%d v%d m%lld %s: closed %+.2f passes %+.2f %lld\n", scene.model,
                    plan.pipeline_degree(), plan.virtual_stages,
                    static_cast<long long>(plan.micro_batches),
                    plan::to_string(plan.stages.front().runs.front().strategy).c_str(),
                    closed.all.back(), passes.all.back(), static_cast<long long>(simulated));
    });
  }
  state.counters["plans"] = static_cast<double>(closed.all.size());
  closed.report(state, "closed_form");
  passes.report(state, "pass_by_pass");
  state.SetLabel(std::string(scene.model) + " " + scene.cluster + " " +
                 std::string(plan::to_string(schedule)));
}
BENCHMARK(forms)->ArgsProduct({{0, 1, 2, 3, 4}, {0, 1, 2, 3}})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery::sim

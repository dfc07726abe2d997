// States of the dynamic programs per second, and whole searches.
#include <benchmark/benchmark.h>

#include "costmodel/profiles.h"
#include "search/layer_program.h"
#include "search/planner.h"
#include "search/stage_model.h"
#include "topologies/topology.h"

namespace orrery::search {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

costmodel::CostModel llama_on_a100() {
  const model::ModelSpec model = model::find_model("llama-2-7b").value();
  return costmodel::CostModel::make(model, topologies::catalog_topology("dgx-a100").value(),
                                    costmodel::find_profile("llama2-7b-a100-8gpu", model).value(),
                                    {model::Precision::kBFloat16, 2048})
      .value();
}

void set_states(benchmark::State& state, std::uint64_t states) {
  state.counters["states/s"] = benchmark::Counter(static_cast<double>(states), benchmark::Counter::kIsRate);
}

/// One stage of real costs, L layers; memory per layer as on 36 GiB with 32 layers.
void layer_program(benchmark::State& state) {
  const costmodel::CostModel cost = llama_on_a100();
  const Space space;
  costmodel::LayerCosts costs(cost);
  StageModel stages(costs, space, 64, 36 * kGiB);
  const plan::LayerStrategy vocabulary = stages.vocabulary_of(8, 4).leaves.front();
  LayerProblem problem = stages.pipeline({1, 4, plan::Schedule::k1F1B, vocabulary}).stages.front().layers;
  problem.layers = static_cast<int>(state.range(0));
  problem.budget_bytes = problem.budget_bytes / 32 * problem.layers;
  Effort effort;
  for (auto _ : state) benchmark::DoNotOptimize(solve_layers(problem, {4, 1}, kNoAnswer, effort));
  set_states(state, effort.states);
}
BENCHMARK(layer_program)->Arg(32)->Arg(80)->Arg(1024)->Unit(benchmark::kMicrosecond);

void find_plan_llama(benchmark::State& state) {
  const costmodel::CostModel cost = llama_on_a100();
  PlanRequest request;
  request.cluster = "dgx-a100";
  request.memory_bytes = state.range(0) * kGiB;
  request.global_batch = 64;
  std::uint64_t states = 0, problems = 0;
  for (auto _ : state) {
    const auto answer = find_plan(cost, request);
    states += answer->states;
    problems += answer->problems;
  }
  set_states(state, states);
  state.counters["problems/s"] = benchmark::Counter(static_cast<double>(problems), benchmark::Counter::kIsRate);
}
BENCHMARK(find_plan_llama)->Arg(16)->Arg(20)->Arg(36)->Arg(80)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery::search

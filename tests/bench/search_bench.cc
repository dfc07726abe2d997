// States of the dynamic programs per second, whole searches (tables included, one thread), plans
// priced by brute force.
#include <benchmark/benchmark.h>

#include <memory>

#include "costmodel/profiles/profiles.h"
#include "search/costs/stage_model.h"
#include "search/explain/uniform_sweep.h"
#include "search/loop/best_first.h"
#include "search/loop/planner.h"
#include "search/programs/layer_program.h"
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
  state.counters["states/s"] =
      benchmark::Counter(static_cast<double>(states), benchmark::Counter::kIsRate);
}

/// One stage of real costs, L layers; memory per layer as on 36 GiB with 32 layers.
void layer_program(benchmark::State& state) {
  const costmodel::CostModel cost = llama_on_a100();
  const Space space;
  costmodel::LayerCosts costs(cost);
  StageModel stages(costs, space, 64, 36 * kGiB);
  const plan::LayerStrategy vocabulary = stages.vocabulary_of(8, 4).leaves.front();
  LayerProblem problem =
      stages.pipeline({.devices = 8, .micro_batches = 4, .vocabulary = vocabulary})
          .stages.front()
          .layers;
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
  state.counters["problems/s"] =
      benchmark::Counter(static_cast<double>(problems), benchmark::Counter::kIsRate);
}
BENCHMARK(find_plan_llama)->Arg(16)->Arg(20)->Arg(36)->Arg(80)->Unit(benchmark::kMillisecond);

struct Case {
  const char* model;
  const char* cluster;
  std::uint32_t hosts;
  std::int64_t sequence, global_batch, gib;  // gib 0: the device's own
  const char* profile;
};
costmodel::CostModel cost_of(const Case& c, std::int64_t layers = 0) {
  model::ModelSpec model = model::find_model(c.model).value();
  if (layers > 0) model.layers = layers;
  std::optional<model::Profile> profile;
  if (c.profile[0] != 0) profile = costmodel::find_profile(c.profile, model).value();
  return costmodel::CostModel::make(model, topologies::catalog_topology(c.cluster, c.hosts).value(),
                                    profile, {model::Precision::kBFloat16, c.sequence})
      .value();
}
PlanRequest request_of(const Case& c, const costmodel::CostModel& cost) {
  PlanRequest request;
  request.cluster = c.cluster;
  request.hosts = static_cast<int>(c.hosts);
  request.global_batch = c.global_batch;
  request.memory_bytes =
      c.gib > 0 ? c.gib * kGiB : cost.topology().device_models().front().memory_bytes;
  return request;
}
constexpr Case kLlama7b{"llama-2-7b", "dgx-a100", 1, 2048, 64, 36, "llama2-7b-a100-8gpu"};
constexpr Case k70bOn128{"llama-3-70b", "dgx-h100", 16, 4096, 256, 0, ""};
constexpr Case k70bOn1024{"llama-3-70b", "dgx-h100", 128, 8192, 1024, 0, ""};
constexpr Case k405bOn16384{"llama-3-405b", "dgx-h100", 2048, 8192, 2048, 0, ""};

/// Search alone: cost tables, bounds, proof, runners-up.
void search(benchmark::State& state, const Case& c) {
  const costmodel::CostModel cost = cost_of(c);
  const PlanRequest request = request_of(c, cost);
  double gap = 0;
  for (auto _ : state) {
    costmodel::LayerCosts costs(cost);
    StageModel stages(costs, request.space, request.global_batch,
                      request.memory_bytes - cost.context_bytes());
    const auto result = search_best_first(stages, request);
    const auto best = static_cast<double>(result->finalists.front().closed_form_ps);
    gap = (best - static_cast<double>(result->bound_ps)) / best;
  }
  state.counters["gap_ppm"] = gap * 1e6;
}
BENCHMARK_CAPTURE(search, llama_2_7b_on_8, kLlama7b)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(search, llama_3_70b_on_128, k70bOn128)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(search, llama_3_70b_on_1024, k70bOn1024)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(search, llama_3_405b_on_16384, k405bOn16384)->Unit(benchmark::kMillisecond);

/// With the simulation of the top 8.
void plan(benchmark::State& state, const Case& c) {
  const costmodel::CostModel cost = cost_of(c);
  const PlanRequest request = request_of(c, cost);
  for (auto _ : state) benchmark::DoNotOptimize(find_plan(cost, request));
}
BENCHMARK_CAPTURE(plan, llama_2_7b_on_8, kLlama7b)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, llama_3_405b_on_16384, k405bOn16384)->Unit(benchmark::kMillisecond);

/// The same layers, more of them, and as much more memory.
void depth(benchmark::State& state) {
  Case c = kLlama7b;
  c.profile = "";
  c.gib = 36 * state.range(0) / 32;
  const costmodel::CostModel cost = cost_of(c, state.range(0));
  const PlanRequest request = request_of(c, cost);
  for (auto _ : state) {
    costmodel::LayerCosts costs(cost);
    StageModel stages(costs, request.space, request.global_batch,
                      request.memory_bytes - cost.context_bytes());
    benchmark::DoNotOptimize(search_best_first(stages, request));
  }
}
BENCHMARK(depth)->Arg(128)->Arg(1024)->Unit(benchmark::kMillisecond);

/// Plans priced one by one; with `tables`, costs of layers found anew each time.
void uniform_plans(benchmark::State& state, const Case& c, bool tables) {
  const costmodel::CostModel cost = cost_of(c);
  PlanRequest request = request_of(c, cost);
  request.space.ring = request.space.ulysses = request.space.strided = true;
  auto costs = std::make_unique<costmodel::LayerCosts>(cost);
  const auto sweep = [&] {
    return sweep_uniform(*costs, request, request.memory_bytes - cost.context_bytes()).evaluated;
  };
  std::uint64_t plans = sweep();
  state.counters["plans"] = static_cast<double>(plans);
  plans = 0;
  for (auto _ : state) {
    if (tables) costs = std::make_unique<costmodel::LayerCosts>(cost);
    plans += sweep();
  }
  state.counters["plans/s"] =
      benchmark::Counter(static_cast<double>(plans), benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(uniform_plans, llama_2_7b_on_8, kLlama7b, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(uniform_plans, llama_2_7b_on_8_with_tables, kLlama7b, true)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(uniform_plans, llama_3_70b_on_128, k70bOn128, false)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(uniform_plans, llama_3_70b_on_128_with_tables, k70bOn128, true)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery::search

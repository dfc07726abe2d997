/// Whole steps of Llama-2-7B on one core, from a lowered Program to the report (programs/s,
/// operations/s), and with the plan and its lowering before it on 8 to 1,024 GPUs (plans/s): what a
/// search that simulates its best plans pays for each.

#include <benchmark/benchmark.h>

#include "base/process.h"
#include "model/spec.h"
#include "plan/lowering/lower.h"
#include "plan/program/expand.h"
#include "sim/simulate.h"

namespace orrery::sim {
namespace {

struct Subject {
  model::ModelSpec model;
  int hosts = 1;
  plan::UniformOptions options;
  costmodel::CostModel cost;
  [[nodiscard]] plan::Plan plan() const {
    return plan::uniform_plan(model, "dgx-a100", hosts, options).value();
  }
};

/// Arguments: tp, pp, dp, zero, micro-batch, global batch.
Subject subject_of(const benchmark::State& state) {
  base::keep_freed_memory();  // as main() of the program does
  const auto at = [&](std::size_t i) { return static_cast<int>(state.range(i)); };
  plan::UniformOptions o;
  o.tp = at(0);
  o.pp = at(1);
  o.dp = at(2);
  o.zero = at(3);
  o.micro_batch = at(4);
  o.global_batch = at(5);
  o.sequence = 2048;
  const int hosts = (o.tp * o.pp * o.dp + 7) / 8;
  const model::ModelSpec model = model::find_model("llama-2-7b").value();
  auto topology = topologies::catalog_topology("dgx-a100", static_cast<std::uint32_t>(hosts));
  auto cost = costmodel::CostModel::make(model, *std::move(topology), std::nullopt,
                                         {.precision = o.precision, .sequence = o.sequence});
  return {model, hosts, o, *std::move(cost)};
}

void report(benchmark::State& state, const plan::Program& program, const char* rate) {
  std::size_t operations = 0;
  for (const auto& k : program.classes) operations += plan::unroll(program, k).size();
  const auto runs = static_cast<double>(state.iterations());
  state.counters["operations"] = static_cast<double>(operations);
  state.counters[rate] = benchmark::Counter(runs, benchmark::Counter::kIsRate);
  state.counters["operations/s"] =
      benchmark::Counter(runs * static_cast<double>(operations), benchmark::Counter::kIsRate);
}

void step(benchmark::State& state) {
  const Subject s = subject_of(state);
  const auto program = plan::lower(s.plan(), s.model).value();
  for (auto _ : state) benchmark::DoNotOptimize(simulate(program, s.cost)->step_time_ps);
  report(state, program, "programs/s");
}
BENCHMARK(step)
    ->Args({8, 1, 1, 0, 8, 64})
    ->Args({1, 1, 8, 3, 1, 64})
    ->Args({2, 2, 2, 1, 2, 64})
    ->Args({1, 8, 1, 0, 4, 64})
    ->Args({2, 8, 16, 1, 1, 512})
    ->Args({4, 8, 32, 1, 1, 1024})
    ->Unit(benchmark::kMillisecond);

void plan_to_report(benchmark::State& state) {
  const Subject s = subject_of(state);
  for (auto _ : state) {
    const auto program = plan::lower(s.plan(), s.model).value();
    benchmark::DoNotOptimize(simulate(program, s.cost)->step_time_ps);
  }
  report(state, plan::lower(s.plan(), s.model).value(), "plans/s");
}
// 8, 64, 256 and 1,024 GPUs, the batch in proportion: without a pipeline, with a short one, with a
// long one.
BENCHMARK(plan_to_report)
    ->Args({1, 1, 8, 3, 2, 64})
    ->Args({2, 2, 2, 1, 1, 64})
    ->Args({1, 8, 1, 0, 4, 64})
    ->Args({2, 1, 32, 1, 2, 256})
    ->Args({2, 4, 8, 1, 1, 256})
    ->Args({4, 1, 64, 1, 2, 1024})
    ->Args({2, 8, 16, 1, 1, 512})
    ->Args({4, 2, 128, 1, 1, 2048})
    ->Args({4, 8, 32, 1, 1, 1024})
    ->Unit(benchmark::kMillisecond);

/// One step of Llama-3-405B (tp 8, pp 16, four uneven chunks of layers a rank) on 128 dp GPUs.
/// Parts: 0 machine and prices, 1 plan and Program, 2 the step, 3 all. Only part 0 may grow with
/// dp: the machine's list of devices and links.
void llama_405b(benchmark::State& state) {
  base::keep_freed_memory();
  const auto part = state.range(0);
  const int dp = static_cast<int>(state.range(1));
  const model::ModelSpec model = model::find_model("llama-3-405b").value();
  plan::UniformOptions o;
  o.tp = 8;
  o.pp = 16;
  o.dp = dp;
  o.zero = 1;
  o.micro_batch = 1;
  o.sequence_parallel = true;
  o.sequence = 8192;
  o.schedule = plan::Schedule::kInterleaved;
  o.virtual_stages = 4;
  o.uneven_stages = true;
  o.global_batch = 16 * static_cast<std::int64_t>(dp);
  const auto hosts = static_cast<std::uint32_t>(16 * dp);
  const auto prices = [&] {
    return costmodel::CostModel::make(
               model, topologies::catalog_topology("dgx-h100", hosts).value(), std::nullopt,
               {.precision = o.precision, .sequence = o.sequence})
        .value();
  };
  const auto lowered = [&] {
    return plan::lower(plan::uniform_plan(model, "dgx-h100", static_cast<int>(hosts), o).value(),
                       model)
        .value();
  };
  const costmodel::CostModel cost = prices();
  const plan::Program program = lowered();
  for (auto _ : state) {
    if (part == 0) benchmark::DoNotOptimize(prices());
    if (part == 1) benchmark::DoNotOptimize(lowered());
    if (part == 2) benchmark::DoNotOptimize(simulate(program, cost)->step_time_ps);
    if (part == 3) benchmark::DoNotOptimize(simulate(lowered(), prices())->step_time_ps);
  }
  state.counters["classes"] = static_cast<double>(program.classes.size());
  state.counters["GPUs"] = static_cast<double>(program.world_size);
}
BENCHMARK(llama_405b)
    ->ArgsProduct({{0, 1, 2, 3}, {8, 32, 128, 1024}})
    ->ArgNames({"part", "dp"})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery::sim

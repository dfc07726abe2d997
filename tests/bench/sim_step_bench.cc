/// Whole steps of Llama-2-7B on eight GPUs, from a lowered Program to the report: programs/s and operations/s on one core.

#include <benchmark/benchmark.h>

#include "model/spec.h"
#include "plan/expand.h"
#include "plan/lower.h"
#include "sim/simulate.h"

namespace orrery::sim {
namespace {

void step(benchmark::State& state) {
  plan::UniformOptions o;
  o.tp = static_cast<int>(state.range(0));
  o.pp = static_cast<int>(state.range(1));
  o.dp = static_cast<int>(state.range(2));
  o.zero = static_cast<int>(state.range(3));
  o.micro_batch = state.range(4);
  o.global_batch = 64;
  o.sequence = 2048;
  const auto model = model::find_model("llama-2-7b").value();
  const auto cost = costmodel::CostModel::make(model, topologies::catalog_topology("dgx-a100").value(), std::nullopt,
                                               {.precision = o.precision, .sequence = o.sequence}).value();
  const auto program = plan::lower(plan::uniform_plan(model, "dgx-a100", 1, o).value(), model).value();
  std::size_t operations = 0;
  for (const auto& k : program.classes) operations += plan::unroll(program, k).size();
  std::uint64_t events = 0;
  for (auto _ : state) {
    const auto report = simulate(program, cost);
    events = report->events;
    benchmark::DoNotOptimize(report->step_time_ps);
  }
  state.counters["operations"] = static_cast<double>(operations);
  state.counters["events"] = static_cast<double>(events);
  state.counters["programs/s"] = benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["operations/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(operations), benchmark::Counter::kIsRate);
}
// tp, pp, dp, zero, micro-batch
BENCHMARK(step)->Args({8, 1, 1, 0, 8})->Args({1, 1, 8, 3, 1})->Args({2, 2, 2, 1, 2})->Args({1, 8, 1, 0, 4})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery::sim

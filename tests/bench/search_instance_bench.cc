// `orrery solve`: chains of random layers, easy and adversarial. Counters: states per second, gap
// where a limit of states ended it.
#include <benchmark/benchmark.h>

#include "base/rng.h"
#include "search/table/instance_program.h"
#include "tests/oracle/search/adversarial.h"

namespace orrery::search {
namespace {

/// `runs` of equal layers (0: all differ). Times of 10 options fall on a line of memory up to
/// `noise_ppm`; the budget halfway between least and most.
Instance chain(std::int64_t layers, std::int64_t runs, std::int64_t noise_ppm) {
  base::Rng rng(7);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(high - low)));
  };
  Instance instance;
  std::int64_t least = 0, most = 0;
  for (std::int64_t i = 0; i < layers; ++i) {
    std::vector<InstanceOption> options;
    const bool again = runs > 0 && i % (layers / runs) != 0;
    for (int k = 0; k < 10 && !again; ++k) {
      const std::int64_t memory = draw(100'000'000, 2'000'000'000),
                         line = 30'000'000'000 - 10 * memory;
      options.push_back(
          {std::to_string(k), line + line / 1'000'000 * draw(-noise_ppm, noise_ppm + 1), memory});
    }
    instance.layers.push_back(again ? instance.layers.back() : options);
    const auto [low, high] =
        std::ranges::minmax(instance.layers.back(), {}, &InstanceOption::memory_bytes);
    least += low.memory_bytes;
    most += high.memory_bytes;
  }
  instance.budget_bytes = (least + most) / 2;
  // Three layouts; changing one costs about half a layer.
  instance.transition_ps.emplace_back();
  for (int a = 0; a < 10; ++a) {
    for (int b = 0; b < 10; ++b)
      instance.transition_ps.back().push_back(a % 3 == b % 3 ? 0 : 5'000'000'000);
  }
  return instance;
}

void solve(benchmark::State& state, std::int64_t runs, std::int64_t noise_ppm,
           std::uint64_t max_states) {
  const Instance instance = chain(state.range(0), runs, noise_ppm);
  std::uint64_t states = 0;
  Solution answer;
  for (auto _ : state) {
    answer = solve_instance(instance, max_states);
    states += answer.states;
  }
  state.counters["states/s"] =
      benchmark::Counter(static_cast<double>(states), benchmark::Counter::kIsRate);
  state.counters["states"] = static_cast<double>(answer.states);
  state.counters["gap_ppm"] = 1e6 * answer.gap;
  state.counters["optimal"] = answer.status == Status::kOptimal ? 1 : 0;
}
BENCHMARK_CAPTURE(solve, equal_layers, 1, 100'000, 0)
    ->Arg(32)
    ->Arg(80)
    ->Arg(256)
    ->Arg(1024)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(solve, two_runs, 2, 100'000, 0)
    ->Arg(32)
    ->Arg(80)
    ->Arg(256)
    ->Arg(1024)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(solve, distinct_layers, 0, 100'000, 0)
    ->Arg(32)
    ->Arg(80)
    ->Arg(256)
    ->Arg(1024)
    ->Unit(benchmark::kMillisecond);
/// Collinear to 0.01 %.
BENCHMARK_CAPTURE(solve, adversarial_equal, 1, 100, 1'000'000)
    ->Arg(32)
    ->Arg(80)
    ->Arg(256)
    ->Arg(1024)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(solve, adversarial_distinct, 0, 100, 1'000'000)
    ->Arg(32)
    ->Arg(80)
    ->Arg(256)
    ->Arg(1024)
    ->Unit(benchmark::kMillisecond);

/// Whole pipelines of such tables (tests/property/search/adversarial_test.cc), 96 layers; argument:
/// stages.
void solve_troubled_pipeline(benchmark::State& state, Trouble trouble) {
  base::Rng rng(7);
  const PipelineProblem p = troubled_pipeline(rng, trouble, static_cast<int>(state.range(0)), 96);
  const std::int64_t bound = pipeline_bound(p);
  std::uint64_t states = 0;
  Effort effort;
  std::int64_t cost_ps = 0;
  for (auto _ : state) {
    effort = Effort{.limit = 200'000};
    const auto answer = solve_pipeline(p, kForbidden, effort);
    cost_ps = answer ? answer->cost_ps : 0;
    states += effort.states;
  }
  state.counters["states/s"] =
      benchmark::Counter(static_cast<double>(states), benchmark::Counter::kIsRate);
  state.counters["states"] = static_cast<double>(effort.states);
  state.counters["gap_ppm"] =
      1e6 * static_cast<double>(cost_ps - bound) / static_cast<double>(cost_ps);
  state.counters["optimal"] = effort.exhausted ? 0 : 1;
}
BENCHMARK_CAPTURE(solve_troubled_pipeline, collinear, Trouble::kCollinear)
    ->Arg(2)
    ->Arg(4)
    ->Arg(8)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(solve_troubled_pipeline, near_ties, Trouble::kNearTies)
    ->Arg(2)
    ->Arg(4)
    ->Arg(8)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(solve_troubled_pipeline, equal, Trouble::kEqual)
    ->Arg(2)
    ->Arg(4)
    ->Arg(8)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery::search

/// Ring all-reduce of 1 GiB at 50 GB/s, every step an explicit message, as `orrery collective` runs
/// it, and SimGrid's time for the same, each in a process of its own; a collective whose rounds are
/// folded; and a step with a straggler.
/// Counters: CPU seconds (`simgrid_s` where libsimgrid is there), their `ratio`, peak memory, and
/// the difference of the two simulated times.

#include <benchmark/benchmark.h>

#include <cmath>

#include "plan/lowering/lower.h"
#include "sim/cells/rank_cells.h"
#include "sim/network/collective_run.h"
#include "tests/oracle/sim/simgrid_twin.h"
#include "tests/unit/sim/collective_scene.h"
#include "tests/unit/sim/traffic.h"

namespace orrery::sim {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

void compare(benchmark::State& state, const testing::TwoLevelTree& tree,
             const std::vector<std::uint32_t>& order) {
  for (auto _ : state) {
    const auto ours = testing::in_process([&] {
      const auto ring = testing::ring_all_reduce(tree, order, kGiB);
      const auto outcome = run_schedule(testing::machine_of(tree.capacities()), ring);
      return std::vector<double>{static_cast<double>(outcome.time_ps) / 1e12};
    });
    state.counters["ours_s"] = ours.cpu_s;
    state.counters["ours_MB"] = ours.peak_mb;
    state.counters["step_s"] = ours.values.at(0);
#ifdef ORRERY_HAS_SIMGRID
    const auto theirs = testing::simgrid_ring(tree, order, kGiB);
    state.counters["simgrid_s"] = theirs.cpu_s;
    state.counters["simgrid_MB"] = theirs.peak_mb;
    state.counters["ratio"] = theirs.cpu_s / ours.cpu_s;
    state.counters["difference"] = std::abs(theirs.values.at(0) / ours.values.at(0) - 1);
#endif
  }
}

void ring_1024(benchmark::State& state) {
  compare(state, {.hosts = 1024, .hosts_per_rack = 32}, testing::in_order(1024));
}
BENCHMARK(ring_1024)->Iterations(1)->Unit(benchmark::kSecond);

void ring_512_random_oversubscribed(benchmark::State& state) {
  compare(state, {.hosts = 512, .hosts_per_rack = 32, .oversubscription = 4},
          testing::shuffled(512, 1));
}
BENCHMARK(ring_512_random_oversubscribed)->Iterations(1)->Unit(benchmark::kSecond);

/// A ring over 1,024 GPUs whose rounds are alike: two of them stand for all.
void collective_1024_folded(benchmark::State& state) {
  const testing::CollectiveScene scene(topologies::catalog_topology("dgx-h100", 128).value(),
                                       costmodel::find_tuning("published", "H100").value(), 1024);
  const auto request =
      scene.request(model::Collective::kAllReduce, kGiB, costmodel::Algorithm::kRing);
  for (auto _ : state)
    state.counters["step_s"] =
        static_cast<double>(run_collective(scene.usable, scene.forms, request).time_ps) / 1e12;
}
BENCHMARK(collective_1024_folded)->Unit(benchmark::kMillisecond);

/// A step of Llama-2-7B on 1,024 GPUs of which one computes at half speed.
void step_with_straggler(benchmark::State& state) {
  plan::UniformOptions o;
  o.tp = 8;
  o.pp = 4;
  o.dp = 32;
  o.zero = 1;
  o.micro_batch = 1;
  o.global_batch = 512;
  o.sequence = 2048;
  const auto model = model::find_model("llama-2-7b").value();
  const auto cost =
      costmodel::CostModel::make(model, topologies::catalog_topology("dgx-a100", 128).value(),
                                 std::nullopt, {.precision = o.precision, .sequence = o.sequence})
          .value();
  const auto program =
      plan::lower(plan::uniform_plan(model, "dgx-a100", 128, o).value(), model).value();
  RankOptions options;
  options.compute_ppm.assign(1024, 1'000'000);
  options.compute_ppm[77] = 2'000'000;
  for (auto _ : state) {
    const auto outcome = simulate_ranks(program, cost, options);
    state.counters["cells"] = static_cast<double>(outcome->cells.classes.size());
    state.counters["step_s"] = static_cast<double>(outcome->step_ps) / 1e12;
  }
}
BENCHMARK(step_with_straggler)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery::sim

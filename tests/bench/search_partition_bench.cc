// Whole searches for partitions of a layer, tables included, on one thread; products over min and
// plus beside the plain loops.
#include <benchmark/benchmark.h>

#include <random>

#include "search/partition/partition_search.h"
#include "topologies/topology.h"

namespace orrery::search {
namespace {

/// 2^bits devices in hosts of eight.
void partition_search(benchmark::State& state) {
  const auto cost = costmodel::CostModel::make(
                        model::find_model("llama-2-7b").value(),
                        topologies::catalog_topology("dgx-1-v100", 8).value(), std::nullopt,
                        {.precision = model::Precision::kFloat32, .sequence = 2048, .library = {}})
                        .value();
  const PartitionRequest request{
      .bits = static_cast<int>(state.range(0)), .sequences = 8, .tokens = 2048, .layers = 32};
  std::int64_t time_ps = 0;
  for (auto _ : state) time_ps = PartitionSearch::make(cost, request).value().best().time_ps;
  state.counters["layer_ms"] = static_cast<double>(time_ps) / 32e9;
}
BENCHMARK(partition_search)->DenseRange(2, 5)->Unit(benchmark::kMillisecond);

TickMatrix random_matrix(std::size_t rows, std::size_t columns, std::mt19937& random) {
  TickMatrix m(rows, columns, 0);
  for (Ticks& cell : m.cells) cell = static_cast<Ticks>(random() % (1 << 24));
  return m;
}

void product(benchmark::State& state, bool plain) {
  std::mt19937 random{1};
  const auto n = static_cast<std::size_t>(state.range(0));
  const TickMatrix a = random_matrix(n, n, random), b = random_matrix(n, n, random);
  for (auto _ : state) {
    if (!plain) {
      benchmark::DoNotOptimize(min_plus(a, b));
      continue;
    }
    TickMatrix c(n, n, kNever);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 0; k < n; ++k)
        for (std::size_t j = 0; j < n; ++j)
          c.row(i)[j] = std::min(c.row(i)[j], a.row(i)[k] + b.row(k)[j]);
    benchmark::DoNotOptimize(c);
  }
}
BENCHMARK_CAPTURE(product, pruned, false)->Arg(1024)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(product, plain, true)->Arg(1024)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery::search

// Whole searches for partitions of a layer, prices and bounds included, on one thread.
#include <benchmark/benchmark.h>

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
BENCHMARK(partition_search)->DenseRange(2, 6)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery::search

// What the readers and generators of base/ cost.
#include <benchmark/benchmark.h>

#include <string>

#include "base/config.h"
#include "base/fingerprint.h"
#include "base/rng.h"

namespace {

using namespace orrery::base;

/// A catalog of `n` links; counter: bytes/s of text.
void read_config(benchmark::State& state) {
  std::string text = "links:\n";
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    text += fmt::format("  - {{name: link{}, latency: 3.5us, bandwidth: 200Gb/s}}\n", i);
  }
  for (auto _ : state) {
    ErrorSink sink;
    Reader file(Node::parse_text(text, "bench.yaml").value(), "file", sink);
    for (const Node& node : file.required_list("links")) {
      Reader link(node, "link", sink);
      benchmark::DoNotOptimize(link.required_string("name"));
      benchmark::DoNotOptimize(link.required_seconds("latency"));
      benchmark::DoNotOptimize(link.required_bandwidth("bandwidth"));
      link.finish();
    }
    if (!sink.ok()) state.SkipWithError("faults");
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(read_config)->Arg(10)->Arg(1000);

void hash_numbers(benchmark::State& state) {
  std::uint64_t index = 0;
  for (auto _ : state) benchmark::DoNotOptimize(hash(1, index++));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(hash_numbers);

void normal_numbers(benchmark::State& state) {
  std::uint64_t index = 0;
  for (auto _ : state) benchmark::DoNotOptimize(normal(1, index++));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(normal_numbers);

void fingerprint_integers(benchmark::State& state) {
  Fingerprint fingerprint;
  std::int64_t i = 0;
  for (auto _ : state) fingerprint.add(i++);
  benchmark::DoNotOptimize(fingerprint.hex());
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(fingerprint_integers);

}  // namespace

/// Event queue in the hold model (pop one, push one, the number pending stays), and the max-min
/// solver.

#include <benchmark/benchmark.h>

#include <vector>

#include "sim/kernel/event_queue.h"
#include "sim/kernel/max_min.h"

namespace orrery::sim::kernel {
namespace {

/// Small generator of its own, so that the queue is what is measured.
struct Mix {
  std::uint64_t state = 1;
  std::uint64_t next() {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return state >> 33;
  }
};

void hold(benchmark::State& state) {
  EventQueue queue;
  Mix mix;
  const auto pending = state.range(0);
  for (std::int64_t i = 0; i < pending; ++i) {
    queue.push(base::SimTime::from_ps(static_cast<std::int64_t>(mix.next() % 1'000'000)),
               Phase::kRelease, 0, 0);
  }
  for (auto _ : state) {
    const Event e = queue.pop();
    queue.push(
        base::SimTime::from_ps(e.at.ps() + static_cast<std::int64_t>(mix.next() % 1'000'000)),
        Phase::kRelease, 0, e.target);
  }
  state.counters["events/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(hold)->Arg(64)->Arg(1000)->Arg(10'000)->Arg(100'000);

/// One flow of `flows` leaves and comes back: one component of 16 links.
void max_min_change(benchmark::State& state) {
  MaxMin shares;
  Mix mix;
  std::vector<ConstraintId> links;
  for (int i = 0; i < 16; ++i) links.push_back(shares.add_constraint(25'000'000'000));
  std::vector<VariableId> flows;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    const std::vector<Consumption> uses{{links[mix.next() % 16], 1}, {links[mix.next() % 16], 2}};
    flows.push_back(shares.add_variable(20'000'000'000, uses));
    shares.activate(flows.back());
  }
  shares.solve();
  for (auto _ : state) {
    const VariableId v = flows[mix.next() % flows.size()];
    shares.deactivate(v);
    shares.activate(v);
    benchmark::DoNotOptimize(shares.solve().data());
  }
  state.counters["solves/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(max_min_change)->Arg(4)->Arg(32)->Arg(128);

}  // namespace
}  // namespace orrery::sim::kernel

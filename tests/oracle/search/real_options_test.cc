// Every program of the search against brute force, on options drawn from the whole space of eight
// devices: random machines (one host of eight, two of four), dense blocks, grouped heads, mixtures
// of experts, one to eight micro-batches.
#include <gtest/gtest.h>

#include <iostream>

#include "search/proof/certificate_check.h"
#include "search/table/instance_program.h"
#include "tests/oracle/search/brute_instance.h"
#include "tests/oracle/search/brute_pipeline.h"
#include "tests/oracle/search/real_options.h"

namespace orrery::search {
namespace {

constexpr std::uint64_t kCasesOfAMachine = 250;

/// Seeds 0 … cases - 1, a new machine for each kCasesOfAMachine.
template <class Case>
void on_random_machines(std::uint64_t cases, std::uint64_t stream, Case&& run) {
  for (std::uint64_t seed = 0; seed < cases;) {
    base::Rng machine_rng(base::derive(stream, seed));
    RealMachine machine(machine_rng);
    for (std::uint64_t end = std::min(cases, seed + kCasesOfAMachine); seed < end; ++seed) {
      base::Rng rng(base::hash(stream, seed));
      run(seed, rng, machine);
    }
  }
}

TEST(RealOptionsOracle, InstancesMatchBruteForceAndTheirRunnerUp) {
  int feasible = 0, infeasible = 0, seconds = 0;
  on_random_machines(12'000, 1, [&](std::uint64_t seed, base::Rng& rng, RealMachine& machine) {
    const Instance instance = real_instance(rng, machine);
    const bool runner_up = seed % 8 == 0;
    const InstanceBruteForce expected(instance, runner_up);
    const Solution found = solve_instance(instance);
    const CheckReport report = check_solution(instance, found);
    ASSERT_TRUE(report.holds()) << "seed " << seed << ": " << report.faults.front();
    ASSERT_EQ(found.status, expected.best ? Status::kOptimal : Status::kInfeasible)
        << "seed " << seed;
    ++(expected.best ? feasible : infeasible);
    if (!expected.best) return;
    EXPECT_EQ(found.time_ps, expected.best->time) << "seed " << seed;
    EXPECT_EQ(found.memory_bytes, expected.best->memory) << "seed " << seed;
    if (!runner_up) return;
    // All other choices: for some layer i, those like the optimum before i and unlike it at i.
    std::optional<std::int64_t> second;
    for (std::size_t i = 0; i < instance.layers.size(); ++i) {
      Instance other = instance;
      bool empty = false;
      other.transition_ps.clear();
      for (std::size_t k = 0; k + 1 < instance.layers.size(); ++k) {
        other.transition_ps.emplace_back();
        for (std::size_t a = 0; a < instance.layers[k].size(); ++a) {
          for (std::size_t b = 0; b < instance.layers[k + 1].size(); ++b)
            other.transition_ps.back().push_back(instance.transition(k, a, b));
        }
      }
      constexpr std::int64_t kTooMuch = std::int64_t{1} << 50;
      for (std::size_t k = 0; k <= i; ++k) {
        for (std::size_t s = 0; s < other.layers[k].size(); ++s) {
          const bool chosen = s == static_cast<std::size_t>(found.choices[k]);
          if (chosen == (k == i)) other.layers[k][s].memory_bytes = kTooMuch;
        }
        empty = empty || std::ranges::all_of(other.layers[k], [](const InstanceOption& o) {
                  return o.memory_bytes == kTooMuch;
                });
      }
      if (empty) continue;
      const Solution best = solve_instance(other);
      if (best.status == Status::kOptimal && (!second || best.time_ps < *second))
        second = best.time_ps;
    }
    EXPECT_EQ(second, expected.runner_up_ps) << "seed " << seed;
    seconds += second ? 1 : 0;
  });
  std::cout << feasible << " optima, " << infeasible << " infeasible, " << seconds
            << " runners-up\n";
  EXPECT_EQ(feasible, 11'490);
  EXPECT_EQ(infeasible, 510);
  EXPECT_EQ(seconds, 1185);
}

std::int64_t objective(const LayerAnswer& a, const Weights& w) {
  return w.steady * a.steady_ps + w.once * a.once_ps;
}

/// A stage of its own with a budget that some sequence meets, sometimes to the byte.
LayerProblem real_layers(base::Rng& rng, RealMachine& machine) {
  const PipelineProblem pipeline = real_pipeline(rng, machine, {});
  const std::size_t index = rng.below(pipeline.stages.size());
  LayerProblem p = pipeline.stages[index].layers;
  p.layers = 1 + static_cast<int>(rng.below(6));
  p.entry_ps.resize(static_cast<std::size_t>(p.layouts));
  p.exit_ps.resize(static_cast<std::size_t>(p.layouts));
  std::vector<LayerOption> some;
  for (int i = 0; i < p.layers; ++i) some.push_back(p.options[rng.below(p.options.size())]);
  p.budget_bytes = naive_peak(p, some) - (rng.below(4) == 0 ? 1 : 0);
  return p;
}

TEST(RealOptionsOracle, LayerProgramsAndFrontiersMatchBruteForce) {
  int feasible = 0, points = 0;
  on_random_machines(5'000, 2, [&](std::uint64_t seed, base::Rng& rng, RealMachine& machine) {
    const LayerProblem p = real_layers(rng, machine);
    const Weights w{1 + draw(rng, 16), 1};
    std::vector<std::pair<std::int64_t, std::int64_t>> all, expected, got;  // steady, total
    std::optional<std::int64_t> best;
    for (const SequenceCost& c : EverySequence(p, p.layers, p.budget_bytes).all) {
      const std::int64_t steady = c.steady_ps + p.entry_ps[static_cast<std::size_t>(c.first)] +
                                  p.exit_ps[static_cast<std::size_t>(c.last)];
      const std::int64_t cost = w.steady * steady + w.once * c.once_ps;
      if (!best || cost < *best) best = cost;
      all.emplace_back(steady, steady + c.once_ps);
    }
    std::ranges::sort(all);
    for (const auto& point : all) {
      if (expected.empty() || point.second < expected.back().second) expected.push_back(point);
    }
    Effort effort;
    const Bounded found = solve_layers(p, w, kNoAnswer, effort);
    ASSERT_EQ(found.answer.has_value(), best.has_value()) << "seed " << seed;
    for (const LayerAnswer& a : layer_frontier(p, w, {}, effort))
      got.emplace_back(a.steady_ps, a.steady_ps + a.once_ps);
    ASSERT_EQ(got, expected) << "seed " << seed;
    if (!best) return;
    EXPECT_EQ(objective(*found.answer, w), *best) << "seed " << seed;
    EXPECT_TRUE(found.bound <= static_cast<__int128>(*best)) << "seed " << seed;
    EXPECT_LE(least_memory(p), found.answer->memory_bytes) << "seed " << seed;
    ++feasible;
    points += static_cast<int>(expected.size());
  });
  std::cout << feasible << " optima, " << points << " points of frontiers\n";
  EXPECT_EQ(feasible, 4796);
  EXPECT_EQ(points, 6702);
}

TEST(RealOptionsOracle, PipelinesMatchAllPartitionsAndTheirRunnersUp) {
  int feasible = 0, infeasible = 0, partitions = 0, seconds = 0;
  on_random_machines(6'000, 4, [&](std::uint64_t seed, base::Rng& rng, RealMachine& machine) {
    PipelineProblem p = real_pipeline(rng, machine, {});
    set_budgets(rng, p);
    const EveryPipeline every(p);
    partitions += static_cast<int>(every.best_ps.size());
    Effort effort;
    const auto found = solve_pipeline(p, kForbidden, effort);
    ASSERT_EQ(found.has_value(), every.best() < kForbidden) << "seed " << seed;
    ++(found ? feasible : infeasible);
    if (!found) return;
    EXPECT_EQ(found->cost_ps, every.best()) << "seed " << seed;
    EXPECT_LE(pipeline_bound(p), every.best()) << "seed " << seed;
    EXPECT_FALSE(solve_pipeline(p, every.best(), effort).has_value())
        << "the cutoff is exclusive, seed " << seed;
    if (p.stages.size() == 1 || seed % 4 > 0) return;
    // All other partitions: for some stage i, those like the optimum before i and unlike it at i.
    std::vector<int> best_partition;
    for (const LayerAnswer& stage : found->stages)
      best_partition.push_back(static_cast<int>(stage.sequence.size()));
    std::int64_t expected = kForbidden, second = kForbidden;
    for (const auto& [partition, ps] : every.best_ps) {
      if (partition != best_partition) expected = std::min(expected, ps);
    }
    for (std::size_t i = 0; i < p.stages.size(); ++i) {
      PipelineProblem other = p;
      for (std::size_t k = 0; k < i; ++k)
        other.stages[k].fewest = other.stages[k].most = best_partition[k];
      const int fewest = p.stages[i].fewest, most = p.stages[i].most;
      for (const auto& [from, to] :
           {std::pair(fewest, best_partition[i] - 1), std::pair(best_partition[i] + 1, most)}) {
        if (from > to) continue;
        other.stages[i].fewest = from;
        other.stages[i].most = to;
        const auto next = solve_pipeline(other, kForbidden, effort);
        if (next) second = std::min(second, next->cost_ps);
      }
    }
    EXPECT_EQ(second, expected) << "seed " << seed;
    seconds += second < kForbidden ? 1 : 0;
  });
  std::cout << feasible << " optima, " << infeasible << " infeasible, " << partitions
            << " partitions, " << seconds << " runners-up\n";
  EXPECT_EQ(feasible, 5209);
  EXPECT_EQ(infeasible, 791);
  EXPECT_EQ(partitions, 12'547);
  EXPECT_EQ(seconds, 619);
}

}  // namespace
}  // namespace orrery::search

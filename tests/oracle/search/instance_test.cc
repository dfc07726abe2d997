// `orrery solve` against brute force over all choices: equal in time, memory and tie-break. Every
// answer passes the checker.
#include <gtest/gtest.h>

#include "search/proof/certificate_check.h"
#include "search/table/instance_program.h"
#include "tests/oracle/search/brute_instance.h"
#include "tests/oracle/search/random_instance.h"

namespace orrery::search {
namespace {

struct Tally {
  int feasible = 0, infeasible = 0;
};

void expect_equal_to_brute_force(const Instance& instance, std::uint64_t seed, bool canonical,
                                 Tally& tally) {
  const auto expected = InstanceBruteForce(instance).best;
  const Solution found = solve_instance(instance);
  const CheckReport report = check_solution(instance, found);
  ASSERT_TRUE(report.holds()) << "seed " << seed << ": " << report.faults.front();
  ASSERT_EQ(found.status, expected ? Status::kOptimal : Status::kInfeasible) << "seed " << seed;
  ++(expected ? tally.feasible : tally.infeasible);
  if (!expected) return;
  EXPECT_EQ(found.time_ps, expected->time) << "seed " << seed;
  EXPECT_EQ(found.memory_bytes, expected->memory) << "seed " << seed;
  EXPECT_LE(found.bound_ps, expected->time) << "seed " << seed;
  if (canonical) {
    EXPECT_EQ(found.choices, expected->choices) << "seed " << seed;
  }
}

/// No two layers are equal: the tie-break is by option.
bool differ(const Instance& instance) {
  const auto key = [](const InstanceOption& o) { return std::pair(o.time_ps, o.memory_bytes); };
  for (std::size_t i = 0; i < instance.layers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (std::ranges::equal(instance.layers[i], instance.layers[j], {}, key, key)) return false;
    }
  }
  return true;
}

TEST(InstanceOracle, DistinctLayersMatchBruteForce) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    base::Rng rng(seed + 10'000'000);
    const Instance instance = random_instance(
        rng, {.layers = 6, .options = 8, .scale = rng.below(2) == 0 ? 1 : 1'000'003});
    expect_equal_to_brute_force(instance, seed, differ(instance), tally);
  }
  EXPECT_EQ(tally.feasible, 18'930);
  EXPECT_EQ(tally.infeasible, 1070);
}

TEST(InstanceOracle, EqualLayersMatchBruteForce) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 8'000; ++seed) {
    base::Rng rng(seed + 11'000'000);
    const Instance instance = random_instance(rng, {.layers = 6,
                                                    .options = 8,
                                                    .equal_layers = true,
                                                    .scale = rng.below(2) == 0 ? 1 : 1'000'003});
    expect_equal_to_brute_force(instance, seed, false, tally);
  }
  EXPECT_EQ(tally.feasible, 7612);
  EXPECT_EQ(tally.infeasible, 388);
}

TEST(InstanceOracle, RunsOfEqualLayersMatchBruteForce) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 12'000; ++seed) {
    base::Rng rng(seed + 14'000'000);
    const Instance instance = random_instance(
        rng, {.layers = 8, .options = 5, .runs = true, .scale = rng.below(2) == 0 ? 1 : 1'000'003});
    expect_equal_to_brute_force(instance, seed, false, tally);
  }
  EXPECT_EQ(tally.feasible, 11'364);
  EXPECT_EQ(tally.infeasible, 636);
}

// Long chains, where brute force by memory still ends: few options, budgets of small numbers.
TEST(InstanceOracle, LongChainsMatchATableOverMemory) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    base::Rng rng(seed + 12'000'000);
    const Instance instance = random_instance(
        rng, {.layers = 60, .options = 6, .equal_layers = seed % 3 == 0, .runs = seed % 3 == 1});
    // f[v][s]: least time with memory exactly v that ends in s.
    const auto budget = static_cast<std::size_t>(instance.budget_bytes);
    constexpr std::int64_t kNever = kMaxInstanceTotal;
    std::vector<std::vector<std::int64_t>> f(budget + 1, std::vector<std::int64_t>{0}), next;
    f.assign(budget + 1, {kNever});
    f[0] = {0};
    for (std::size_t i = 0; i < instance.layers.size(); ++i) {
      next.assign(budget + 1, std::vector<std::int64_t>(instance.layers[i].size(), kNever));
      for (std::size_t s = 0; s < instance.layers[i].size(); ++s) {
        const InstanceOption& o = instance.layers[i][s];
        for (std::size_t v = 0; v + static_cast<std::size_t>(o.memory_bytes) <= budget; ++v) {
          for (std::size_t from = 0; from < f[v].size(); ++from) {
            if (f[v][from] == kNever) continue;
            std::int64_t& best = next[v + static_cast<std::size_t>(o.memory_bytes)][s];
            best = std::min(
                best, f[v][from] + o.time_ps + (i == 0 ? 0 : instance.transition(i - 1, from, s)));
          }
        }
      }
      f.swap(next);
    }
    std::int64_t least = kNever;
    for (const auto& row : f) least = std::min(least, *std::ranges::min_element(row));
    const Solution found = solve_instance(instance);
    ASSERT_TRUE(check_solution(instance, found).holds()) << "seed " << seed;
    ASSERT_EQ(found.status == Status::kInfeasible, least == kNever) << "seed " << seed;
    if (least != kNever) {
      EXPECT_EQ(found.time_ps, least) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace orrery::search

// The OSDP tables (experiments/osdp/tables.json) as instances: known optima of operator-wise
// sharded data parallelism (Jiang et al., IJCAI 2023, arXiv 2209.13258; tables of the repository
// Youhe-Jiang/OptimalShardedDataParallel, profiler_output.py), least time of an iteration for a
// given local batch, 8 RTX TITAN. Memory of a block counts in whole MB, 800 MB of the limit are
// overhead.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/json.h"
#include "search/proof/certificate_check.h"
#include "search/table/instance_program.h"
#include "tests/support/json_file.h"
#include "tests/support/paths.h"

namespace orrery::search {
namespace {

constexpr std::int64_t kMegabyte = 1 << 20;  // 14 bytes a parameter come out in 2^20

struct Row {
  int layers, hidden, batch;
  std::map<int, int> counts;  // choice -> blocks; empty: infeasible
  std::int64_t time_ns;
  std::int64_t memory_mb;
};

// Limit 8192 MB everywhere.
const Row kRows[] = {
    {48, 1536, 0, {{2, 44}, {3, 4}}, 3'582'568'712, 7364},
    {48, 1536, 1, {{1, 2}, {2, 46}}, 2'901'937'436, 7304},
    {48, 1536, 2, {}, 0, 8352},
    {48, 2048, 0, {{2, 13}, {3, 35}}, 7'387'630'941, 7279},
    {24, 1024, 0, {{0, 24}}, 485'795'496, 4032},
    {24, 1024, 1, {{0, 24}}, 545'830'656, 4056},
    {24, 1024, 2, {{0, 24}}, 637'464'528, 4056},
    {24, 1024, 3, {{0, 24}}, 743'306'880, 4464},
    {24, 1024, 4, {{0, 24}}, 828'821'352, 5328},
    {96, 1024, 0, {{0, 3}, {2, 93}}, 3'197'418'951, 7386},
    {96, 1024, 1, {{2, 80}, {3, 16}}, 2'768'809'440, 7392},
    {48, 1024, 0, {{0, 42}, {1, 2}, {3, 4}}, 1'072'668'794, 7392},
    {48, 1024, 1, {{0, 39}, {1, 2}, {2, 7}}, 1'135'479'350, 7391},
    {24, 2048, 0, {{0, 1}, {2, 23}}, 3'125'320'139, 7296},
    {24, 2048, 1, {{1, 2}, {2, 22}}, 2'627'892'022, 7308},
    {24, 2048, 2, {{2, 22}, {3, 2}}, 2'815'117'652, 7346},
    {8, 4096, 0, {{2, 5}, {3, 3}}, 4'471'650'323, 6915},
    {8, 4096, 1, {{2, 5}, {3, 3}}, 3'594'318'031, 6964},
    {8, 4096, 2, {{2, 6}, {3, 2}}, 3'698'432'722, 7208},
    {8, 4096, 3, {{2, 2}, {3, 6}}, 4'314'853'988, 7160},
};

Instance instance_of(const base::Json& tables, const Row& row) {
  const auto block = std::ranges::find_if(tables.at("blocks"), [&](const base::Json& b) {
    return b.at("hidden") == row.hidden && b.at("batch") == row.batch;
  });
  const auto times_ns = block->at("time_ns").get<std::vector<std::int64_t>>();
  const auto memory_mb = block->at("memory_mb").get<std::vector<double>>();
  std::vector<InstanceOption> options;
  for (std::size_t k = 0; k < times_ns.size(); ++k) {
    options.push_back({std::to_string(k), times_ns[k] * 1000,
                       static_cast<std::int64_t>(memory_mb[k]) * kMegabyte});
  }
  const auto overhead_mb = tables.at("overhead_mb").get<std::int64_t>();
  return {.budget_bytes = (8192 - overhead_mb) * kMegabyte,
          .layers = std::vector(static_cast<std::size_t>(row.layers), options),
          .transition_ps = {}};
}

TEST(Osdp, EveryKnownOptimumIsReproducedExactly) {
  const auto tables =
      tests::read_json(std::filesystem::path(tests::kSourceDir) / "experiments/osdp/tables.json");
  ASSERT_TRUE(tables.has_value()) << base::to_string(tables.error());
  for (const Row& row : kRows) {
    const std::string name = fmt::format("{} x {}, b = {}", row.layers, row.hidden, row.batch);
    const Instance instance = instance_of(*tables, row);
    const Solution found = solve_instance(instance);
    ASSERT_TRUE(check_solution(instance, found).holds()) << name;
    if (row.counts.empty()) {
      EXPECT_EQ(found.status, Status::kInfeasible) << name;
      EXPECT_EQ(found.least_memory_bytes, row.memory_mb * kMegabyte) << name;
      continue;
    }
    EXPECT_EQ(found.status, Status::kOptimal) << name;
    EXPECT_EQ(found.time_ps, row.time_ns * 1000) << name;
    EXPECT_EQ(found.memory_bytes, row.memory_mb * kMegabyte) << name;
    std::map<int, int> counts;
    for (const std::int32_t choice : found.choices) ++counts[choice];
    EXPECT_EQ(counts, row.counts) << name;
  }
}

}  // namespace
}  // namespace orrery::search

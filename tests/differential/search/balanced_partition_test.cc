// The 90 worked examples of Hetu-Galvatron's memory-balanced pipeline division: eight devices, two
// kinds of layers, 2 to 8 stages, GPipe's memory of a whole batch, Adam in mixed precision under
// ZeRO-2.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "base/json.h"
#include "search/programs/balanced_partition.h"
#include "tests/support/paths.h"

namespace orrery::search {
namespace {

constexpr double kMegabyte = 1 << 20;
constexpr int kDevices = 8;
constexpr double kContextMb = 1024;  // of the framework, in every stage

/// Part of the model states that a rank of `dp` holds: the optimizer and the gradients, three
/// quarters, are sharded, with 0.3 % to spare.
double zero2_part(int dp) { return dp == 1 ? 1 : 0.75 * (1.0 / dp + 0.003) + 0.25; }

struct Example {
  std::vector<double> layers_mb, stages_mb;  // of each layer; of each stage besides
};

/// Model states are four times the parameters. Every rank of the dp = devices / stages has its
/// share of the batch.
Example example_of(const base::Json& row) {
  const int stages = row.at("pp"), dp = kDevices / stages;
  const double sequences = row.at("bsz").get<double>() / dp;
  Example e;
  for (std::size_t kind = 0; kind < row.at("layers").size(); ++kind) {
    const double states = 4 * row.at("params_MB").at(kind).get<double>() * zero2_part(dp);
    e.layers_mb.insert(e.layers_mb.end(), row.at("layers").at(kind).get<std::size_t>(),
                       states + row.at("act_MB_per_sample").at(kind).get<double>() * sequences);
  }
  e.stages_mb.assign(static_cast<std::size_t>(stages), kContextMb);
  const auto add = [&](const char* name, double& stage) {
    const base::Json& other = row.at("other_pp_on").at(name);
    stage += other.at("model_states").at("1").get<double>() * zero2_part(dp) +
             other.at("activation").at("1").get<double>() * sequences;
  };
  add("first_stage", e.stages_mb.front());
  add("last_stage", e.stages_mb.back());
  return e;
}

std::vector<std::int64_t> bytes(const std::vector<double>& mb) {
  std::vector<std::int64_t> result;
  for (const double v : mb) result.push_back(std::llround(v * kMegabyte));
  return result;
}

TEST(BalancedDivision, EveryWorkedExampleIsReproduced) {
  const auto file = std::filesystem::path(tests::kSharedDir) /
                    "data/galvatron/pp_division_memory_balanced_examples.json";
  if (!std::filesystem::exists(file)) {
    ASSERT_EQ(std::getenv("CI"), nullptr) << file << " is missing";
    GTEST_SKIP() << "REFERENCE DATA MISSING: " << file;
  }
  const auto rows = base::read_json(file);
  ASSERT_TRUE(rows.has_value()) << base::to_string(rows.error());
  int divisions = 0, memories = 0;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    const base::Json& row = rows->at(i);
    const Example e = example_of(row);
    const Partition found = balanced_division(bytes(e.layers_mb), bytes(e.stages_mb));
    EXPECT_EQ(found, row.at("division").get<Partition>()) << "row " << i;
    divisions += found == row.at("division").get<Partition>() ? 1 : 0;
    std::size_t layer = 0;
    bool equal = true;
    for (std::size_t s = 0; s < found.size(); ++s) {
      double mb = e.stages_mb[s];
      for (int k = 0; k < found[s]; ++k) mb += e.layers_mb[layer++];
      const double expected = row.at("mem_per_stage_MB").at(s).get<double>();
      EXPECT_NEAR(mb, expected, 1e-9 * expected) << "row " << i << ", stage " << s;
      equal = equal && std::abs(mb - expected) <= 1e-9 * expected;
    }
    memories += equal ? 1 : 0;
  }
  std::cout << divisions << " divisions and the memory of " << memories << ", of " << rows->size()
            << " rows\n";
  EXPECT_EQ(divisions, 90);
}

}  // namespace
}  // namespace orrery::search

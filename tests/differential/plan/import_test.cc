// A plan file that Hetu-Galvatron cea12ff shipped, and the same search's choice as its log states
// it.
#include "plan/import/import.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/json.h"
#include "tests/support/paths.h"

namespace orrery::plan {
namespace {

TEST(ImportGalvatron, TheShippedPlanIsTheOneThatTheSearchReports) {
  const std::filesystem::path folder = std::filesystem::path(tests::kSharedDir) / "data/galvatron";
  if (!std::filesystem::exists(folder)) {
    ASSERT_EQ(std::getenv("CI"), nullptr) << folder << " is missing";
    GTEST_SKIP() << "REFERENCE DATA MISSING: " << folder;
  }
  const auto root = base::Node::parse_file(
      folder / "llama2-7b/configs/galvatron_config_llama2-7b_1nodes_8gpus_per_node_36GB_bf16.json");
  ASSERT_TRUE(root.has_value()) << base::to_string(root.error());
  ImportTarget target{.model = model::find_model("llama-2-7b").value(),
                      .cluster = "dgx-a100",
                      .devices = 8,
                      .sequence = 2048,
                      .precision = {}};
  const auto imported = import_galvatron(*root, target);
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  const Plan& plan = imported->plan;

  const auto reference = base::read_json(folder / "reference_plans.json");
  ASSERT_TRUE(reference.has_value());
  const base::Json& row = reference->at("rows").at(0);
  ASSERT_EQ(row.at("case"), "1x8_36G_bsz16_chunk1");
  EXPECT_EQ(plan.global_batch, row.at("global_batch").get<std::int64_t>());
  EXPECT_EQ(plan.micro_batches, row.at("micro_batches_chosen").get<std::int64_t>());
  EXPECT_EQ(plan.pipeline_degree(), row.at("pp").get<int>());
  EXPECT_EQ(plan.vocabulary.cp, row.at("vocab_tp").get<int>());
  EXPECT_EQ(plan.vocabulary.context, ContextKind::kUlysses);
  EXPECT_EQ(plan.vocabulary.zero, 3);
  // pp-tp-dp, f ZeRO-3, c recomputation.
  ASSERT_EQ(row.at("layer_strategies"), (std::vector<std::string>{"1-1-8f-c x20", "1-1-8f x12"}));
  ASSERT_EQ(plan.stages.front().runs.size(), 2U);
  EXPECT_EQ(plan.stages.front().runs[0].count, 20);
  EXPECT_EQ(to_string(plan.stages.front().runs[0].strategy), "tp1 dp8 zero3 recompute=full");
  EXPECT_EQ(plan.stages.front().runs[1].count, 12);
  EXPECT_EQ(to_string(plan.stages.front().runs[1].strategy), "tp1 dp8 zero3");
}

}  // namespace
}  // namespace orrery::plan

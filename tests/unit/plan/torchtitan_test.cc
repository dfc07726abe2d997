// TorchTitan's job configurations, read and written.
#include <gtest/gtest.h>

#include "plan/export/export.h"
#include "plan/import/import.h"
#include "tests/unit/plan/export_models.h"

namespace orrery::plan {
namespace {

ImportTarget target(std::int64_t layers = 8, std::int64_t devices = 8) {
  model::ModelSpec m = export_model(layers);
  m.max_positions = 8192;
  return {.model = m, .cluster = "dgx-h100", .devices = devices, .precision = {}};
}

base::Result<ImportedPlan> read(const std::string& text, const ImportTarget& to = target()) {
  return import_torchtitan(text, "job.toml", to);
}

std::string fault(const base::Result<ImportedPlan>& result) {
  return result ? "" : base::to_string(result.error().front());
}

std::string runs_of(const Plan& plan) {
  std::string text;
  for (const Stage& stage : plan.stages) {
    if (!text.empty()) text += " | ";
    for (std::size_t i = 0; i < stage.runs.size(); ++i)
      text += fmt::format("{}{} {}", i == 0 ? "" : ", ", stage.runs[i].count,
                          to_string(stage.runs[i].strategy));
  }
  return text;
}

// Both files of the examples that TorchTitan's own parser was seen to take.
TEST(ImportTorchTitan, ShardedParametersBesideTensorParallelism) {
  const auto imported = read(
      "[training]\nlocal_batch_size = 2\nglobal_batch_size = 64\nseq_len = 8192\n[parallelism]\n"
      "data_parallel_shard_degree = 8\ntensor_parallel_degree = 2\n"
      "fsdp_reshard_after_forward = \"always\"\n[activation_checkpoint]\nmode = \"full\"\n",
      target(8, 16));
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  EXPECT_EQ(imported->plan.micro_batches, 4);
  EXPECT_EQ(imported->plan.global_batch, 64);
  EXPECT_EQ(runs_of(imported->plan), "8 tp2 dp8 zero3 sp recompute=full grad_reduce=micro_batch");
}

TEST(ImportTorchTitan, StagesAreDealtOutWithWhatEmbeddingAndHeadWeigh) {
  const auto imported = read(
      "[training]\nlocal_batch_size = 16\nglobal_batch_size = 64\n[parallelism]\n"
      "pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"Interleaved1F1B\"\n"
      "pipeline_parallel_layers_per_stage = 11\ntensor_parallel_degree = 4\n"
      "data_parallel_shard_degree = 4\nfsdp_reshard_after_forward = \"never\"\n"
      "[activation_checkpoint]\nmode = \"selective\"\nselective_ac_option = \"2\"\n",
      target(80, 64));
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  const Plan& plan = imported->plan;
  EXPECT_EQ(plan.micro_batches, 16);
  EXPECT_EQ(plan.virtual_stages, 2);
  std::vector<int> sizes;
  for (const Stage& stage : plan.stages) sizes.push_back(stage.layers());
  EXPECT_EQ(sizes, (std::vector<int>{10, 11, 10, 10, 10, 10, 10, 9}));
  // Rank 1 has layers 10-20 and 51-60: its second, fourth, ... layers, counted through.
  const auto& runs = plan.stages[5].runs;
  EXPECT_EQ(runs.front().strategy.recompute, Recompute::kFull);
  EXPECT_EQ(runs.front().strategy.grad_reduce, GradReduce::kEnd);
  EXPECT_EQ(plan.stages[4].runs.front().strategy.recompute, Recompute::kNone);
}

TEST(ImportTorchTitan, WhatAFileLeavesOutIsTheDefault) {
  const auto imported = read("[parallelism]\ndata_parallel_replicate_degree = 2\n");
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  EXPECT_EQ(imported->plan.sequence, 2048);
  EXPECT_EQ(imported->plan.global_batch, 64);
  EXPECT_EQ(runs_of(imported->plan).substr(0, 19), "1 tp1 dp8 zero3 sha");
  EXPECT_EQ(imported->plan.stages.front().runs[1].strategy.recompute, Recompute::kFull);
  EXPECT_EQ(imported->notes,
            (std::vector<std::string>{"the file does not say the world size: 8 devices"}));
}

TEST(ImportTorchTitan, FaultsNameTheirPlaceAndTheWayOut) {
  const std::pair<const char*, const char*> cases[] = {
      {"[parallelism]\ntensor_paralel_degree = 2",
       "job.toml:2:1: error[E0002]: unknown key 'tensor_paralel_degree' in [parallelism]; did you "
       "mean 'tensor_parallel_degree'?"},
      {"[parallelism]\ntensor_parallel_degree = \"2\"",
       "job.toml:2:1: error[E0013]: 'tensor_parallel_degree' is a whole number"},
      {"[parallelism]\ntensor_parallel_degree = 3",
       "job.toml: error[E0006]: degrees of 3 ranks in all, and there are 8 devices; other "
       "degrees, or --hosts"},
      {"[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "
       "\"InterleavedZeroBubble\"",
       "job.toml:3:1: error[E0011]: schedule 'InterleavedZeroBubble' cannot be said in a plan; "
       "1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble or DualPipeV"},
      {"[parallelism]\ndata_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 1\n"
       "tensor_parallel_degree = 2",
       "job.toml:2:1: error[E0011]: replicas beside tensor or pipeline parallelism; "
       "data_parallel_shard_degree in its place"},
      {"[activation_checkpoint]\nmode = \"memory_budget\"",
       "job.toml:2:1: error[E0011]: recomputation by 'memory_budget' cannot be said in a plan; "
       "none, selective or full"},
      {"[training]\nglobal_batch_size = 12",
       "job.toml:2:1: error[E0006]: 12 sequences on 8 data-parallel ranks of 8; a multiple of 64"},
      {"[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = "
       "[[\"layers.1\"], [\"layers.0\"]]",
       "job.toml:3:1: error[E0011]: 'layers.1' where layer 0 is next; layers in order"},
      {"[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = "
       "[[\"layers.0\"], [\"layers.1\"]]",
       "job.toml:3:1: error[E0006]: 2 stages of 2 layers in all on 2 ranks, and model 'small' has "
       "8 layers; one stage a rank"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(fault(read(text)), expected) << text;
}

base::Result<ExportedPlan> written(const Plan& plan, const model::ModelSpec& m = export_model()) {
  return export_plan(Framework::kTorchTitan, plan, {m, 8});
}

TEST(ExportTorchTitan, APipelineIsListedModuleByModule) {
  LayerStrategy s{.tp = 2, .dp = 2, .zero = 3, .sequence_parallel = true};
  s.grad_reduce = GradReduce::kEnd;
  const auto exported = written(export_plan_of(export_model(3), {1, 2}, s), export_model(3));
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_TRUE(exported->exact());
  EXPECT_NE(exported->text.find("\n[training]\nlocal_batch_size = 4\nglobal_batch_size = 8\n"
                                "seq_len = 128\nmixed_precision_param = \"bfloat16\"\n\n"
                                "[parallelism]\n"
                                "data_parallel_replicate_degree = 1\n"
                                "data_parallel_shard_degree = 2\n"
                                "fsdp_reshard_after_forward = \"always\"\n"
                                "tensor_parallel_degree = 2\n"
                                "pipeline_parallel_degree = 2\n"
                                "pipeline_parallel_schedule = \"1F1B\"\n"
                                "pipeline_parallel_microbatch_size = 1\n"
                                "module_fqns_per_model_part = [\n"
                                "  [\"tok_embeddings\", \"layers.0\"],\n"
                                "  [\"layers.1\", \"layers.2\", \"norm\", \"output\"],\n]\n"),
            std::string::npos)
      << exported->text;
}

Plan in_v(Schedule schedule, std::int64_t micro_batches) {
  LayerStrategy s{.dp = 2, .zero = 2};
  s.grad_reduce = GradReduce::kEnd;
  Plan plan = export_plan_of(export_model(), {2, 2, 2, 2}, s);
  plan.schedule = schedule;
  plan.virtual_stages = 2;
  plan.micro_batches = micro_batches;
  plan.global_batch = 2 * micro_batches;
  return plan;
}

// Both ways, with two stages a rank.
TEST(ExportTorchTitan, StagesInAVComeBackAsTheyWere) {
  for (const Schedule schedule : {Schedule::kZeroBubbleV, Schedule::kDualPipeV}) {
    const Plan plan = in_v(schedule, 4);
    const auto exported = written(plan);
    ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
    EXPECT_TRUE(exported->exact());
    EXPECT_NE(exported->text.find(schedule == Schedule::kZeroBubbleV ? "\"ZBVZeroBubble\""
                                                                     : "\"DualPipeV\""),
              std::string::npos)
        << exported->text;
    EXPECT_EQ(exported->text.find("[compile]"), std::string::npos);
    EXPECT_EQ(exported->notes.size(), 1U);
    const auto imported = read(exported->text, target(8, 4));
    ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
    EXPECT_EQ(imported->plan.schedule, schedule);
    EXPECT_EQ(imported->plan.virtual_stages, 2);
    EXPECT_EQ(runs_of(imported->plan), runs_of(plan));
  }
}

// Asynchronous tensor parallelism needs torch.compile, which takes no backward in two.
TEST(ExportTorchTitan, StagesInAVHaveNoCollectivesInPieces) {
  Plan plan = in_v(Schedule::kZeroBubbleV, 4);
  for (Stage& stage : plan.stages) {
    LayerStrategy& s = stage.runs.front().strategy;
    s = {.tp = 2, .dp = 1, .sequence_parallel = true};
    s.tensor_pieces = 4;
  }
  plan.vocabulary = {.tp = 2, .dp = 1};
  const auto exported = written(plan);
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_EQ(exported->plan.stages.front().runs.front().strategy.tensor_pieces, 1);
}

TEST(ExportTorchTitan, DualPipeVNeedsAMicroBatchForEveryStage) {
  const auto exported = written(in_v(Schedule::kDualPipeV, 3));
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_FALSE(exported->exact());
  EXPECT_NE(exported->text.find("\"ZBVZeroBubble\""), std::string::npos) << exported->text;
}

TEST(ImportTorchTitan, AVHasTwoStagesARank) {
  EXPECT_EQ(fault(read("[parallelism]\npipeline_parallel_degree = 2\n"
                       "pipeline_parallel_schedule = \"ZBVZeroBubble\"\n"
                       "pipeline_parallel_layers_per_stage = 1\n")),
            "job.toml:2:1: error[E0006]: 10 stages of 8 layers in all on 2 ranks, and model "
            "'small' has 8 layers; two stages a rank");
}

TEST(ExportTorchTitan, ReplicasThatStandBesideAnotherDimensionAreSharded) {
  const auto exported = written(export_plan_of(export_model(), {8}, {.tp = 2, .dp = 4}));
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_EQ(runs_of(exported->plan), "8 tp2 dp4 zero2 sp grad_reduce=micro_batch");
  const auto alone = written(export_plan_of(export_model(), {8}, {.dp = 8}, 1));
  ASSERT_TRUE(alone.has_value() && alone->exact());
  EXPECT_NE(alone->text.find("data_parallel_replicate_degree = 8\ndata_parallel_shard_degree = 1"),
            std::string::npos);
}

TEST(ExportTorchTitan, EveryNthLayerIsTheSparsestThatLeavesNoneOut) {
  using enum Recompute;
  const auto option = [](const std::vector<Recompute>& layers) {
    Plan p = export_plan_of(export_model(), {8}, {.dp = 8}, 1);
    p.stages.front().runs.clear();
    for (const Recompute r : layers)
      p.stages.front().runs.push_back({1, {.dp = 8, .recompute = r}});
    const auto exported = written(p);
    EXPECT_TRUE(exported.has_value());
    const std::size_t at = exported->text.find("\nmode = ");
    return exported->text.substr(at + 1, exported->text.find("\n\n", at) - at - 1);
  };
  EXPECT_EQ(option({kNone, kNone, kFull, kNone, kNone, kFull, kNone, kNone}),
            "mode = \"selective\"\nselective_ac_option = \"3\"");
  EXPECT_EQ(option({kNone, kNone, kNone, kFull, kNone, kFull, kNone, kNone}),
            "mode = \"selective\"\nselective_ac_option = \"2\"");
  EXPECT_EQ(option({kFull, kNone, kNone, kNone, kNone, kNone, kNone, kNone}), "mode = \"full\"");
  EXPECT_EQ(option({kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone}), "mode = \"none\"");
  EXPECT_EQ(option({kSelective, kNone, kNone, kNone, kNone, kNone, kNone, kNone}),
            "mode = \"selective\"\nselective_ac_option = \"op\"");
}

TEST(ExportTorchTitan, TiedEmbeddingsHaveNoPipeline) {
  model::ModelSpec m = export_model();
  m.tied_embeddings = true;
  const auto exported = written(export_plan_of(m, {4, 4}, {.dp = 2}), m);
  ASSERT_FALSE(exported.has_value());
  EXPECT_EQ(base::to_string(exported.error()),
            "error[E0016]: TorchTitan can run nothing like this plan: 2 stages of a model whose "
            "head shares the embedding; plan without a pipeline (--space without pipeline)");
}

}  // namespace
}  // namespace orrery::plan

#include "plan/import/import.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "plan/import/import_arguments.h"
#include "plan/import/pipeline_layout.h"

namespace orrery::plan {
namespace {

ImportTarget target(std::int64_t devices = 8) {
  model::ModelSpec m;
  m.name = "small";
  m.layers = 8;
  m.hidden = 64;
  m.heads = m.kv_heads = 8;
  m.head_dim = 8;
  m.ffn = 256;
  m.vocab = 128;
  m.max_positions = 128;
  return {.model = m, .cluster = "dgx-a100", .devices = devices, .precision = {}};
}

base::Result<ImportedPlan> galvatron(const std::string& text, const ImportTarget& to = target()) {
  const auto root = base::Node::parse_text(text, "galvatron.json");
  if (!root) return base::fail(root.error());
  return import_galvatron(*root, to);
}

base::Result<ImportedPlan> megatron(const std::string& text, const ImportTarget& to = target()) {
  return import_megatron(text, "run.sh", to);
}

/// The first fault's text.
template <class T>
std::string fault(const base::Result<T>& result) {
  return result ? "" : base::to_string(result.error().front());
}

TEST(ImportGalvatron, ListsBecomeRunsOfStages) {
  const auto imported = galvatron(
      R"({"pp_deg": 2, "tp_sizes_enc": "1,1,2,2,2,2,4,4", "tp_consecutive_flags": "1,1,1,1,0,0,1,1",
    "dp_types_enc": "1,1,0,0,0,0,0,0", "use_sp": "0,0,0,0,0,0,0,1",
     "checkpoint": "1,0,0,0,0,0,0,0", "global_bsz": 32, "chunks": 4,
    "pp_division": "5,3", "pipeline_type": "pipedream_flush", "default_dp_type": "zero2",
     "vtp": 2, "vsp": 0, "embed_sdp": 1})");
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  const Plan& p = imported->plan;
  EXPECT_EQ(p.schedule, Schedule::k1F1B);
  EXPECT_EQ(p.micro_batches, 4);
  ASSERT_EQ(p.stages.size(), 2U);
  std::vector<std::string> runs;
  for (const Stage& stage : p.stages) {
    for (const LayerRun& run : stage.runs)
      runs.push_back(fmt::format("{} {}", run.count, to_string(run.strategy)));
  }
  EXPECT_EQ(runs, (std::vector<std::string>{"1 tp1 dp4 zero3 recompute=full", "1 tp1 dp4 zero3",
                                            "2 tp2 dp2 zero2 sp", "1 tp2 strided dp2 zero2 sp",
                                            "1 tp2 strided dp2 zero2 sp", "1 tp4 dp1 sp",
                                            "1 tp1 cp4 ulysses dp1 zero2"}));
  EXPECT_EQ(to_string(p.vocabulary), "tp2 dp2 zero3");
}

/// "v,v,...": `count` times each value, as that tool lists its layers.
std::string listed(const std::vector<std::pair<int, int>>& counts_and_values) {
  std::string text;
  for (const auto& [count, value] : counts_and_values) {
    for (int i = 0; i < count; ++i) text += fmt::format("{}{}", text.empty() ? "" : ",", value);
  }
  return text;
}

// What the plan file of Llama-2-7B for 8 GPUs and 36 GiB says that Hetu-Galvatron cea12ff ships
// (Apache-2.0). The log of that search calls it "1-1-8f-c x20, 1-1-8f x12, vtp 2, vsp 1": pp-tp-dp,
// f ZeRO-3, c recomputation.
TEST(ImportGalvatron, AShippedPlanIsTheOneThatItsSearchReports) {
  const base::Json file = {{"pp_deg", 1},
                           {"tp_sizes_enc", listed({{32, 1}})},
                           {"tp_consecutive_flags", listed({{32, 1}})},
                           {"dp_types_enc", listed({{32, 1}})},
                           {"use_sp", listed({{32, 0}})},
                           {"checkpoint", listed({{20, 1}, {12, 0}})},
                           {"global_bsz", 16},
                           {"chunks", 1},
                           {"pp_division", "32"},
                           {"pipeline_type", "pipedream_flush"},
                           {"default_dp_type", "zero2"},
                           {"vtp", 2},
                           {"vsp", 1},
                           {"embed_sdp", 1}};
  const auto imported = galvatron(file.dump(), {.model = model::find_model("llama-2-7b").value(),
                                                .cluster = "dgx-a100",
                                                .devices = 8,
                                                .sequence = 2048,
                                                .precision = {}});
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  const Plan& p = imported->plan;
  EXPECT_EQ(p.global_batch, 16);
  EXPECT_EQ(p.micro_batches, 1);
  EXPECT_EQ(p.pipeline_degree(), 1);
  EXPECT_EQ(p.vocabulary.cp, 2);
  EXPECT_EQ(p.vocabulary.context, ContextKind::kUlysses);
  EXPECT_EQ(p.vocabulary.zero, 3);
  const std::vector<LayerRun>& runs = p.stages.front().runs;
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].count, 20);
  EXPECT_EQ(to_string(runs[0].strategy), "tp1 dp8 zero3 recompute=full");
  EXPECT_EQ(runs[1].count, 12);
  EXPECT_EQ(to_string(runs[1].strategy), "tp1 dp8 zero3");
}

TEST(ImportGalvatron, TheWorldSizeIsTheFilesWhereItSaysSo) {
  const auto file = [](int world) {
    return fmt::format(R"({{"pp_deg": 2, "tp_sizes_enc": "1,1,1,1,1,1,1,1", "world_size": {},
     "global_bsz": 8, "chunks": 2}})",
                       world);
  };
  const auto imported = galvatron(file(4), target(8));
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  EXPECT_EQ(imported->plan.world_size(), 4);
  EXPECT_EQ(imported->notes, std::vector<std::string>{});
  const auto more = galvatron(file(16), target(8));
  ASSERT_FALSE(more.has_value());
  EXPECT_NE(base::to_string(more.error()).find("a plan for 16 devices, and there are 8; use more"),
            std::string::npos);
}

TEST(ImportGalvatron, DefaultsAreThatToolsOwn) {
  const auto imported =
      galvatron(R"({"pp_deg": 3, "tp_sizes_enc": "1,1,1,1,1,1,1,1", "global_bsz": 4, "chunks": 2})",
                target(3));
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  EXPECT_EQ(imported->plan.schedule, Schedule::kGPipe);
  EXPECT_EQ(imported->plan.stages[2].layers(), 4);
  EXPECT_EQ(to_string(imported->plan.vocabulary), "tp1 dp1");
}

TEST(ImportMegatron, ScriptWithVariablesArraysAndContinuations) {
  const auto imported = megatron(R"sh(#!/bin/bash
GPUS_PER_NODE=8   # --tensor-model-parallel-size 99
TP=${TP:-2}
ARGS=(
  --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size=2 \
  --micro-batch-size \
    2
  --global-batch-size "16" --bf16
)
MORE="--sequence-parallel --recompute-activations"
torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py ${ARGS[@]} $MORE \
    --use-distributed-optimizer --overlap-grad-reduce --lr 1e-4
)sh");
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  const Plan& p = imported->plan;
  EXPECT_EQ(p.pipeline_degree(), 2);
  EXPECT_EQ(p.micro_batches, 4);
  EXPECT_EQ(to_string(p.stages[0].runs[0].strategy), "tp2 dp2 zero1 sp recompute=selective");
  EXPECT_EQ(p.precision, model::Precision::kBFloat16);
  EXPECT_EQ(imported->notes, std::vector<std::string>{"not part of a plan: --lr"});
}

TEST(ImportMegatron, OverlapOfTensorCollectivesIsFourPieces) {
  const auto imported = megatron(
      "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap "
      "--micro-batch-size 1 --global-batch-size 8 --overlap-grad-reduce");
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  const Plan& p = imported->plan;
  EXPECT_EQ(p.stages[0].runs[0].strategy.tensor_pieces, 4);
  EXPECT_EQ(p.vocabulary.tensor_pieces, 1);
}

TEST(ImportMegatron, VirtualStagesUnevenStagesAndBlocksOfRecomputation) {
  const auto virtual_stages = megatron(
      "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 "
      "--micro-batch-size 1 --global-batch-size 8");
  ASSERT_TRUE(virtual_stages.has_value()) << base::to_string(virtual_stages.error());
  EXPECT_EQ(virtual_stages->plan.virtual_stages, 2);
  EXPECT_EQ(virtual_stages->plan.stages.size(), 4U);
  EXPECT_EQ(virtual_stages->plan.schedule, Schedule::kInterleaved);

  const auto uneven = megatron(
      "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1 "
      "--decoder-last-pipeline-num-layers 1 --micro-batch-size 1 "
      "--recompute-granularity full --recompute-method block --recompute-num-layers 2");
  ASSERT_TRUE(uneven.has_value()) << base::to_string(uneven.error());
  EXPECT_EQ(uneven->plan.stages[0].layers(), 1);
  EXPECT_EQ(uneven->plan.stages[1].runs.size(), 2U);
  EXPECT_EQ(uneven->plan.stages[1].runs[0].count, 2);
  EXPECT_EQ(uneven->plan.stages[1].runs[1].strategy.recompute, Recompute::kNone);
}

TEST(ImportMegatron, YamlKeysAndContextParallelism) {
  const auto imported = megatron(R"(tensor_model_parallel_size: 2
context_parallel_size: 2
cp_comm_type: a2a
sequence_parallel: false
micro_batch_size: 1
global_batch_size: null
use_distributed_optimizer: true
num_distributed_optimizer_instances: 2
)");
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  EXPECT_EQ(to_string(imported->plan.stages[0].runs[0].strategy),
            "tp2 cp2 ulysses dp2 zero1 shard2 grad_reduce=end");
  EXPECT_EQ(imported->plan.global_batch, 2);
}

TEST(ImportMegatronBridge, ReadsAssignmentsOfAnyConfiguration) {
  const auto read = import_megatron_bridge(
      "from x import y\n"
      "cfg = llama_pretrain_config()\n"
      "cfg.model.tensor_model_parallel_size = 2  # a comment\n"
      "cfg.model.sequence_parallel = True\n"
      "cfg.model.pipeline_model_parallel_size = 2\n"
      "cfg.model.virtual_pipeline_model_parallel_size = 2\n"
      "cfg.ddp.overlap_grad_reduce = False\n"
      "cfg.ddp.use_distributed_optimizer=True\n"
      "cfg.train.micro_batch_size = 2\n"
      "cfg.train.global_batch_size = 16\n"
      "cfg.mixed_precision = 'bf16_with_fp8_subchannel_scaling_mixed'\n",
      "run.py", target());
  ASSERT_TRUE(read.has_value()) << base::to_string(read.error());
  const Plan& plan = read->plan;
  EXPECT_EQ(plan.stages.size(), 4U);
  EXPECT_EQ(plan.schedule, Schedule::kInterleaved);
  EXPECT_EQ(plan.micro_batches, 4);
  EXPECT_EQ(plan.precision, model::Precision::kFp8Block);
  const LayerStrategy& s = plan.stages.front().runs.front().strategy;
  EXPECT_EQ(plan::to_string(s), "tp2 dp2 zero1 sp grad_reduce=end");
}

TEST(ImportMegatronBridge, AWrongRecipeIsNamedAtItsPlace) {
  const auto read =
      import_megatron_bridge("\n  cfg.mixed_precision = \"fp8\"\n", "run.py", target());
  ASSERT_FALSE(read.has_value());
  EXPECT_NE(base::to_string(read.error()).find("run.py:2:3"), std::string::npos);
}

TEST(ImportMegatron, FewerRanksThanDevicesLeaveTheRestIdle) {
  const auto imported = megatron("--nproc-per-node 4 --micro-batch-size 1", target(8));
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  EXPECT_EQ(imported->plan.world_size(), 4);
  EXPECT_EQ(fault(megatron("--nproc-per-node 16 --micro-batch-size 1", target(8))),
            "run.sh:1:1: error[E0006]: 1 × 16 ranks, cluster 'dgx-a100' has 8 devices; --hosts, "
            "or another cluster");
}

TEST(ImportMegatron, ReadsTheRecipeOfTransformerEngine) {
  const auto precision = [&](const std::string& arguments) {
    const auto imported = megatron(arguments + " --micro-batch-size 1", target(8));
    EXPECT_TRUE(imported.has_value()) << base::to_string(imported.error());
    return imported ? imported->plan.precision : model::Precision::kFloat32;
  };
  EXPECT_EQ(precision("--bf16 --fp8-format hybrid"), model::Precision::kFp8Delayed);
  EXPECT_EQ(precision("--bf16 --fp8-format e4m3 --fp8-recipe blockwise"),
            model::Precision::kFp8Block);
  EXPECT_EQ(precision("--bf16 --fp8-recipe mxfp8"), model::Precision::kMxFp8);
  EXPECT_EQ(precision("--bf16 --fp4-format e2m1"), model::Precision::kNvFp4);
}

TEST(ImportMegatron, WhatAPlanCannotSayIsAFaultAtItsPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"--fp8-format hybrid --fp8-recipe rowwise",
       "run.sh:1:21: error[E0014]: no recipe of fp8 'rowwise'; delayed, tensorwise, blockwise or "
       "mxfp8"},
      {"--recompute-granularity full --recompute-num-layers 2",
       "run.sh:1:30: error[E0011]: chunks of 2 layers that are recomputed as one; every layer "
       "keeps its own input: 1"},
      {"\n  --pipeline-model-parallel-size 3",
       "run.sh:2:3: error[E0006]: 8 layers do not divide into the stages asked for (3 of "
       "pipeline-model-parallel-size); stages of equal numbers of layers"},
      {"--tensor-model-parallel-size $TP",
       "run.sh:1:1: error[E0014]: --tensor-model-parallel-size is $TP, which this file does not "
       "set; write the number, or NAME=number in a line before it"},
      {"--global-batch-size 24\n--global-batch-size 48",
       "run.sh:2:1: error[E0006]: --global-batch-size is given twice: 24 and 48; keep the one that "
       "counts"},
      {"--squence-parallel",
       "run.sh:1:1: error[E0002]: unknown argument --squence-parallel; did you mean "
       "--sequence-parallel?"},
      {"--cp-comm-type allgather",
       "run.sh:1:1: error[E0011]: context parallelism by 'allgather'; p2p (a ring) or a2a "
       "(Ulysses)"},
      {"--num-layers 12",
       "run.sh:1:1: error[E0006]: --num-layers is 12 and model 'small' has 8; name the model that "
       "the file trains with --model"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(fault(megatron(std::string(text) + "\n--micro-batch-size 1", target(24))), expected)
        << text;
  }
}

TEST(PipelineLayout, RepetitionsUnroll) {
  const auto stages = read_pipeline_layout("Et*3|(tt|)*2,t|tL");
  ASSERT_TRUE(stages.has_value()) << base::to_string(stages.error());
  EXPECT_EQ(*stages, (std::vector<std::int64_t>{3, 2, 2, 1, 1}));
  EXPECT_EQ(read_pipeline_layout("EtL").value(), (std::vector<std::int64_t>{1}));
}

TEST(PipelineLayout, WhatNoPlanHasIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "'' has E once, and first"},
      {"ttL", "'ttL' has E once, and first"},
      {"Et|EtL", "'Et|EtL' has E once, and first"},
      {"Et|t", "'Et|t' has L once, and last"},
      {"EtL|t", "'EtL|t' has L once, and last"},
      {"Et|mL", "layers that predict several tokens (m) are in no plan"},
      {"E|tL", "stage 0 of 'E|tL' has no layers, and no plan has such"},
      {"Et*|tL", "'Et*|tL' is no layout of E, t, L and |"},
      {"Et*99999999999|tL", "'Et*99999999999|tL' is no layout of E, t, L and |"},
      {"E((t|)*9)*9tL", "'E((t|)*9)*9tL' is no layout of E, t, L and |"},
      {"E(t|tL", "'E(t|tL' is no layout of E, t, L and |"},
      {"ExL", "'ExL' is no layout of E, t, L and |"},
  };
  for (const auto& [text, expected] : cases) {
    const auto stages = read_pipeline_layout(text);
    ASSERT_FALSE(stages.has_value()) << text;
    EXPECT_EQ(stages.error().front().message, expected);
  }
}

TEST(ImportMegatron, ALayoutStatesTheLayersOfEveryStage) {
  const auto imported = megatron(
      "--pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8 "
      "--pipeline-model-parallel-layout \"Et|(t*3|)*2,tL\"");
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  EXPECT_EQ(imported->plan.virtual_stages, 2);
  EXPECT_EQ(imported->plan.schedule, Schedule::kInterleaved);
  std::vector<int> layers;
  for (const Stage& stage : imported->plan.stages) layers.push_back(stage.layers());
  EXPECT_EQ(layers, (std::vector<int>{1, 3, 3, 1}));
  EXPECT_EQ(fault(megatron("--micro-batch-size 1 --pipeline-model-parallel-size 2 "
                           "--pipeline-model-parallel-layout 'Et*3|t*4L'")),
            "run.sh:1:55: error[E0006]: --pipeline-model-parallel-layout has 2 stages and 7 "
            "layers; a multiple of 2 stages with 8 layers in all");
  EXPECT_EQ(fault(megatron("--micro-batch-size 1 --decoder-first-pipeline-num-layers 2 "
                           "--pipeline-model-parallel-layout Et*4|t*4L")),
            "run.sh:1:22: error[E0006]: --decoder-first-pipeline-num-layers beside "
            "--pipeline-model-parallel-layout; leave one of them out");
}

TEST(ReadArguments, BracketsAndCommasInQuotesStay) {
  const auto arguments = read_arguments("A=(--x \"a,(b)\" --y 'c;d')\n--z it's --w (1,2)", "f");
  std::vector<std::string> values;
  for (const Argument& a : arguments) values.push_back(a.key + "=" + a.value);
  EXPECT_EQ(values, (std::vector<std::string>{"x=a,(b)", "y=c;d", "z=its", "w=(1,2)"}));
}

TEST(ReadArguments, UnsetVariablesStay) {
  const auto arguments =
      read_arguments("A=$1\nB=$((2*3))\n--x $A --y ${B} --z=${C:-5} --w \"$(nproc)\" --v", "f");
  std::vector<std::string> values;
  for (const Argument& a : arguments) values.push_back(a.key + "=" + a.value);
  EXPECT_EQ(values, (std::vector<std::string>{"x=$1", "y=$((2*3))", "z=5", "w=$(nproc)", "v="}));
}

}  // namespace
}  // namespace orrery::plan

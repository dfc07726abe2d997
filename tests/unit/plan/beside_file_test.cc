// Files of DeepSpeed, Accelerate and Galvatron, which leave part of a plan to others.
#include <gtest/gtest.h>

#include "base/json.h"
#include "plan/export/export.h"
#include "plan/import/import.h"
#include "tests/unit/plan/export_models.h"

namespace orrery::plan {
namespace {

ImportTarget target(std::int64_t devices = 8) {
  return {.model = export_model(), .cluster = "dgx-a100", .devices = devices, .precision = {}};
}

template <class Reader>
base::Result<ImportedPlan> read(Reader reader, const std::string& text, const char* name,
                                const ImportTarget& to) {
  const auto root = base::Node::parse_text(text, name);
  if (!root) return base::fail(root.error());
  return reader(*root, to);
}
base::Result<ImportedPlan> deepspeed(const std::string& text, const ImportTarget& to = target()) {
  return read(import_deepspeed, text, "ds.json", to);
}
base::Result<ImportedPlan> accelerate(const std::string& text, const ImportTarget& to = target()) {
  return read(import_accelerate, text, "fsdp.yaml", to);
}

std::string fault(const base::Result<ImportedPlan>& result) {
  return result ? "" : base::to_string(result.error().front());
}
std::string layers_text(const Plan& plan) {
  std::string text;
  for (const Stage& stage : plan.stages)
    for (const LayerRun& run : stage.runs)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", run.count, to_string(run.strategy));
  return text;
}

// The two examples that DeepSpeed's own parser was seen to take.
TEST(ImportDeepSpeed, ShardedParametersAndAutoTensorParallelism) {
  const auto zero3 = deepspeed(
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
          "train_batch_size": 64, "bf16": {"enabled": true},
          "zero_optimization": {"stage": 3, "overlap_comm": true}})");
  ASSERT_TRUE(zero3.has_value()) << base::to_string(zero3.error());
  EXPECT_EQ(zero3->plan.global_batch, 64);
  EXPECT_EQ(zero3->plan.micro_batches, 4);
  EXPECT_EQ(layers_text(zero3->plan), "8 tp1 dp8 zero3 grad_reduce=micro_batch");

  const auto tensor = deepspeed(
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
          "bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
          "tensor_parallel": {"autotp_size": 2}})",
      target(16));
  ASSERT_TRUE(tensor.has_value()) << base::to_string(tensor.error());
  EXPECT_EQ(tensor->plan.global_batch, 64);
  EXPECT_EQ(layers_text(tensor->plan), "8 tp2 dp8 zero1 grad_reduce=end");
}

TEST(ImportDeepSpeed, TheBatchCountsAllRanksButThoseOfASequence) {
  const auto imported = deepspeed(
      R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2,
          "sequence_parallel_size": 2, "zero_optimization": {"stage": 2}})");
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  EXPECT_EQ(imported->plan.micro_batches, 4);
  EXPECT_EQ(imported->plan.precision, model::Precision::kFloat32);
  EXPECT_EQ(layers_text(imported->plan), "8 tp1 cp2 ulysses dp4 zero2 grad_reduce=micro_batch");
}

TEST(ImportDeepSpeed, StagesAndRecomputationAreTheProgramsOwn) {
  ImportTarget to = target();
  to.beside = {.stages = 4, .recompute = true};
  const auto imported = deepspeed(
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
          "zero_optimization": {"stage": 1, "overlap_comm": true}})",
      to);
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  EXPECT_EQ(imported->plan.pipeline_degree(), 4);
  EXPECT_EQ(imported->plan.global_batch, 8);
  EXPECT_EQ(to_string(imported->plan.stages[3].runs[0].strategy),
            "tp1 dp2 zero1 recompute=full grad_reduce=end");
}

TEST(ImportDeepSpeed, FaultsNameTheirPlaceAndTheWayOut) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"zero_optimization": {"stage": 4}, "train_batch_size": 8})",
       "ds.json:1:33: error[E0005]: 'stage' of zero_optimization: 4 is more than 3"},
      {R"({"zero_optimization": {"stge": 1}, "train_batch_size": 8})",
       "ds.json:1:24: error[E0002]: unknown key 'stge' in zero_optimization; did you mean "
       "'stage'?"},
      {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
 "train_batch_size": 8})",
       "ds.json:1:53: error[E0011]: offloading cannot be said in a plan; everything stays on the "
       "device"},
      {R"({"bf16": {"enabled": true}})",
       "ds.json:1:1: error[E0003]: neither train_batch_size nor train_micro_batch_size_per_gpu is "
       "there; sequences of a micro-batch"},
      {R"({"train_batch_size": 12})",
       "ds.json:1:22: error[E0006]: train_batch_size is 12 and there are 8 ranks; micro-batch * "
       "gradient_accumulation_steps * ranks"},
      {R"({"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2},
 "sequence_parallel_size": 2})",
       "ds.json:1:44: error[E0011]: AutoTP beside Ulysses; one of them"},
      {R"({"train_batch_size": 8, "bf16": {"enabled": true}, "fp16": {"enabled": true}})",
       "ds.json:1:60: error[E0006]: bf16 and fp16 are both enabled; one of them"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(fault(deepspeed(text)), expected) << text;
}

// The two examples that Accelerate's own reader was seen to take.
TEST(ImportAccelerate, ShardedParametersAndReplicasOfShards) {
  ImportTarget to = target();
  to.beside = {.micro_batch = 2, .micro_batches = 4};
  const auto all = accelerate(
      "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n"
      "  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
      "  fsdp_activation_checkpointing: true\n"
      "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\nparallelism_config:\n"
      "  parallelism_config_dp_shard_size: 8\n",
      to);
  ASSERT_TRUE(all.has_value()) << base::to_string(all.error());
  EXPECT_EQ(all->plan.global_batch, 64);
  EXPECT_EQ(layers_text(all->plan), "8 tp1 dp8 zero3 recompute=full");

  const auto groups = accelerate(
      "distributed_type: FSDP\nnum_processes: 16\nfsdp_config:\n  fsdp_version: 2\n"
      "  fsdp_reshard_after_forward: false\nparallelism_config:\n"
      "  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 4\n"
      "  parallelism_config_tp_size: 2\n",
      target(16));
  ASSERT_TRUE(groups.has_value()) << base::to_string(groups.error());
  EXPECT_EQ(layers_text(groups->plan), "8 tp2 dp8 zero2 shard4");
  EXPECT_EQ(groups->plan.precision, model::Precision::kFloat32);
}

TEST(ImportAccelerate, FaultsNameTheirPlaceAndTheWayOut) {
  const std::string fsdp = "distributed_type: FSDP\nnum_processes: 8\n";
  const std::pair<std::string, const char*> cases[] = {
      {"num_processes: 8\n",
       "fsdp.yaml:1:1: error[E0003]: Accelerate configuration has no 'distributed_type'"},
      {fsdp, "fsdp.yaml:1:1: error[E0003]: 'fsdp_config' is missing; fsdp_version: 2"},
      {fsdp + "fsdp_config:\n  fsdp_reshard_after_forward: true\n",
       "fsdp.yaml:4:3: error[E0011]: FSDP of version 1; fsdp_version: 2"},
      {fsdp + "fsdp_config: {fsdp_version: 2}\nmixed_precison: bf16\n",
       "fsdp.yaml:4:1: error[E0002]: unknown key 'mixed_precison' in Accelerate configuration; did "
       "you mean 'mixed_precision'?"},
      {fsdp + "fsdp_config: {fsdp_version: 2}\nparallelism_config:\n"
              "  parallelism_config_dp_shard_size: 4\n",
       "fsdp.yaml:2:16: error[E0006]: 8 processes and sizes of 4 in all; their product"},
      {"distributed_type: MULTI_GPU\nnum_processes: 16\n",
       "fsdp.yaml:2:16: error[E0006]: a plan for 16 devices, and there are 8; use more --hosts"},
      {fsdp + "fsdp_config: {fsdp_version: 2}\nparallelism_config:\n"
              "  parallelism_config_sp_size: 8\n",
       "fsdp.yaml:5:31: error[E0011]: Ulysses of 8 ranks, which DeepSpeed runs; a DeepSpeed "
       "configuration"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(fault(accelerate(text)), expected) << text;
}

base::Result<ExportedPlan> written(Framework framework, const Plan& plan) {
  return export_plan(framework, plan, {export_model(), 8});
}

TEST(ExportDeepSpeed, WhatIsNotInTheFileIsASetting) {
  LayerStrategy s{.dp = 2, .zero = 1, .recompute = Recompute::kFull};
  s.grad_reduce = GradReduce::kEnd;
  const auto exported =
      written(Framework::kDeepSpeed, export_plan_of(export_model(), {2, 2, 2, 2}, s));
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_TRUE(exported->exact());
  const BesideFile beside{.stages = 4, .recompute = true};
  EXPECT_EQ(exported->beside, beside);
  std::string settings;
  for (const Setting& setting : exported->settings)
    settings += fmt::format("{} = {} ({})\n", setting.name, setting.value, setting.where);
  EXPECT_EQ(settings,
            "ranks = 8 (the launcher)\n"
            "tokens of a sequence = 128 (training program)\n"
            "PipelineModule(num_stages, partition_method='type:...') = 4 (training program)\n"
            "PipelineModule(activation_checkpoint_interval) = 1 (training program)\n");
  EXPECT_EQ(exported->text.find("train_batch_size\""), std::string::npos);
}

TEST(ExportDeepSpeed, GroupsOfStatesAreMics) {
  LayerStrategy s{.dp = 8, .zero = 3, .shard = 4};
  s.grad_reduce = GradReduce::kMicroBatch;
  const auto exported = written(Framework::kDeepSpeed, export_plan_of(export_model(), {8}, s));
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_TRUE(exported->exact());
  EXPECT_NE(exported->text.find("\"mics_shard_size\": 4,\n    \"overlap_comm\": true,\n    "
                                "\"stage\": 3"),
            std::string::npos)
      << exported->text;
  EXPECT_NE(exported->text.find("\"train_batch_size\": 32"), std::string::npos);
}

TEST(ExportDeepSpeed, APipelineStandsAlone) {
  const auto exported =
      written(Framework::kDeepSpeed, export_plan_of(export_model(), {4, 4}, {.tp = 2, .dp = 2}));
  ASSERT_FALSE(exported.has_value());
  EXPECT_EQ(base::to_string(exported.error()),
            "error[E0016]: DeepSpeed can run nothing like this plan: a pipeline beside tp2 dp2 "
            "grad_reduce=end; orrery plan --target deepspeed");
}

TEST(ExportAccelerate, RanksOfAPipelineShareEverythingOut) {
  Plan plan = export_plan_of(export_model(), {4, 4}, {.dp = 2, .zero = 1}, 8);
  const auto exported = written(Framework::kAccelerate, plan);
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_EQ(layers_text(exported->plan), "8 tp1 dp4 zero3");
  EXPECT_EQ(exported->plan.micro_batches, 4);
  EXPECT_EQ(exported->beside.micro_batch, 1);
  plan.global_batch = 2;
  plan.micro_batches = 1;
  const auto few = written(Framework::kAccelerate, plan);
  ASSERT_FALSE(few.has_value());
  EXPECT_EQ(base::exit_code(few.error()), 2);
}

TEST(ExportAccelerate, GroupsOfStatesAreReplicasOfShards) {
  const Plan plan = export_plan_of(export_model(), {8}, {.dp = 8, .zero = 3, .shard = 4});
  const auto exported = written(Framework::kAccelerate, plan);
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_TRUE(exported->exact());
  EXPECT_NE(exported->text.find("dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 4\n"),
            std::string::npos)
      << exported->text;
}

TEST(ExportAccelerate, TensorParallelismAloneHasNothingToShardOver) {
  const auto exported =
      written(Framework::kAccelerate, export_plan_of(export_model(), {8}, {.tp = 8}));
  ASSERT_FALSE(exported.has_value());
  EXPECT_EQ(base::to_string(exported.error()),
            "error[E0016]: Accelerate can run nothing like this plan: tensor parallelism alone, "
            "where FSDP has nothing to shard over; data or context parallelism as well");
}

TEST(ExportGalvatron, LayersKeepStrategiesOfTheirOwn) {
  Plan plan = export_plan_of(export_model(), {4, 4}, {.dp = 4, .zero = 2});
  const LayerStrategy sharded{.dp = 4, .zero = 3, .recompute = Recompute::kFull},
      tensor{.tp = 2, .dp = 2, .zero = 2, .sequence_parallel = true},
      split{.dp = 1, .zero = 2, .cp = 4, .context = ContextKind::kUlysses};
  plan.stages = {{{{3, sharded}, {1, split}}}, {{{4, tensor}}}};
  const auto exported = written(Framework::kGalvatron, plan);
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_TRUE(exported->exact());
  const auto json = base::parse_json(exported->text, "galvatron.json").value();
  EXPECT_EQ(json["tp_sizes_enc"], "1,1,1,4,2,2,2,2");
  EXPECT_EQ(json["dp_types_enc"], "1,1,1,0,0,0,0,0");
  EXPECT_EQ(json["use_sp"], "0,0,0,1,0,0,0,0");
  EXPECT_EQ(json["checkpoint"], "1,1,1,0,0,0,0,0");
  EXPECT_EQ(json["pp_division"], "4,4");
  EXPECT_EQ(json["default_dp_type"], "zero2");
  EXPECT_FALSE(json.contains("cp_sizes_enc"));
}

TEST(ExportGalvatron, OneDefaultHoldsForAllThatIsNotZero3) {
  Plan plan = export_plan_of(export_model(), {8}, {.dp = 8, .zero = 0});
  plan.stages = {{{{4, {.dp = 8, .zero = 1}}, {4, {.dp = 8}}}}};
  const auto exported = written(Framework::kGalvatron, plan);
  ASSERT_TRUE(exported.has_value());
  std::string changes;
  for (const Difference& d : exported->differences)
    changes += fmt::format("{} {} {}->{}; ", d.field, d.where, d.planned, d.runs);
  EXPECT_EQ(changes, "zero layers 0-3 1->2; zero layers 4-7 0->2; vocabulary.zero  0->2; ");
}

TEST(ImportGalvatron, WhatTheFileLeavesOutComesFromBeside) {
  ImportTarget to = target();
  to.beside = {.sequence_parallel = false, .reduce_every_micro_batch = true};
  const auto imported = read(import_galvatron,
                             R"({"pp_deg": 1, "tp_sizes_enc": "2,2,2,2,1,1,1,1",
 "cp_sizes_enc": "2,2,2,2,1,1,1,1", "dp_types_enc": "1,1,1,1,1,1,1,1", "global_bsz": 16,
 "chunks": 2, "vtp": 1, "vcp": 2, "vocab_sdp": 1, "embed_sdp": 1})",
                             "galvatron.json", to);
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  EXPECT_EQ(layers_text(imported->plan),
            "4 tp2 cp2 ring dp2 zero3 grad_reduce=micro_batch, 4 tp1 dp8 zero3 "
            "grad_reduce=micro_batch");
  EXPECT_EQ(to_string(imported->plan.vocabulary), "tp1 cp2 ring dp4 zero3 grad_reduce=micro_batch");
}

}  // namespace
}  // namespace orrery::plan

#include "plan/export/export.h"

#include <gtest/gtest.h>

#include "tests/unit/plan/export_models.h"

namespace orrery::plan {
namespace {

base::Result<ExportedPlan> megatron(const Plan& plan, const model::ModelSpec& m = export_model()) {
  return export_plan(Framework::kMegatron, plan, {m, 8});
}

std::vector<std::string> changes(const ExportedPlan& exported) {
  std::vector<std::string> lines;
  for (const Difference& d : exported.differences) {
    lines.push_back(fmt::format("{}{}: {} -> {}", d.field, d.where.empty() ? "" : " of " + d.where,
                                d.planned, d.runs));
  }
  return lines;
}

TEST(ExportMegatron, AUniformPlanIsExact) {
  const auto exported = megatron(export_plan_of(
      export_model(), {8}, {.tp = 2, .dp = 4, .zero = 1, .sequence_parallel = true}));
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_TRUE(exported->exact());
  EXPECT_EQ(options_of(exported->text),
            "--nproc-per-node 8 --nnodes 1 --tensor-model-parallel-size 2 --sequence-parallel "
            "--pipeline-model-parallel-size 1 --use-distributed-optimizer --overlap-grad-reduce "
            "--overlap-param-gather --micro-batch-size 1 --global-batch-size 16 --seq-length 128 "
            "--bf16");
  EXPECT_NE(exported->text.find("export CUDA_DEVICE_MAX_CONNECTIONS=1\n"), std::string::npos);
}

TEST(ExportMegatronBridge, FieldsAreTheArgumentsUnderTheirNames) {
  const Plan plan = export_plan_of(export_model(16), {4, 4, 4, 4},
                                   {.tp = 2, .dp = 2, .zero = 1, .sequence_parallel = true});
  Plan turns = plan;
  turns.schedule = Schedule::kInterleaved;
  turns.virtual_stages = 2;
  turns.precision = model::Precision::kMxFp8;
  const auto exported = export_plan(Framework::kMegatronBridge, turns, {export_model(16), 8});
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_TRUE(exported->exact());
  const std::size_t body = exported->text.find("def apply_plan(cfg):\n");
  ASSERT_NE(body, std::string::npos);
  EXPECT_EQ(exported->text.substr(body), R"(def apply_plan(cfg):
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = 2
    cfg.ddp.use_distributed_optimizer = True
    cfg.ddp.overlap_grad_reduce = True
    cfg.ddp.overlap_param_gather = True
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 8
    cfg.model.seq_length = 128
    cfg.dataset.seq_length = 128
    cfg.mixed_precision = "bf16_with_mxfp8_mixed"
    return cfg
)");
}

TEST(ExportMegatronBridge, TensorOverlapReducesBesideTheBackward) {
  const LayerStrategy s{.tp = 2,
                        .dp = 4,
                        .zero = 1,
                        .sequence_parallel = true,
                        .grad_reduce = GradReduce::kEnd,
                        .tensor_pieces = 4};
  const auto exported = export_plan(Framework::kMegatronBridge,
                                    export_plan_of(export_model(), {8}, s), {export_model(), 8});
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_NE(exported->text.find("cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)\n"),
            std::string::npos);
  EXPECT_EQ(changes(*exported), (std::vector<std::string>{"grad_reduce of layers 0-7: end -> step",
                                                          "vocabulary.grad_reduce: end -> step"}));
}

TEST(ExportMegatron, UnevenStagesAreALayout) {
  const LayerStrategy s{.dp = 2};
  const model::ModelSpec m = export_model(16);
  const auto layout = [&](const std::vector<int>& sizes, Schedule schedule, int turns) {
    Plan p = export_plan_of(m, sizes, s, 6);
    p.schedule = schedule;
    p.virtual_stages = turns;
    const auto exported = megatron(p, m);
    EXPECT_TRUE(exported.has_value() && exported->exact());
    const std::string options = options_of(exported ? exported->text : "");
    const std::size_t at = options.find("-layout ");
    return at == options.npos ? options.substr(options.find("--pipeline"), 34)
                              : options.substr(at + 8, options.find(' ', at + 8) - at - 8);
  };
  EXPECT_EQ(layout({3, 5, 5, 3}, Schedule::k1F1B, 1), R"("Et*3|(t*5|)*2t*3L")");
  EXPECT_EQ(layout({9, 7}, Schedule::k1F1B, 1), R"("Et*9|t*7L")");
  EXPECT_EQ(layout({1, 6, 6, 1, 1, 1}, Schedule::kInterleaved, 2), R"("Et|(t*6|)*2(t|)*2tL")");
  EXPECT_EQ(layout({4, 4, 4, 4}, Schedule::k1F1B, 1), "--pipeline-model-parallel-size 4 -");
}

TEST(ExportMegatron, ShardedParametersAreMegatronFsdpWithoutAPipeline) {
  const LayerStrategy s{.dp = 8, .zero = 3, .grad_reduce = GradReduce::kMicroBatch, .shard = 4};
  const auto alone = megatron(export_plan_of(export_model(), {8}, s));
  ASSERT_TRUE(alone.has_value()) << base::to_string(alone.error());
  EXPECT_TRUE(alone->exact());
  EXPECT_NE(options_of(alone->text)
                .find("--use-distributed-optimizer --use-megatron-fsdp "
                      "--data-parallel-sharding-strategy optim_grads_params --ckpt-format "
                      "fsdp_dtensor --num-distributed-optimizer-instances 2 "
                      "--outer-dp-sharding-strategy no_shard"),
            std::string::npos);
  EXPECT_NE(alone->text.find("unset CUDA_DEVICE_MAX_CONNECTIONS\n"), std::string::npos);

  const auto piped = megatron(export_plan_of(export_model(), {4, 4}, s));
  ASSERT_TRUE(piped.has_value());
  EXPECT_EQ(changes(*piped),
            (std::vector<std::string>{"zero of layers 0-7: 3 -> 1", "vocabulary.zero: 3 -> 1",
                                      "grad_reduce of layers 0-7: micro_batch -> step",
                                      "vocabulary.grad_reduce: micro_batch -> step"}));
}

TEST(ExportMegatron, NoLayerRecomputesLessThanPlanned) {
  using enum Recompute;
  struct Case {
    std::vector<LayerRun> first;
    std::string expected;  // of both stages
  };
  const auto run = [](int count, Recompute r) {
    return LayerRun{count, {.dp = 2, .recompute = r}};
  };
  const Case cases[] = {
      {{run(2, kFull), run(2, kNone)}, "2 full, 2 none | 2 full, 2 none"},
      {{run(2, kNone), run(1, kFull), run(1, kNone)}, "3 full, 1 none | 3 full, 1 none"},
      {{run(2, kNone), run(2, kFull)}, "4 full | 4 full"},
      {{run(1, kSelective), run(3, kNone)}, "4 selective | 4 selective"},
      {{run(1, kSelective), run(1, kFull), run(2, kNone)}, "4 full | 4 full"},
      {{run(1, kOperator), run(3, kNone)}, "1 full, 3 none | 1 full, 3 none"},
      {{run(1, kOffload), run(3, kNone)}, "1 full, 3 none | 1 full, 3 none"},
  };
  for (const Case& c : cases) {
    Plan p = export_plan_of(export_model(), {4, 4}, {.dp = 2});
    p.stages.front().runs = c.first;
    const auto exported = megatron(p);
    ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
    std::string found;
    for (const Stage& stage : exported->plan.stages) {
      if (!found.empty()) found += " |";
      for (std::size_t i = 0; i < stage.runs.size(); ++i)
        found += fmt::format("{}{}{} {}", i == 0 ? "" : ",", found.empty() ? "" : " ",
                             stage.runs[i].count, to_string(stage.runs[i].strategy.recompute));
    }
    EXPECT_EQ(found, c.expected);
  }
}

// No framework's update copies states as ours does.
TEST(Export, StatesOfEveryFrameworkAreOnTheDevice) {
  Plan p = export_plan_of(export_model(), {8}, {.dp = 8, .zero = 2, .states = States::kHost});
  p.vocabulary.states = States::kHost;
  for (const FrameworkTerms& framework : frameworks()) {
    const auto exported = export_plan(framework.framework, p, {export_model(), 8});
    ASSERT_TRUE(exported.has_value()) << framework.name << base::to_string(exported.error());
    for (const Stage& stage : exported->plan.stages)
      for (const LayerRun& run : stage.runs)
        EXPECT_EQ(run.strategy.states, States::kDevice) << framework.name;
    EXPECT_EQ(exported->plan.vocabulary.states, States::kDevice) << framework.name;
    for (const char* field : {"states", "vocabulary.states"})
      EXPECT_EQ(std::ranges::count(exported->differences, field, &Difference::field), 1)
          << framework.name;
  }
}

TEST(ExportMegatron, TheStrategyOfMostLayersIsEveryLayers) {
  const LayerStrategy many{.tp = 2, .dp = 2}, few{.tp = 4, .dp = 1};
  Plan p = export_plan_of(export_model(), {8}, many);
  p.stages.front().runs = {{3, few}, {5, many}};
  p.vocabulary = {.tp = 4, .dp = 1};
  p.schedule = Schedule::kGPipe;
  const auto exported = megatron(p);
  ASSERT_TRUE(exported.has_value()) << base::to_string(exported.error());
  EXPECT_EQ(changes(*exported),
            (std::vector<std::string>{"schedule: gpipe -> 1f1b", "tp of layers 0-2: 4 -> 2",
                                      "vocabulary.tp: 4 -> 2", "dp of layers 0-2: 1 -> 2",
                                      "vocabulary.dp: 1 -> 2"}));
}

TEST(ExportMegatron, WhatItCannotRunIsRefused) {
  const LayerStrategy odd{.dp = 12};
  const auto hosts = megatron(export_plan_of(export_model(), {8}, odd));
  ASSERT_FALSE(hosts.has_value());
  EXPECT_EQ(base::to_string(hosts.error()),
            "error[E0016]: Megatron-LM can run nothing like this plan: 12 ranks on hosts of 8 "
            "devices; as many ranks as whole hosts have");
  EXPECT_EQ(base::exit_code(hosts.error()), 2);
  Plan broken = export_plan_of(export_model(), {8}, {});
  broken.sequence = 0;
  const auto invalid = megatron(broken);
  ASSERT_FALSE(invalid.has_value());
  EXPECT_EQ(base::exit_code(invalid.error()), 1);
}

}  // namespace
}  // namespace orrery::plan

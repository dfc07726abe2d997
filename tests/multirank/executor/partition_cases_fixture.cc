// Layers whose operators are partitioned in space and time: primitives alone, as Must show 2 of
// issue 18 asks, and ten mixed sequences.
#include <stdexcept>

#include "plan_cases_fixture.h"

namespace orrery::executor::testing {

using plan::LayerPartition;
using plan::LayerStrategy;
using plan::Plan;

namespace {

/// Sequences by plan::LayerOperator: stream, qkv, scores, softmax, values, projection, middle
/// stream, mlp in, activation, mlp out.
LayerPartition partition(const std::array<const char*, 10>& texts) {
  LayerPartition p;
  for (const char* text : texts) p.push_back(plan::parse_sequence(text).value());
  return p;
}

Plan base_plan(const model::ModelSpec& model, const LayerStrategy& vocabulary,
               std::int64_t micro_batches) {
  plan::UniformOptions options{.dp = 1, .micro_batch = 8 / micro_batches};
  options.global_batch = 8;
  options.sequence = 32;
  options.precision = model::Precision::kFloat32;
  base::Result<Plan> made = plan::uniform_plan(model, "local", 1, options);
  if (!made) throw std::runtime_error(base::to_string(made.error()));
  made->vocabulary = vocabulary;
  return *std::move(made);
}

/// `layers` of four, the others as the vocabulary.
PlanCase partitioned(const char* name, const LayerStrategy& vocabulary,
                     const std::array<const char*, 10>& texts, std::int64_t micro_batches = 1,
                     int layers = 2) {
  return {name, vocabulary.ranks(), [=](const model::ModelSpec& model) {
            Plan p = base_plan(model, vocabulary, micro_batches);
            const plan::LayerRun run{.count = layers,
                                     .strategy = {.dp = vocabulary.ranks()},
                                     .partition = partition(texts)};
            p.stages[0].runs = {run};
            if (layers < 4)
              p.stages[0].runs.push_back({.count = 4 - layers, .strategy = vocabulary});
            return p;
          }};
}

constexpr LayerStrategy kFour{.dp = 4}, kPairs{.tp = 2, .dp = 2}, kEight{.tp = 2, .dp = 4},
    kSixteen{.tp = 2, .dp = 8};

void add_primitives(std::vector<PlanCase>& cases) {
  cases.push_back(
      partitioned("partition_mlp_p2x2", kFour,
                  {"B,B", "B,B", "B,B", "B,B", "B,B", "B,B", "B,B", "P2x2", "M,K", "P2x2"}));
  cases.push_back(partitioned(
      "partition_layer_p2x2", kFour,
      {"M,K", "P2x2", "B,H", "B,M", "H,L", "P2x2", "K,M", "P2x2", "B,K", "P2x2"}, 2, 4));
  cases.push_back(partitioned("partition_mlp_p4x4", kSixteen,
                              {"B,B,B,M", "B,B,B,M", "B,B,B,M", "B,B,B,M", "B,B,B,M", "B,B,B,M",
                               "B,B,B,M", "P4x4", "M,M,K,K", "P4x4"}));
  cases.push_back(partitioned("partition_layer_p4x4", kSixteen,
                              {"P4x4+1", "P4x4", "B,H,M,L", "B,B,H,M", "H,H,L,B", "P4x4+1",
                               "M,M,K,K", "P4x4", "P4x4+1", "P4x4+1"}));
  cases.push_back(partitioned(
      "partition_skewed_chain", kPairs,
      {"P2x2+1", "P2x2+1", "H,H", "H,H", "H,H", "P2x2", "P2x2+1", "P2x2+1", "P2x2+1", "P2x2"}, 2));
}

/// Of the paper's section 4 and its figures, and what stands beside them.
void add_mixed(std::vector<PlanCase>& cases) {
  cases.push_back(
      partitioned("partition_mixed_tensor_parallel", {.tp = 4},
                  {"R,R", "K,K", "H,H", "H,H", "H,H", "N,N", "R,R", "K,K", "K,K", "N,N"}, 2));
  cases.push_back(
      partitioned("partition_mixed_batch_and_features", kPairs,
                  {"B,R", "B,K", "B,H", "B,H", "B,H", "B,N", "B,R", "B,K", "B,K", "B,N"}));
  cases.push_back(
      partitioned("partition_mixed_tokens_between", {.tp = 4},
                  {"M,M", "K,K", "H,H", "H,H", "H,H", "N,N", "M,M", "K,K", "K,K", "N,N"}));
  cases.push_back(
      partitioned("partition_mixed_keys", kFour,
                  {"M,M", "M,M", "L,L", "M,M", "L,L", "M,M", "M,M", "M,N", "M,M", "N,M"}));
  cases.push_back(
      partitioned("partition_mixed_queries_and_keys", kPairs,
                  {"K,K", "N,K", "M,L", "M,H", "L,M", "K,N", "K,M", "K,N", "M,M", "N,K"}));
  cases.push_back(partitioned("partition_mixed_k_p2x2", kEight,
                              {"B,M,K", "K,P2x2", "B,H,H", "B,H,M", "H,B,M", "N,P2x2", "R,M,K",
                               "K,P2x2", "K,M,K", "N,P2x2"}));
  cases.push_back(partitioned("partition_mixed_b_p2x2", kEight,
                              {"B,P2x2+1", "B,P2x2", "B,H,L", "B,M,M", "B,H,L", "B,P2x2+1", "B,M,K",
                               "B,P2x2", "B,P2x2+1", "B,P2x2+1"}));
  cases.push_back(partitioned("partition_mixed_p2x2_k", kEight,
                              {"M,K,B", "P2x2,K", "H,M,L", "M,M,H", "L,L,M", "P2x2,N", "P2x2+1,B",
                               "P2x2,M", "B,K,K", "P2x2,B"}));
  cases.push_back(partitioned("partition_mixed_m_p2x2", kEight,
                              {"M,B,R", "M,P2x2", "M,H,H", "M,B,H", "M,L,L", "N,P2x2", "R,B,K",
                               "N,P2x2+1", "B,B,K", "M,P2x2"}));
  cases.push_back(partitioned("partition_mixed_nested_p2x2", kSixteen,
                              {"B,B,M,K", "P2x2,P2x2", "B,B,H,L", "B,B,M,M", "B,H,H,M",
                               "P2x2,P2x2+1", "B,M,M,K", "P2x2,P2x2", "M,K,M,K", "P2x2,P2x2"}));
}

/// Attention in one operation: where the product left its operands, and elsewhere.
void add_fused(std::vector<PlanCase>& cases) {
  cases.push_back(
      partitioned("partition_fused_attention", kPairs,
                  {"B,R", "B,K", "B,H", "-", "B,H", "B,N", "B,M", "P2x2", "M,K", "P2x2"}, 2));
  cases.push_back(
      partitioned("partition_fused_attention_moved", kFour,
                  {"M,K", "P2x2", "H,H", "-", "H,H", "P2x2", "K,M", "N,K", "B,K", "N,N"}));
}

/// States sharded over devices with the same block, layers that run again.
void add_sharded(std::vector<PlanCase>& cases) {
  using enum plan::GradReduce;
  const auto add = [&](const char* name, const LayerStrategy& vocabulary,
                       const std::array<const char*, 10>& texts, std::int64_t micro_batches,
                       const LayerStrategy& sharding) {
    PlanCase one = partitioned(name, vocabulary, texts, micro_batches, 3);
    one.make = [make = one.make, sharding](const model::ModelSpec& model) {
      Plan p = make(model);
      LayerStrategy& s = p.stages[0].runs[0].strategy;
      s.zero = sharding.zero;
      s.recompute = sharding.recompute;
      s.grad_reduce = sharding.grad_reduce;
      return p;
    };
    cases.push_back(std::move(one));
  };
  constexpr auto kFull = plan::Recompute::kFull;
  const std::array nested{"B,R,M",  "B,P2x2", "B,H,H",  "-",     "B,H,H",
                          "N,P2x2", "R,M,K",  "M,P2x2", "B,B,K", "B,P2x2+1"};
  const std::array splits{"B,M", "B,M", "B,H", "-", "B,H", "B,N", "M,K", "B,K", "B,K", "M,N"};
  const std::array keys{"M,M", "M,M", "L,L", "M,M", "L,L", "M,M", "M,M", "M,N", "M,M", "N,M"};
  const std::array skewed{"P2x2+1", "P2x2+1", "H,H",    "H,H",    "H,H",
                          "P2x2",   "P2x2+1", "P2x2+1", "P2x2+1", "B,M"};
  add("partition_zero1_at_end", kPairs, splits, 2, {.zero = 1, .grad_reduce = kEnd});
  add("partition_zero2_parts", kEight, nested, 2, {.zero = 2, .grad_reduce = kMicroBatch});
  add("partition_zero3", kFour, keys, 2, {.zero = 3});
  add("partition_recomputed_skewed", kPairs, skewed, 2, {.zero = 3, .recompute = kFull});
  add("partition_zero3_recomputed", kEight, nested, 2,
      {.zero = 3, .recompute = kFull, .grad_reduce = kMicroBatch});
}

/// Partitioned layers in a stage of a pipeline, between conventional ones.
PlanCase between_conventional() {
  return {"partition_between_conventional_pp2", 8, [](const model::ModelSpec& model) {
            plan::UniformOptions options{.tp = 2, .pp = 2, .dp = 2, .micro_batch = 2};
            options.global_batch = 8;
            options.sequence = 32;
            options.precision = model::Precision::kFloat32;
            Plan p = plan::uniform_plan(model, "local", 1, options).value();
            const plan::LayerRun run{
                .count = 1,
                .strategy = {.dp = 4},
                .partition = partition(
                    {"M,K", "P2x2", "B,H", "B,M", "H,L", "P2x2", "K,M", "P2x2", "B,K", "P2x2"})};
            p.stages[0].runs = {{.count = 1, .strategy = {.tp = 2, .dp = 2}}, run};
            p.stages[1].runs = {
                run, {.count = 1, .strategy = {.tp = 2, .dp = 2, .sequence_parallel = true}}};
            return p;
          }};
}

}  // namespace

std::vector<PlanCase> partition_cases() {
  std::vector<PlanCase> cases;
  add_primitives(cases);
  add_mixed(cases);
  add_fused(cases);
  add_sharded(cases);
  cases.push_back(between_conventional());
  return cases;
}

}  // namespace orrery::executor::testing

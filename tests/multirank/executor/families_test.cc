// Today's kinds of attention and blocks train like one process: AdamW steps in fp32, losses
// equal to 1e-6, on two and four ranks, with tensor and sequence parallelism, sharded states,
// pipelines and recomputation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "base/json.h"
#include "plan/check/check.h"
#include "plan_cases_fixture.h"
#include "tests/support/rank_body.h"
#include "tests/support/small_kinds.h"

namespace orrery::executor::testing {
namespace {

using model::ModelSpec;

/// Full attention in every other block, else over `reach` keys.
ModelSpec alternating(ModelSpec m, bool chunked) {
  model::BlockShape narrow = m, full = m;
  narrow.reach = 8;
  narrow.chunked = chunked;
  full.rotates = !chunked;
  m.runs = {{"narrow", 2, narrow}, {"full", 2, full}};
  m.order = {0, 1, 0, 1};
  static_cast<model::BlockShape&>(m) = narrow;
  return m;
}

ModelSpec layer_norms(ModelSpec m) {
  m.norm = model::NormKind::kLayerNorm;
  m.gated_mlp = false;
  m.activation = model::Activation::kGelu;
  m.qkv_bias = m.projection_bias = m.mlp_bias = true;
  return m;
}

ModelSpec latent(ModelSpec m, std::int64_t q_rank) {
  m.mixer = model::Mixer::kLatent;
  m.head_dim = 16;
  m.rope_dim = 8;
  m.value_dim = 12;
  m.q_rank = q_rank;
  m.kv_rank = 16;
  m.rope = {.scaling = model::RopeScaling::kYarn,
            .factor = 4,
            .low = 1,
            .high = 32,
            .original = 16,
            .magnitude = 1.1};
  return m;
}

struct Kind {
  const char* name;
  ModelSpec (*make)(ModelSpec plain);
  bool splits_heads = true;
};

const Kind kKinds[] = {
    {"norms of queries and keys, heads wider than the model",
     [](ModelSpec m) {
       m.qk_norm = model::QkNorm::kHead;
       m.head_dim = 16;
       return m;
     }},
    {"windows, caps, norms about branches",
     [](ModelSpec m) {
       m.norm_after = m.tied_embeddings = true;
       m.activation = model::Activation::kGeluTanh;
       m.score_cap = 3;
       m.logit_cap = 10;
       m.score_scale = 0.3;
       m.embedding_scale = 8;
       return alternating(m, false);
     }},
    {"sinks",
     [](ModelSpec m) {
       m.sinks = m.qkv_bias = m.projection_bias = true;
       m.rope = {.scaling = model::RopeScaling::kYarn,
                 .factor = 8,
                 .low = 1,
                 .high = 32,
                 .original = 16,
                 .magnitude = 1.2};
       return alternating(m, false);
     }},
    {"chunks, every other block without rotation",
     [](ModelSpec m) {
       m.qk_norm = model::QkNorm::kPlain;
       return alternating(m, true);
     }},
    {"parallel branches behind two norms, a quarter of a head rotated",
     [](ModelSpec m) {
       m = layer_norms(m);
       m.branches = model::Branches::kParallelTwoNorms;
       m.rope.dims = 2;
       return m;
     }},
    {"parallel branches behind one norm, a head with biases",
     [](ModelSpec m) {
       m = layer_norms(m);
       m.branches = model::Branches::kParallel;
       m.head_bias = true;
       return m;
     }},
    {"slopes",
     [](ModelSpec m) {
       m = layer_norms(m);
       m.position = model::PositionKind::kAlibi;
       m.embedding_norm = m.tied_embeddings = true;
       return m;
     }},
    {"norms over all heads, none before branches",
     [](ModelSpec m) {
       m.qk_norm = model::QkNorm::kWhole;
       m.norm_before = false;
       m.norm_after = true;
       return m;
     },
     false},
    {"multipliers, rotation of Llama 3",
     [](ModelSpec m) {
       m.embedding_scale = 12;
       m.score_scale = 0.2;
       m.residual_scale = 0.22;
       m.logit_scale = 0.5;
       m.rope = {.scaling = model::RopeScaling::kLlama3,
                 .factor = 8,
                 .low = 1,
                 .high = 4,
                 .original = 16};
       return m;
     }},
    {"squared ReLU, dynamic rotation",
     [](ModelSpec m) {
       m = layer_norms(m);
       m.activation = model::Activation::kSquaredRelu;
       m.rope = {.scaling = model::RopeScaling::kDynamic, .factor = 4, .original = 16};
       return m;
     }},
    {"a gate on attention's output, linear rotation",
     [](ModelSpec m) {
       m.output_gate = true;
       m.rope = {.scaling = model::RopeScaling::kLinear, .factor = 4};
       return m;
     }},
    {"layer norms without biases",
     [](ModelSpec m) {
       m = layer_norms(m);
       m.norm_bias = false;
       return m;
     }},
    {"layer norms without gains and biases",
     [](ModelSpec m) {
       m = layer_norms(m);
       m.norm_gain = m.norm_bias = false;
       return m;
     }},
    {"BERT: masked tokens, norms behind branches",
     [](ModelSpec m) {
       m = layer_norms(m);
       m.family = model::Family::kBert;
       m.causal = false;
       m.post_norm = m.embedding_norm = m.pooler = m.tied_embeddings = true;
       m.position = model::PositionKind::kLearned;
       m.type_vocab = 2;
       return m;
     }},
    {"OPT-350M: a table narrower than the blocks, norms behind the residual",
     [](ModelSpec) { return tests::small_opt(); }},
    {"longrope, beyond the original positions",
     [](ModelSpec) { return model::find_model("phi-3-tiny").value(); }},
    {"latent attention", [](ModelSpec m) { return latent(m, 24); }},
    {"latent attention, queries without a rank", [](ModelSpec m) { return latent(m, 0); }},
    {"latent attention over the keys that an indexer chooses",
     [](ModelSpec) { return tests::small_sparse(); }, false},
};

ModelSpec model_of(const Kind& kind) {
  ModelSpec m = kind.make(small_model("llama"));
  m.kv_heads = m.mixer == model::Mixer::kLatent ? m.heads : m.kv_heads;
  m.name = kind.name;
  return m;
}

const NamedOptions& plans() {
  static const NamedOptions kPlans{
      {"tp2_dp2_zero3", {.tp = 2, .dp = 2, .zero = 3}},
      {"tp2_sp_pp2_recompute",
       {.tp = 2, .pp = 2, .sequence_parallel = true, .recompute = plan::Recompute::kFull}},
      {"tp4_selective", {.tp = 4, .recompute = plan::Recompute::kSelective}},
      {"dp2_operator_recompute", {.dp = 2, .zero = 1, .recompute = plan::Recompute::kOperator}},
  };
  return kPlans;
}
bool runs(const Kind& kind, const plan::UniformOptions& o) {
  return o.tp == 1 || kind.splits_heads;
}

plan::Program program_of(const ModelSpec& m, plan::UniformOptions o) {
  o.micro_batch = 2;
  return lowered(m, o);
}

class Families : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Families, TrainLikeOneProcess) {
  const auto& [name, options] = plans()[GetParam()];
  const std::optional<base::Json> json =
      found_by_ranks("FamilyRank.Trains", rank_case(plans()[GetParam()]), rank_cases(plans()));
  ASSERT_TRUE(json);
  for (const Kind& kind : kKinds) {
    if (!runs(kind, options)) continue;
    SCOPED_TRACE(kind.name);
    const auto faults = plan::check(program_of(model_of(kind), options));
    EXPECT_TRUE(faults.empty()) << faults.front().message;
    const Curve alone = train_alone(model_of(kind));
    EXPECT_LT(alone.losses.back(), 0.95 * alone.losses.front()) << "the model does not learn";
    const double difference =
        difference_of_first(json->at(kind.name).get<std::vector<double>>(), alone.losses);
    EXPECT_LE(difference, 1e-6);
    std::printf("%-22s loss %.1e  %s\n", name.c_str(), difference, kind.name);
  }
}
INSTANTIATE_TEST_SUITE_P(Plans, Families, ::testing::Range(std::size_t{0}, plans().size()),
                         [](const auto& tested) { return plans()[tested.param].first; });

// Not a test of its own: what each rank of the test above runs.
RANK_BODY(FamilyRank, Trains) {
  find_for_cases([](const std::string& name) {
    const auto& plan = *std::ranges::find(plans(), name, &NamedOptions::value_type::first);
    RunOptions run_options = training();
    run_options.backend = "mpi";
    run_options.steps = steps_together();
    base::Json out;
    for (const Kind& kind : kKinds) {
      if (!runs(kind, plan.second)) continue;
      const auto report = run(program_of(model_of(kind), plan.second), run_options);
      if (!report) throw std::runtime_error(kind.name + (": " + base::to_string(report.error())));
      std::vector<double> losses;
      for (const StepResult& s : report->steps) losses.push_back(s.loss);
      EXPECT_TRUE(std::ranges::all_of(losses, [](double l) { return std::isfinite(l); }))
          << kind.name << ": a loss is not a number, the first is " << losses.front();
      out[kind.name] = losses;
    }
    return out;
  });
}

}  // namespace
}  // namespace orrery::executor::testing

#include "model/spec.h"
#include "tests/support/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace orrery::model {
namespace {

ModelSpec model(const std::string& name) {
  auto found = find_model(name);
  EXPECT_TRUE(found) << (found ? "" : base::to_string(found.error()));
  return found.value_or(ModelSpec{});
}

struct Count {
  std::string name;
  std::int64_t parameters;
};

/// Counts of the published checkpoints (number of elements of the state dict, tied weights once).
const std::vector<Count> kCounts{{"deepseek-moe-16b", 16'375'728'128},
                                 {"swin-base", 87'768'224},
                                 {"swin-large", 196'532'476},
                                 // no checkpoint: by the paper's shapes, as swin-base and
                                 // swin-large
                                 {"swin-huge", 701'253'272},
                                 {"t5-small", 60'506'624},
                                 {"t5-large", 737'668'096},
                                 {"t5-3b", 2'851'598'336},
                                 {"vit-base", 86'567'656},
                                 {"vit-large", 304'326'632},
                                 {"vit-huge", 632'045'800},
                                 {"bert-large", 335'141'888},
                                 {"gpt2", 124'439'808},
                                 {"gpt2-tiny", 842'496},
                                 {"gpt2-xl", 1'557'611'200},
                                 {"llama-2-13b", 13'015'864'320},
                                 {"llama-2-70b", 68'976'648'192},
                                 {"llama-2-7b", 6'738'415'616},
                                 {"llama-3-405b", 405'853'388'800},
                                 {"llama-3-70b", 70'553'706'496},
                                 {"llama-3-8b", 8'030'261'248},
                                 {"llama-3.1-70b", 70'553'706'496},
                                 {"llama-3.1-8b", 8'030'261'248},
                                 {"llama-tiny", 869'504},
                                 {"mistral-7b", 7'241'732'096},
                                 {"mixtral-8x7b", 46'702'792'704},
                                 {"mixtral-tiny", 2'495'616},
                                 {"qwen1.5-moe-a2.7b", 14'315'784'192},
                                 {"qwen2.5-7b", 7'615'616'512},
                                 {"bloom", 176'247'271'424},
                                 {"deepseek-v2", 235'741'434'880},
                                 {"deepseek-v2-lite", 15'706'484'224},
                                 {"deepseek-v3", 671'026'404'352},
                                 {"deepseek-v3.2", 671'877'929'216},
                                 {"glm-5", 743'911'199'232},
                                 {"falcon-7b", 6'921'720'704},
                                 {"gemma-2-27b", 27'227'128'320},
                                 {"gemma-2-9b", 9'241'705'984},
                                 {"gemma-3-12b", 11'766'034'176},
                                 {"gemma-3-27b", 27'009'346'304},
                                 {"glm-4-9b-0414", 9'400'279'040},
                                 {"glm-4.5", 352'797'814'784},
                                 {"glm-4.5-air", 106'852'245'504},
                                 {"gpt-neox-20b", 20'554'567'680},
                                 {"gpt-oss-120b", 116'829'156'672},
                                 {"gpt-oss-20b", 20'914'757'184},
                                 {"granite-3.3-8b", 8'170'864'640},
                                 // by its shapes
                                 {"kimi-k2", 1'026'408'209'408},
                                 {"llama-4-maverick-17b-128e", 400'711'848'960},
                                 {"llama-4-scout-17b-16e", 107'769'861'120},
                                 {"mamba2-2.7b", 2'702'599'680},
                                 {"minimax-m2", 228'689'748'992},
                                 {"minimax-text-01", 456'089'655'296},
                                 {"mistral-large-2407", 122'610'069'504},
                                 {"mistral-nemo-12b", 12'247'782'400},
                                 {"mixtral-8x22b", 140'620'634'112},
                                 {"nemotron-3-nano-30b-a3b", 31'577'937'344},
                                 {"nemotron-3-super-120b-a12b", 120'668'687'360},
                                 {"olmo-2-32b", 32'234'279'936},
                                 {"olmo-2-7b", 7'298'617'344},
                                 {"opt-1.3b", 1'315'758'080},
                                 {"opt-350m", 331'196'416},
                                 {"phi-3-mini-4k", 3'821'079'552},
                                 {"phi-4", 14'659'507'200},
                                 {"qwen3-0.6b", 596'049'920},
                                 {"qwen3-235b-a22b", 235'093'634'560},
                                 {"qwen3-30b-a3b", 30'532'122'624},
                                 {"qwen3-32b", 32'762'123'264},
                                 {"qwen3-8b", 8'190'735'360},
                                 {"qwen3-next-80b-a3b", 79'674'391'296},
                                 {"starcoder2-15b", 15'957'889'024},
                                 {"mamba2-tiny", 155'552},
                                 {"nemotron-h-tiny", 245'664},
                                 {"qwen3-next-tiny", 288'320},
                                 {"minimax-tiny", 329'664},
                                 {"phi-3-tiny", 205'376}};

TEST(Catalog, ParameterCountsAreExact) {
  for (const Count& count : kCounts)
    EXPECT_EQ(model(count.name).parameters(), count.parameters) << count.name;
}

TEST(Catalog, ListIsSortedAndNamesDescriptionAndSource) {
  std::vector<std::string> names, expected;
  for (const CatalogModel& entry : list_catalog()) {
    names.push_back(entry.name);
    EXPECT_FALSE(entry.description.empty()) << entry.name;
    EXPECT_EQ(entry.description.find("error["), std::string::npos) << entry.description;
    EXPECT_FALSE(entry.source.empty()) << entry.name;
  }
  for (const Count& count : kCounts) expected.push_back(count.name);
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names, expected);
}

TEST(Catalog, UnknownNameSuggestsTheNearest) {
  const auto found = find_model("lama-2-7b");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().front().code, base::ErrorCode::kNotFound);
  EXPECT_EQ(found.error().front().hint, "did you mean 'llama-2-7b'?");
}

TEST(Catalog, UnknownNameFarFromAllStillHasAHint) {
  const auto found = find_model("zzzzzzzzzzzzzz");
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().front().hint, testing::HasSubstr("orrery list models"));
}

TEST(Catalog, PathReadsAFile) {
  const std::string path = std::string(tests::kSourceDir) + "/model/catalog/llama-2-7b.json";
  ModelSpec by_path = model(path);
  EXPECT_EQ(by_path.name, path);
  by_path.name = "llama-2-7b";
  EXPECT_EQ(by_path, model("llama-2-7b"));
}

TEST(Catalog, MissingPathIsAFault) {
  const auto found = find_model("./no-such-folder/config.json");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().front().code, base::ErrorCode::kNotFound);
}

TEST(Catalog, TinyModelsDivideByFour) {
  for (const char* name : {"gpt2-tiny", "llama-tiny", "mixtral-tiny"}) {
    const ModelSpec m = model(name);
    for (const std::int64_t size :
         {m.layers, m.heads, m.kv_heads, m.ffn, m.hidden, m.vocab, m.max_positions}) {
      EXPECT_EQ(size % 4, 0) << name << " " << size;
    }
  }
}

TEST(Catalog, FamiliesDifferWhereTheyShould) {
  const ModelSpec gpt2 = model("gpt2"), llama = model("llama-2-7b"), qwen = model("qwen2.5-7b"),
                  bert = model("bert-large");
  EXPECT_TRUE(gpt2.tied_embeddings && gpt2.qkv_bias && gpt2.projection_bias && gpt2.mlp_bias &&
              gpt2.causal);
  EXPECT_FALSE(llama.tied_embeddings || llama.qkv_bias || llama.projection_bias || llama.mlp_bias);
  EXPECT_TRUE(qwen.qkv_bias && !qwen.projection_bias && !qwen.mlp_bias);
  EXPECT_TRUE(bert.post_norm && bert.pooler && !bert.causal && bert.tied_embeddings);
  EXPECT_EQ(bert.activation, Activation::kGelu);
  EXPECT_EQ(gpt2.activation, Activation::kGeluTanh);
  EXPECT_EQ(bert.norm_epsilon, 1e-12);
  EXPECT_EQ(qwen.rope_theta, 1e6);
}

// The kinds of a model are its runs in order; its own fields are those of the first.
TEST(Catalog, KindsFollowTheLayers) {
  const ModelSpec t5 = model("t5-small"), swin = model("swin-base"),
                  mixture = model("deepseek-moe-16b"), gpt = model("gpt2");
  EXPECT_EQ(t5.layers, 12);
  EXPECT_EQ(t5.kinds(), 3);
  EXPECT_EQ(
      std::vector({t5.kind_of(0), t5.kind_of(5), t5.kind_of(6), t5.kind_of(7), t5.kind_of(11)}),
      std::vector({0, 0, 1, 2, 2}));
  EXPECT_TRUE(t5.encoder_decoder() && !t5.cross_attention && !t5.causal);
  EXPECT_TRUE(t5.of_kind(1).cross_attention && t5.of_kind(1).causal &&
              t5.of_kind(1).entry == BlockEntry::kEncoderEnd);
  EXPECT_EQ(t5.of_kind(2).entry, BlockEntry::kNone);
  EXPECT_EQ(swin.layers, 24);
  EXPECT_EQ(swin.kinds(), 7);
  const ModelSpec third = swin.of_kind(swin.kind_of(4));
  EXPECT_EQ(third.entry, BlockEntry::kPatchMerging);
  EXPECT_EQ(std::vector({third.hidden, third.input_hidden(), third.heads, third.head_dim, third.ffn,
                         third.token_share, third.input_token_share(), third.window}),
            (std::vector<std::int64_t>{512, 256, 16, 32, 2048, 16, 4, 49}));
  EXPECT_EQ(mixture.kinds(), 2);
  EXPECT_EQ(mixture.experts, 0);
  EXPECT_EQ(mixture.of_kind(1).shared_ffn, 2 * 1408);
  EXPECT_EQ(gpt.kinds(), 1);
  EXPECT_EQ(gpt.of_kind(0), gpt);
  EXPECT_FALSE(gpt.encoder_decoder());
}

// T5 small, s = 10: encoder block 2·10·512·(4·512 + 2·2048) + 4·100·512, decoder block
// 4·512 features and the scores once more; logits 2·10·512·32128. Swin base: patches
// 2·3136·48·128; the first block of stage 2 has 784 tokens of 256, windows of 49, and merges:
// 2·784·512·256.
TEST(ModelSpec, FlopsOfSeveralKindsByHand) {
  const double encoder = 2.0 * 10 * 512 * (4 * 512 + 2 * 2048) + 4.0 * 100 * 512,
               more = 2.0 * 10 * 512 * 4 * 512 + 4.0 * 100 * 512;
  EXPECT_EQ(model("t5-small").forward_matmul_flops(10),
            12 * encoder + 6 * more + 2.0 * 10 * 512 * 32128);
  const ModelSpec swin = model("swin-base");
  const double merge = 2.0 * 784 * 512 * 256,
               block = 2.0 * 784 * 256 * (4 * 256 + 8 * 256) + 4.0 * 784 * 49 * 256;
  EXPECT_EQ(swin.of_kind(1).block_matmul_flops(3136), block + merge);
  EXPECT_EQ(swin.of_kind(2).block_matmul_flops(3136), block);
  // The paper's table 1: 15.4 G multiply-additions for Swin-B.
  EXPECT_NEAR(swin.forward_matmul_flops(3136) / 2, 15.4e9, 0.1e9);
}

// hidden 4, 2 heads of 2, 1 kv head, ffn 6 gated, no biases, RMS.
ModelSpec by_hand() {
  ModelSpec m;
  m.hidden = 4;
  m.heads = 2;
  m.kv_heads = 1;
  m.head_dim = 2;
  m.ffn = 6;
  m.vocab = 10;
  m.norm = NormKind::kRmsNorm;
  m.gated_mlp = true;
  m.qkv_bias = m.projection_bias = m.mlp_bias = m.tied_embeddings = false;
  m.position = PositionKind::kRotary;
  return m;
}

// qkv 4*8, projection 4*4, MLP 4*12 + 6*4, norms 2*4.
TEST(ModelSpec, BlockParametersByHand) {
  ModelSpec m = by_hand();
  m.layers = 3;
  EXPECT_EQ(m.qkv_features(), 8);
  EXPECT_EQ(m.block_parameters(), 32 + 16 + 48 + 24 + 8);
  EXPECT_EQ(m.parameters(), 3 * 128 + 2 * 40 + 4);
  m.qkv_bias = m.projection_bias = m.mlp_bias = true;
  EXPECT_EQ(m.block_parameters(), 128 + 8 + 4 + 12 + 4);
  // One layer, s = 5: 2*5*4*8 + 2*5*4*4 + 2*5*4*12 + 2*5*6*4 = 1200, attention 4*25*4 = 400; logits
  // 2*5*4*10 = 400.
  EXPECT_EQ(m.forward_matmul_flops(5), 3 * (1200.0 + 400.0) + 400.0);
}

// The same block, three experts of that MLP with two per token, and a shared one of 5: MLPs 3*72 +
// 3*4*5, router 3*4, gate 4.
TEST(ModelSpec, ExpertsByHand) {
  ModelSpec m = by_hand();
  m.layers = 1;
  m.experts = 3;
  m.experts_per_token = 2;
  m.shared_ffn = 5;
  EXPECT_EQ(m.block_parameters(), 32 + 16 + 3 * 72 + 60 + 12 + 4 + 8);
  // s = 5: 2*5*4*(8 + 4), two experts 2 * 2*5*4*18, shared 2*5*4*15, router and gate 2*5*4*4,
  // attention 400; logits 400.
  EXPECT_EQ(m.forward_matmul_flops(5), 480.0 + 1440.0 + 600.0 + 160.0 + 400.0 + 400.0);
  m.shared_ffn = 0;
  EXPECT_EQ(m.block_parameters(), 32 + 16 + 3 * 72 + 12 + 8);
  EXPECT_EQ(m.forward_matmul_flops(5), 480.0 + 1440.0 + 120.0 + 400.0 + 400.0);
}

// 12.9 G of Mixtral's parameters act on a token (arXiv 2401.04088, section 2): 2 FLOPs each, but
// for the table that is looked up.
TEST(ModelSpec, MixtralsActiveParameters) {
  const ModelSpec m = model("mixtral-8x7b");
  const double scores = 4.0 * 32 * 4096, norms = (2 * 32 + 1) * 4096.0;
  EXPECT_EQ((m.forward_matmul_flops(1) - scores) / 2 + 32000.0 * 4096 + norms, 12'879'925'248.0);
}

TEST(ModelSpec, CapacityIsTheEvenShareTimesTheFactorRoundedUp) {
  ModelSpec m;
  m.experts = 8;
  m.experts_per_token = 2;
  m.capacity_factor = 1.25;
  EXPECT_EQ(m.expert_capacity(4096), 1280);  // 1024 * 1.25
  EXPECT_EQ(m.expert_capacity(5), 2);        // 1.25 * 1.25 = 1.5625
  EXPECT_EQ(m.expert_capacity(1), 1);
  m.capacity_factor = 8;
  EXPECT_EQ(m.expert_capacity(4096), 4096);  // a token goes to an expert at most once
}

// Narayanan et al., SC'21, equation 3 gives 24 B s l h^2 (1 + s/6h) + 2 B s h V for the forward
// pass of a GPT.
TEST(ModelSpec, ForwardFlopsAgreeWithMegatronFormula) {
  const ModelSpec m = model("gpt2");
  const double s = 1024, h = 768, l = 12, v = 50257;
  EXPECT_EQ(m.forward_matmul_flops(1024), 24 * s * l * h * h + 4 * s * s * l * h + 2 * s * h * v);
}

TEST(ModelSpec, FingerprintIsOfEveryFieldButTheName) {
  const ModelSpec m = model("llama-2-7b");
  ModelSpec renamed = m;
  renamed.name = "another";
  EXPECT_EQ(renamed.fingerprint(), m.fingerprint());
  std::vector<ModelSpec> changed(21, m);
  changed[0].family = Family::kMistral;
  changed[1].layers++;
  changed[2].hidden++;
  changed[3].heads++;
  changed[4].kv_heads++;
  changed[5].head_dim++;
  changed[6].ffn++;
  changed[7].vocab++;
  changed[8].max_positions++;
  changed[9].type_vocab++;
  changed[10].norm = NormKind::kLayerNorm;
  changed[11].norm_epsilon = 1e-7;
  changed[12].activation = Activation::kGelu;
  changed[13].gated_mlp = false;
  changed[14].qkv_bias = true;
  changed[15].projection_bias = true;
  changed[16].mlp_bias = true;
  changed[17].tied_embeddings = true;
  changed[18].position = PositionKind::kLearned;
  changed[19].rope_theta = 2;
  changed[20].causal = false;
  changed.push_back(m);
  changed.back().post_norm = true;
  changed.push_back(m);
  changed.back().pooler = true;
  ModelSpec sparse = m;
  sparse.experts = 8;
  sparse.experts_per_token = 2;
  changed.insert(changed.end(), 4, sparse);
  changed[changed.size() - 3].experts_per_token = 1;
  changed[changed.size() - 2].shared_ffn = 16;
  changed.back().capacity_factor = 1.25;
  std::vector<std::string> prints{m.fingerprint()};
  for (const ModelSpec& c : changed) prints.push_back(c.fingerprint());
  std::sort(prints.begin(), prints.end());
  EXPECT_EQ(std::adjacent_find(prints.begin(), prints.end()), prints.end());
}

}  // namespace
}  // namespace orrery::model

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "model/spec.h"

namespace orrery::model {
namespace {

using base::ErrorCode;
using testing::HasSubstr;

base::Result<ModelSpec> read(const std::string& text) {
  const auto node = base::Node::parse_text(text, "config.json");
  EXPECT_TRUE(node) << (node ? "" : base::to_string(node.error()));
  return read_hf_config(*node, "m");
}
ModelSpec accepted(const std::string& text) {
  const auto spec = read(text);
  EXPECT_TRUE(spec) << (spec ? "" : base::to_string(spec.error()));
  return spec.value_or(ModelSpec{});
}
base::Diagnostics refused(const std::string& text) {
  auto spec = read(text);
  EXPECT_FALSE(spec);
  return spec ? base::Diagnostics{base::Diagnostic{}} : spec.error();
}

/// A small llama with one more member.
std::string llama(const std::string& member) {
  return R"({"model_type": "llama", "num_hidden_layers": 2, "intermediate_size": 32,
   "vocab_size": 64,
 "max_position_embeddings": 16, )" +
         member + "}";
}
const std::string kHeads = R"("hidden_size": 16, "num_attention_heads": 4)";

TEST(HfConfig, OldAndNewSpellingsAreTheSameModel) {
  const ModelSpec old_keys = accepted(
      R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16,
 "n_ctx": 16,
    "vocab_size": 11, "n_inner": null, "activation_function": "gelu_new"})");
  const ModelSpec new_keys = accepted(
      R"({"model_type": "gpt2", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 16, "vocab_size": 11})");
  EXPECT_EQ(old_keys, new_keys);
  EXPECT_EQ(old_keys.ffn, 32);
  EXPECT_EQ(old_keys.max_positions, 16);
}

TEST(HfConfig, InnerSizeOverridesFourTimesHidden) {
  EXPECT_EQ(accepted(
                R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_ctx": 16,
 "vocab_size": 11, "n_inner": 24})")
                .ffn,
            24);
}

TEST(HfConfig, SpellingsThatDifferAreAFault) {
  const auto faults = refused(R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2,
    "n_positions": 16, "n_ctx": 32, "vocab_size": 11})");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].code, ErrorCode::kInconsistent);
  EXPECT_EQ(faults[0].where.line, 2u);
  EXPECT_EQ(faults[0].message, "'n_ctx' is 32, but 'n_positions' is 16");
}

TEST(HfConfig, KeyValueHeadsDefaultToHeads) {
  EXPECT_EQ(accepted(llama(kHeads)).kv_heads, 4);
  EXPECT_EQ(accepted(llama(kHeads + R"(, "num_key_value_heads": null)")).kv_heads, 4);
  EXPECT_EQ(accepted(llama(kHeads + R"(, "num_key_value_heads": 2)")).kv_heads, 2);
}

TEST(HfConfig, MistralDefaultsToEightKeyValueHeads) {
  const std::string rest =
      R"("num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 16,
 "intermediate_size": 8, "vocab_size": 9,
    "max_position_embeddings": 4})";
  EXPECT_EQ(accepted(R"({"model_type": "mistral", )" + rest).kv_heads, 8);
  EXPECT_EQ(accepted(R"({"model_type": "mistral", "num_key_value_heads": null, )" + rest).kv_heads,
            16);
}

TEST(HfConfig, HeadSizeMayBeStated) {
  const ModelSpec m =
      accepted(llama(R"("hidden_size": 18, "num_attention_heads": 4, "head_dim": 8)"));
  EXPECT_EQ(m.head_dim, 8);
  EXPECT_EQ(m.qkv_features(), 96);
}

TEST(HfConfig, BiasesFollowTheFlagsOfLlama) {
  const ModelSpec m = accepted(
      llama(kHeads + R"(, "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true)"));
  EXPECT_TRUE(m.qkv_bias && m.projection_bias && m.mlp_bias && m.tied_embeddings);
}

TEST(HfConfig, RotaryBaseMayStandInRopeParameters) {
  EXPECT_EQ(accepted(llama(kHeads)).rope_theta, 10000.0);
  EXPECT_EQ(accepted(llama(kHeads + R"(, "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0})"))
                .rope_theta,
            500000.0);
  EXPECT_EQ(accepted(llama(kHeads +
                           R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6})"))
                .rope_theta,
            1e6);
}

TEST(HfConfig, KeysOfOthersAreAllowed) {
  EXPECT_EQ(accepted(llama(kHeads +
                           R"(, "architectures": ["LlamaForCausalLM"], "torch_dtype": "float16",
 "use_cache": true)"))
                .layers,
            2);
}

/// Defaults of GPT2Config and LlamaConfig; what the file says of attention counts.
TEST(HfConfig, DropoutIsThatOfAttention) {
  const std::string gpt2 =
      R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 32,
 "vocab_size": 100)";
  const auto plain = read(gpt2 + "}"), without = read(gpt2 + R"(, "attn_pdrop": 0.0})"),
             stated = read(gpt2 + R"(, "attn_pdrop": 0.1})");
  ASSERT_TRUE(plain && without && stated);
  EXPECT_TRUE(plain->dropout);
  EXPECT_FALSE(without->dropout);
  EXPECT_NE(without->fingerprint(), plain->fingerprint());
  EXPECT_EQ(stated->fingerprint(), plain->fingerprint());
  EXPECT_FALSE(find_model("llama-2-7b")->dropout);
  EXPECT_FALSE(read(gpt2 + R"(, "attn_pdrop": 1.5})").has_value());
}

TEST(HfConfig, UnknownModelTypeSuggestsTheNearest) {
  const auto faults = refused("{\n  \"model_type\": \"lama\"\n}");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].code, ErrorCode::kBadValue);
  EXPECT_EQ(faults[0].hint, "did you mean 'llama'?");
  EXPECT_EQ(faults[0].where.line, 2u);
  EXPECT_EQ(faults[0].where.column, 17u);
}

TEST(HfConfig, AllFaultsAreReported) {
  const auto faults = refused(
      R"({"model_type": "bert", "hidden_size": 0, "num_attention_heads": "4", "vocab_size": 1.5,
    "layer_norm_eps": -1, "hidden_act": "gelu_nwe"})");
  const std::string text = base::to_string(faults);
  EXPECT_THAT(text, HasSubstr("'hidden_size'"));
  EXPECT_THAT(text, HasSubstr("'num_attention_heads'"));
  EXPECT_THAT(text, HasSubstr("'vocab_size'"));
  EXPECT_THAT(text, HasSubstr("has no 'num_hidden_layers'"));
  EXPECT_THAT(text, HasSubstr("has no 'max_position_embeddings'"));
  EXPECT_THAT(text, HasSubstr("has no 'intermediate_size'"));
  EXPECT_THAT(text, HasSubstr("'layer_norm_eps'"));
  EXPECT_THAT(text, HasSubstr("did you mean 'gelu_new'?"));
  EXPECT_EQ(faults.size(), 8u) << text;
}

TEST(HfConfig, HeadsThatDoNotDivideHiddenAreAFault) {
  const auto faults = refused(llama("\n  \"hidden_size\": 16,\n  \"num_attention_heads\": 3"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].code, ErrorCode::kInconsistent);
  EXPECT_EQ(faults[0].message, "3 heads do not divide the hidden size 16");
  EXPECT_EQ(faults[0].where.line, 5u);
  EXPECT_EQ(faults[0].where.column, 26u);
  EXPECT_THAT(faults[0].hint, HasSubstr("head_dim"));
}

TEST(HfConfig, KeyValueHeadsThatDoNotDivideHeadsAreAFault) {
  const auto faults = refused(llama(kHeads + ",\n\"num_key_value_heads\": 3"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].message, "3 key/value heads do not divide 4 heads");
  EXPECT_EQ(faults[0].where.line, 4u);
  EXPECT_FALSE(faults[0].hint.empty());
}

TEST(HfConfig, OddRotaryHeadsAreAFault) {
  const auto faults = refused(llama(R"("hidden_size": 12, "num_attention_heads": 4)"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_THAT(faults[0].message, HasSubstr("pairs"));
}

TEST(HfConfig, VariantsThatWeDoNotTrainAreRefused) {
  const auto faults = refused(
      R"({"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9,
 "num_hidden_layers": 1,
    "intermediate_size": 8, "max_position_embeddings": 4, "is_decoder": true,
     "position_embedding_type": "relative_key"})");
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_EQ(faults[0].code, ErrorCode::kUnsupported);
  EXPECT_EQ(faults[1].code, ErrorCode::kUnsupported);
}

TEST(HfConfig, SizesWhoseProductOverflowsAreRefused) {
  const auto faults = refused(
      R"({"model_type": "llama", "num_hidden_layers": 1000000, "intermediate_size": 1000000,
 "vocab_size": 64,
    "max_position_embeddings": 16, "hidden_size": 1000000, "num_attention_heads": 1000000,
     "head_dim": 1000000})");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].code, ErrorCode::kOutOfRange);
}

const std::string kMixtral =
    R"({"model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 32,
 "num_attention_heads": 16, "vocab_size": 9,
 "intermediate_size": 48, "max_position_embeddings": 4, )";
const std::string kQwen2Moe =
    R"({"model_type": "qwen2_moe", "num_hidden_layers": 2, "hidden_size": 32,
 "num_attention_heads": 16, "vocab_size": 9,
 "intermediate_size": 64, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
  "max_position_embeddings": 4, )";

TEST(HfConfig, MixtralHasExpertsInEveryBlock) {
  const ModelSpec m = accepted(kMixtral + R"("num_local_experts": 8, "num_experts_per_tok": 2})");
  EXPECT_EQ(m.experts, 8);
  EXPECT_EQ(m.experts_per_token, 2);
  EXPECT_EQ(m.ffn, 48);
  EXPECT_EQ(m.shared_ffn, 0);
  EXPECT_EQ(m.kv_heads, 8);
  EXPECT_EQ(m.rope_theta, 1e6);
  EXPECT_EQ(m.norm_epsilon, 1e-5);
  EXPECT_EQ(m.capacity_factor, 1);
  EXPECT_FALSE(m.qkv_bias);
}

TEST(HfConfig, Qwen2MoeHasASharedExpert) {
  const ModelSpec m =
      accepted(kQwen2Moe +
               R"("num_experts": 60, "num_experts_per_tok": 4, "moe_expert_capacity_factor": 2.0,
 "mlp_only_layers": []})");
  EXPECT_EQ(m.experts, 60);
  EXPECT_EQ(m.ffn, 24);
  EXPECT_EQ(m.shared_ffn, 40);
  EXPECT_EQ(m.capacity_factor, 2.0);
  EXPECT_TRUE(m.qkv_bias);
  EXPECT_EQ(m.norm_epsilon, 1e-6);
}

TEST(HfConfig, ATokenCannotGoToMoreExpertsThanThereAre) {
  const auto faults = refused(kMixtral + "\"num_local_experts\": 4,\n\"num_experts_per_tok\": 5}");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].code, ErrorCode::kInconsistent);
  EXPECT_EQ(faults[0].message, "a token goes to 5 experts, and there are 4");
  EXPECT_EQ(faults[0].where.line, 4u);
  EXPECT_FALSE(faults[0].hint.empty());
}

TEST(HfConfig, DenseBlocksBetweenSparseOnesAreRefused) {
  for (const char* key : {R"("decoder_sparse_step": 2)", R"("mlp_only_layers": [0])"}) {
    const auto faults =
        refused(kQwen2Moe + R"("num_experts": 8, "num_experts_per_tok": 4, )" + key + "}");
    ASSERT_EQ(faults.size(), 1u) << key;
    EXPECT_EQ(faults[0].code, ErrorCode::kUnsupported);
  }
}

TEST(HfConfig, AMixtureNeedsItsSizes) {
  const std::string text = base::to_string(
      refused(R"({"model_type": "qwen2_moe", "hidden_size": 8, "num_attention_heads": 2})"));
  for (const char* key : {"'num_local_experts'", "'num_experts_per_tok'",
                          "'shared_expert_intermediate_size'", "'moe_intermediate_size'"}) {
    EXPECT_THAT(text, HasSubstr(key));
  }
}

TEST(HfConfig, ExpertsWhoseProductOverflowsAreRefused) {
  const auto faults = refused(
      R"({"model_type": "mixtral", "num_hidden_layers": 100000, "hidden_size": 100000,
 "num_attention_heads": 16,
    "vocab_size": 9, "intermediate_size": 100000, "max_position_embeddings": 4,
     "num_local_experts": 1000000, "num_experts_per_tok": 1})");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].code, ErrorCode::kOutOfRange);
}

TEST(HfConfig, AListIsNoModel) {
  const auto faults = refused("[1]");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].code, ErrorCode::kWrongType);
}

const std::string kT5 = R"("d_model": 8, "d_kv": 4, "d_ff": 16, "num_heads": 2, "vocab_size": 32)";
ModelSpec t5(const std::string& more) {
  return accepted(R"({"model_type": "t5", )" + kT5 + more + "}");
}

TEST(HfConfig, DecoderOfT5IsAsDeepAsItsEncoderUnlessStated) {
  EXPECT_EQ(t5(R"(, "num_layers": 3)").layers, 6);
  const ModelSpec m = t5(R"(, "num_layers": 3, "num_decoder_layers": 1)");
  EXPECT_EQ(m.layers, 4);
  EXPECT_EQ(m.kinds(), 2);  // no decoder block beside the first
  EXPECT_EQ(m.activation, Activation::kRelu);
}

TEST(HfConfig, T5ScalesItsOutputWhereItSharesTheEmbeddingAndNoScores) {
  const ModelSpec shared = t5(R"(, "num_layers": 1)"),
                  apart = t5(R"(, "num_layers": 1, "tie_word_embeddings": false)");
  EXPECT_EQ(shared.score_scale, 1);
  EXPECT_EQ(shared.logit_scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(apart.score_scale, 1);
  EXPECT_EQ(apart.logit_scale, 1);
}

TEST(HfConfig, GatedT5IsOneOfVersionOneOne) {
  const ModelSpec m =
      t5(R"(, "num_layers": 1, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false)");
  EXPECT_TRUE(m.gated_mlp && !m.tied_embeddings);
  EXPECT_EQ(m.activation, Activation::kGeluTanh);
  EXPECT_THAT(base::to_string(refused(R"({"model_type": "t5", "num_layers": 1, )" + kT5 +
                                      R"(, "feed_forward_proj": "gated-tanh"})")),
              HasSubstr("one of relu, gelu, silu"));
}

TEST(HfConfig, ClassesAreLabelsOrTwo) {
  const std::string vit = R"({"model_type": "vit", "image_size": 32, "patch_size": 8)";
  EXPECT_EQ(accepted(vit + "}").vocab, 2);
  EXPECT_EQ(accepted(vit + R"(, "id2label": {"0": "cat", "1": "dog", "2": "owl"}})").vocab, 3);
  EXPECT_EQ(accepted(vit + R"(, "num_labels": 10})").vocab, 10);
  EXPECT_EQ(accepted(vit + "}").max_positions, 17);
}

TEST(HfConfig, WindowsOfSwinMustDivide) {
  const auto faults = refused(R"({"model_type": "swin", "image_size": 96, "window_size": 7})");
  EXPECT_THAT(base::to_string(faults),
              HasSubstr("windows of 7 do not divide the 24 x 24 tokens of stage 1"));
}

// A window larger than a stage's tokens is that stage.
TEST(HfConfig, WindowsShrinkToTheImage) {
  const ModelSpec m = accepted(R"({"model_type": "swin", "image_size": 32, "window_size": 8})");
  EXPECT_EQ(m.window, 64);
  EXPECT_EQ(m.of_kind(m.last_kind()).window, 1);
}

}  // namespace
}  // namespace orrery::model

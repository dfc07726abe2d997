// config.json of today's decoders: which blocks attend how, and which keys are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/spec.h"

namespace orrery::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string with(std::string_view family, std::string_view keys) {
  return R"({"model_type": ")" + std::string(family) +
         R"(", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
            "max_position_embeddings": 64)" +
         std::string(keys) + "}";
}
base::Result<ModelSpec> read(std::string_view family, std::string_view keys = "") {
  const auto root = base::Node::parse_text(with(family, keys), "config.json");
  EXPECT_TRUE(root.has_value());
  return read_hf_config(*root, "test");
}
std::string refusal(std::string_view family, std::string_view keys) {
  const auto model = read(family, keys);
  return model ? "read" : base::to_string(model.error());
}

TEST(HfDecoders, BlocksOfGemma2TakeTurns) {
  const ModelSpec m = *read("gemma2", R"(, "sliding_window": 16, "head_dim": 16,
      "query_pre_attn_scalar": 25, "attn_logit_softcapping": 50.0,
      "final_logit_softcapping": 30.0)");
  EXPECT_THAT(m.order, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(m.of_kind(m.kind_of(0)).reach, 16);
  EXPECT_EQ(m.of_kind(m.kind_of(1)).reach, 0);
  EXPECT_EQ(m.blocks_of(0), 2);
  EXPECT_EQ(m.score_scale, 0.2);
  EXPECT_EQ(m.score_cap, 50);
  EXPECT_EQ(m.logit_cap, 30);
  EXPECT_EQ(m.embedding_scale, 8);
  EXPECT_EQ(m.block_norms(), 4);
}

// Of a window of 16 keys each of 64 queries takes 16 in place of 64.
TEST(HfDecoders, AWindowCostsItsKeys) {
  const ModelSpec m = *read("gemma2", R"(, "sliding_window": 16, "head_dim": 16)");
  const double narrow = m.of_kind(0).block_matmul_flops(64),
               full = m.of_kind(1).block_matmul_flops(64);
  EXPECT_EQ(full - narrow, 4.0 * 64 * (64 - 16) * 4 * 16);
}

TEST(HfDecoders, RoutersAreThoseOfTheFamilyOrTheFile) {
  const auto routing = [](const char* name) { return find_model(name)->routing; };
  const Routing v3{.sigmoid = true, .groups = 8, .groups_per_token = 4, .scale = 2.5};
  EXPECT_EQ(routing("deepseek-v3"), v3);
  EXPECT_EQ(routing("deepseek-v2"),
            (Routing{.groups = 8, .groups_per_token = 3, .normalised = false, .scale = 16}));
  EXPECT_EQ(routing("deepseek-v2-lite"), Routing{.normalised = false});
  EXPECT_EQ(routing("kimi-k2"), (Routing{.sigmoid = true, .scale = 2.827}));
  for (const char* scaled : {"glm-4.5", "nemotron-3-nano-30b-a3b"})
    EXPECT_EQ(routing(scaled), (Routing{.sigmoid = true, .scale = 2.5})) << scaled;
  for (const char* plain : {"glm-4.5-air", "minimax-m2"})
    EXPECT_EQ(routing(plain), Routing{.sigmoid = true}) << plain;
  EXPECT_EQ(routing("qwen1.5-moe-a2.7b"), Routing{.normalised = false});
  for (const char* softmax : {"mixtral-8x7b", "qwen3-235b-a22b", "gpt-oss-20b", "llama-3-8b"})
    EXPECT_EQ(routing(softmax), Routing{}) << softmax;

  constexpr const char* kExperts = R"(, "n_routed_experts": 8, "num_experts_per_tok": 2,
      "moe_intermediate_size": 32)";
  const auto glm = [&](const std::string& keys) { return read("glm4_moe", kExperts + keys); };
  EXPECT_EQ(glm(R"(, "n_group": 4, "topk_group": 2)")->routing,
            (Routing{.sigmoid = true, .groups = 4, .groups_per_token = 2}));
  EXPECT_NE(glm(R"(, "routed_scaling_factor": 2.5)")->fingerprint(), glm("")->fingerprint());
  const auto refused = [&](const std::string& keys) {
    return refusal("glm4_moe", kExperts + keys);
  };
  EXPECT_THAT(refused(R"(, "n_group": 3)"), HasSubstr("3 groups of 8 experts"));
  EXPECT_THAT(refused(R"(, "n_group": 2, "topk_group": 3)"), HasSubstr("3 groups of 2"));
  EXPECT_THAT(refused(R"(, "n_group": 8)"), HasSubstr("1 groups of 1 experts have no 2 experts"));
  EXPECT_THAT(refused(R"(, "scoring_func": "tanh")"), HasSubstr("'scoring_func' is 'tanh'"));

  const std::string grouped = R"(, "n_group": 4, "topk_group": 2, "topk_method": )";
  EXPECT_EQ(glm(grouped + R"("greedy")")->routing, Routing{.sigmoid = true});
  EXPECT_EQ(glm(grouped + R"("noaux_tc")")->routing.groups, 4);
  EXPECT_EQ(glm(grouped + R"("group_limited_greedy", "scoring_func": "softmax")")->routing.groups,
            4);
  EXPECT_THAT(
      refused(grouped + R"("group_limited_greedy")"),
      HasSubstr("'topk_method' is 'group_limited_greedy', and scores are those of a sigmoid"));
}

TEST(HfDecoders, AnOptTableMayBeNarrowerThanItsBlocks) {
  const ModelSpec plain = *read("opt", ""), narrow = *read("opt", R"(, "word_embed_proj_dim": 8)"),
                  behind = *read("opt", R"(, "do_layer_norm_before": false)");
  const std::int64_t h = plain.hidden;
  EXPECT_EQ(narrow.embedding_width(), 8);
  EXPECT_EQ(plain.parameters() - narrow.parameters(), plain.vocab * (h - 8) - 2 * 8 * h);
  EXPECT_EQ(plain.forward_matmul_flops(16) - narrow.forward_matmul_flops(16),
            2. * 16 * static_cast<double>(plain.vocab * (h - 8) - 2 * 8 * h));
  const ModelSpec untied =
      *read("opt", R"(, "word_embed_proj_dim": 8, "tie_word_embeddings": false)");
  EXPECT_EQ(untied.parameters() - narrow.parameters(), narrow.vocab * 8);
  EXPECT_EQ(plain.parameters() - behind.parameters(), 2 * h);  // no final norm
  EXPECT_TRUE(behind.post_norm);
  EXPECT_FALSE(behind.embedding_norm);
}

// Whichever kind of block comes last: 2^61 numbers a mixture.
TEST(HfDecoders, MixturesThatCannotBeCountedAreRefused) {
  const std::string keys = R"(, "n_routed_experts": 1048576, "num_experts_per_tok": 1,
      "moe_intermediate_size": 1048576, "mamba_num_heads": 4, "mamba_head_dim": 16)",
                    latent = R"(, "moe_latent_size": 1048576, "hybrid_override_pattern": )";
  for (const char* pattern : {R"("EEEE")", R"("EE*M")"})
    EXPECT_THAT(refusal("nemotron_h", keys + latent + pattern),
                HasSubstr("the sizes make a model of"));
}

TEST(HfDecoders, LayerTypesSayWhichBlockHasAWindow) {
  const ModelSpec m = *read("olmo3", R"(, "sliding_window": 8,
      "layer_types": ["full_attention", "sliding_attention", "sliding_attention",
                      "full_attention"])");
  EXPECT_THAT(m.order, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(m.of_kind(1).reach, 8);
}

TEST(HfDecoders, FourthBlocksOfLlama4AttendFullyWithoutRotation) {
  const ModelSpec m = *read("llama4", R"(, "head_dim": 16, "num_local_experts": 4,
      "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 192,
      "attention_chunk_size": 16, "use_qk_norm": false)");
  const ModelSpec last = m.of_kind(m.kind_of(3)), first = m.of_kind(m.kind_of(0));
  EXPECT_FALSE(last.rotates);
  EXPECT_EQ(last.reach, 0);
  EXPECT_EQ(last.experts, 4);
  EXPECT_TRUE(first.chunked);
  EXPECT_EQ(first.experts, 0);
  EXPECT_EQ(first.ffn, 192);
  EXPECT_EQ(m.routing, (Routing{.sigmoid = true, .normalised = false, .of_inputs = true}));
  EXPECT_EQ(m.qk_norm, QkNorm::kNone);
}

TEST(HfDecoders, Llama4NormsQueriesAndKeysUnlessItIsToldNotTo) {
  const std::string mixture = R"(, "num_local_experts": 4, "num_experts_per_tok": 1,
      "intermediate_size_mlp": 192, "attention_chunk_size": 16, "layer_types":
      ["chunked_attention", "chunked_attention", "chunked_attention", "full_attention"])";
  const ModelSpec m = *read("llama4", mixture);
  EXPECT_EQ(m.qk_norm, QkNorm::kPlain);
  EXPECT_TRUE(m.of_kind(m.kind_of(0)).rotates);
  EXPECT_FALSE(m.of_kind(m.kind_of(3)).rotates);
}

TEST(HfDecoders, ARouterOutOfBalanceIsStatedByItsCapacity) {
  const std::string mixture = R"(, "num_experts": 4, "num_experts_per_tok": 2)";
  EXPECT_EQ(read("qwen3_moe", mixture)->capacity_factor, 1);
  EXPECT_EQ(read("qwen3_moe", mixture + R"(, "moe_expert_capacity_factor": 1.25)")->capacity_factor,
            1.25);
  EXPECT_THAT(refusal("qwen3_moe", mixture + R"(, "moe_expert_capacity_factor": 0)"),
              HasSubstr("'moe_expert_capacity_factor'"));
}

TEST(HfDecoders, Llama31RescalesItsRotation) {
  const ModelSpec m = *read("llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32})");
  EXPECT_EQ(m.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(m.rope.factor, 8);
  EXPECT_EQ(m.rope.original, 32);
  EXPECT_NE(m.fingerprint(), read("llama")->fingerprint());
}

TEST(HfDecoders, WindowsOfQwen2MeanNothingUntilTheyAreSwitchedOn) {
  EXPECT_EQ(read("qwen2", R"(, "sliding_window": 16)")->reach, 0);
  const ModelSpec m = *read("qwen2", R"(, "sliding_window": 16, "use_sliding_window": true,
      "max_window_layers": 3)");
  EXPECT_EQ(m.of_kind(m.kind_of(2)).reach, 0);
  EXPECT_EQ(m.of_kind(m.kind_of(3)).reach, 16);
}

TEST(HfDecoders, AnUnknownKeyIsNamedAndAHarmlessOneIsNot) {
  EXPECT_THAT(refusal("qwen3", R"(, "attention_temperature": 2.0)"),
              HasSubstr("'attention_temperature'"));
  EXPECT_EQ(refusal("qwen3", R"(, "attention_temperature": null, "bos_token_id": 7,
      "torch_dtype": "bfloat16", "attention_dropout": 0.0, "use_something": false)"),
            "read");
}

// DeepSeek-V2's shapes: W_dq and its norm, W_dkv, W_kr, their norm, W_uq, W_ukv, W_o.
TEST(HfDecoders, LatentAttentionHasTheMatricesOfItsPaper) {
  const ModelSpec m = *read("deepseek_v3", R"(, "q_lora_rank": 24, "kv_lora_rank": 16,
      "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10)");
  EXPECT_EQ(m.mixer_parameters(),
            64 * 24 + 24 + 64 * 16 + 64 * 8 + 16 + 24 * 4 * 20 + 16 * 4 * (12 + 10) + 4 * 10 * 64);
}

constexpr const char* kLatentKeys = R"(, "q_lora_rank": 24, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10)";
constexpr const char* kIndexKeys = R"(, "index_n_heads": 3, "index_head_dim": 9, "index_topk": 5)";

// By hand, a sequence of 16 tokens: products of 24 x 27 and 64 x (9 + 3) numbers, a layer norm of
// 9; scores of all 16 keys, attention of 5 in place of 16.
TEST(HfDecoders, AnIndexerAddsItsProductsAndTakesKeysAway) {
  const ModelSpec all = *read("deepseek_v3", kLatentKeys),
                  chosen = *read("deepseek_v32", std::string(kLatentKeys) + kIndexKeys);
  EXPECT_EQ(chosen.indexer, (Indexer{3, 9, 5}));
  const double products = 24 * 27 + 64 * 12;
  EXPECT_EQ(chosen.mixer_parameters() - all.mixer_parameters(), products + 2 * 9);
  EXPECT_EQ(chosen.index_product_flops(16), 2 * 16 * products);
  EXPECT_EQ(chosen.block_matmul_flops(16) - all.block_matmul_flops(16),
            2 * 16 * products + 2 * 16 * 16 * 27 - 2 * 16 * (16 - 5) * 4 * (20 + 10));
  EXPECT_EQ(chosen.training_matmul_flops(16),
            3 * chosen.forward_matmul_flops(16) - 4 * 2 * 16 * products);
  EXPECT_NE(chosen.fingerprint(), all.fingerprint());
}

TEST(HfDecoders, AnIndexerNeedsItsSizesAndTheLatentOfQueries) {
  EXPECT_THAT(refusal("deepseek_v32", kLatentKeys), HasSubstr("'index_n_heads'"));
  EXPECT_THAT(refusal("glm_moe_dsa", std::string(kLatentKeys) +
                                         R"(, "index_n_heads": 3, "index_head_dim": 7,
      "index_topk": 5)"),
              HasSubstr("7 numbers of an index key hold no 8 rotated ones"));
  EXPECT_THAT(refusal("glm_moe_dsa", std::string(R"(, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
      "qk_nope_head_dim": 12, "v_head_dim": 10)") +
                                         kIndexKeys),
              HasSubstr("'q_lora_rank'"));
}

TEST(HfDecoders, MlpLayerTypesSayWhichBlocksAreDense) {
  const std::string experts = std::string(kLatentKeys) + kIndexKeys + R"(, "n_routed_experts": 8,
      "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_layer_types": )";
  const ModelSpec m = *read("glm_moe_dsa", experts + R"(["dense", "sparse", "sparse", "sparse"])");
  EXPECT_EQ(m.of_kind(m.kind_of(0)).experts, 0);
  EXPECT_EQ(m.of_kind(m.kind_of(0)).ffn, 96);
  EXPECT_EQ(m.of_kind(m.kind_of(1)).experts, 8);
  EXPECT_THAT(refusal("glm_moe_dsa", experts + R"(["dense", "sparse", "sprase", "sparse"])"),
              HasSubstr("a block's MLP is 'sprase'; dense or sparse"));
  EXPECT_THAT(refusal("glm_moe_dsa", experts + R"(["dense"])"),
              HasSubstr("1 entries for 4 blocks"));
}

}  // namespace
}  // namespace orrery::model

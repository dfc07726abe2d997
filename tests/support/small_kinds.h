#pragma once
/// Small models of the families whose blocks or objectives are not those of a decoder: four blocks
/// of width 64, sequences of 32 tokens, no two sizes alike where that can be.
#include "model/spec.h"

namespace orrery::tests {

/// What they share.
inline model::ModelSpec made_small(model::ModelSpec m, const char* name) {
  m.name = name;
  m.layers = 4;
  m.hidden = 64;
  m.heads = m.kv_heads = 4;
  m.head_dim = 16;
  m.ffn = 96;
  m.vocab = 259;
  m.max_positions = 32;
  return m;
}

/// 31 patches of 4 x 4 in three colours and a class token.
inline model::ModelSpec small_vit() {
  model::ModelSpec m = made_small({}, "small vit");
  m.family = model::Family::kViT;
  m.vocab = 10;
  m.patch_features = 48;
  m.class_token = true;
  m.causal = m.tied_embeddings = false;
  m.activation = model::Activation::kGelu;
  m.norm_epsilon = 1e-12;
  return m;
}

/// OPT-350M: a table narrower than the blocks, norms behind the residual.
inline model::ModelSpec small_opt() {
  model::ModelSpec m = made_small(model::find_model("opt-350m").value(), "small opt");
  m.embedding_hidden = 48;
  return m;
}

/// DeepSeek-V3.2 without its mixtures: a query sees the five keys that an indexer chooses. It has
/// six heads, for of three all may learn to score nothing, and then have no gradient.
inline model::ModelSpec small_sparse() {
  model::ModelSpec m =
      made_small(model::family_defaults(model::Family::kDeepSeekV32), "small sparse");
  m.mixer = model::Mixer::kLatent;
  m.q_rank = 24;
  m.kv_rank = 20;
  m.rope_dim = 8;
  m.value_dim = 12;
  m.indexer = {6, 10, 5};
  return m;
}

/// Llama 4's mixtures: sigmoids weight what experts read, one expert reads all; none drops a token.
inline model::ModelSpec small_llama4(std::int64_t choices = 1) {
  model::ModelSpec m = made_small(model::find_model("llama-tiny").value(), "small llama 4");
  m.ffn = 48;
  m.shared_ffn = 40;
  m.shared_gate = false;
  m.experts = 8;
  m.experts_per_token = choices;
  m.capacity_factor = 8.0 / static_cast<double>(choices);
  m.routing = {.sigmoid = true, .normalised = false, .of_inputs = true};
  return m;
}

/// 8 x 8 patches; two blocks of width 32 in windows of 4 x 4, then two of width 64 on a quarter of
/// the tokens in windows of 2 x 2.
inline model::ModelSpec small_swin() {
  model::ModelSpec m = small_vit();
  m.name = "small swin";
  m.family = model::Family::kSwin;
  m.class_token = false;
  m.position = model::PositionKind::kRelative;
  m.patch_norm = true;
  m.norm_epsilon = 1e-5;
  m.hidden = 32;
  m.head_dim = 8;
  m.ffn = 64;
  m.max_positions = 64;
  m.window = 16;
  const model::BlockShape first = m;
  model::BlockShape merging = m;
  merging.hidden = 64;
  merging.heads = merging.kv_heads = 8;
  merging.ffn = 96;
  merging.window = merging.token_share = 4;
  merging.entry = model::BlockEntry::kPatchMerging;
  model::BlockShape second = merging;
  second.entry = model::BlockEntry::kNone;
  m.runs = {{"stage 1", 2, first}, {"stage 2 merge", 1, merging}, {"stage 2", 1, second}};
  return m;
}

/// An encoder of two blocks and a decoder of two; heads that are not the width's share.
inline model::ModelSpec small_t5() {
  model::ModelSpec m = made_small({}, "small t5");
  m.family = model::Family::kT5;
  m.head_dim = 12;
  m.relative_buckets = 8;
  m.norm = model::NormKind::kRmsNorm;
  m.norm_epsilon = 1e-6;
  m.activation = model::Activation::kRelu;
  m.position = model::PositionKind::kRelative;
  m.qkv_bias = m.projection_bias = m.mlp_bias = false;
  m.score_scale = 1;
  m.causal = false;
  const model::BlockShape encoder = m;
  model::BlockShape first = m;
  first.causal = first.cross_attention = true;
  first.entry = model::BlockEntry::kEncoderEnd;
  model::BlockShape decoder = first;
  decoder.entry = model::BlockEntry::kNone;
  m.runs = {{"encoder", 2, encoder}, {"decoder 1", 1, first}, {"decoder", 1, decoder}};
  return m;
}

}  // namespace orrery::tests

#include "model/spec.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/fingerprint.h"

namespace orrery::model {

std::string_view to_string(Family family) {
  switch (family) {
    case Family::kGpt2: return "gpt2";
    case Family::kLlama: return "llama";
    case Family::kMistral: return "mistral";
    case Family::kQwen2: return "qwen2";
    case Family::kBert: return "bert";
    case Family::kMixtral: return "mixtral";
    case Family::kQwen2Moe: return "qwen2_moe";
  }
  return "";
}

std::string_view to_string(NormKind norm) {
  switch (norm) {
    case NormKind::kLayerNorm: return "layer_norm";
    case NormKind::kRmsNorm: return "rms_norm";
  }
  return "";
}

std::string_view to_string(Activation activation) {
  switch (activation) {
    case Activation::kGelu: return "gelu";
    case Activation::kGeluTanh: return "gelu_tanh";
    case Activation::kSilu: return "silu";
  }
  return "";
}

std::string_view to_string(PositionKind position) {
  switch (position) {
    case PositionKind::kLearned: return "learned";
    case PositionKind::kRotary: return "rotary";
  }
  return "";
}

namespace {

/// Gain, and for layer norm a bias.
std::int64_t norm_parameters(const ModelSpec& m) { return (m.norm == NormKind::kLayerNorm ? 2 : 1) * m.hidden; }

}  // namespace

std::int64_t ModelSpec::expert_capacity(std::int64_t tokens) const {
  ORRERY_CHECK(experts > 0);
  const double even = static_cast<double>(tokens * experts_per_token) / static_cast<double>(experts);
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(even * capacity_factor)));
}

// MLP of a mixture: every expert; router [E, h]; shared expert and its gate [1, h].
std::int64_t ModelSpec::block_parameters() const {
  const std::int64_t attention_features = heads * head_dim;
  const std::int64_t mlp = hidden * (mlp_in_features() + ffn);
  const std::int64_t shared = shared_ffn > 0 ? hidden * ((gated_mlp ? 3 : 2) * shared_ffn + 1) : 0;
  const std::int64_t weights = hidden * qkv_features() + attention_features * hidden +
                               (experts > 0 ? experts * (mlp + hidden) + shared : mlp);
  const std::int64_t biases = (qkv_bias ? qkv_features() : 0) + (projection_bias ? hidden : 0) +
                              (mlp_bias ? mlp_in_features() + hidden : 0);
  return weights + biases + 2 * norm_parameters(*this);
}

// Token, position and type tables; blocks; one more norm (final, or BERT's after the embedding); head; pooler.
std::int64_t ModelSpec::parameters() const {
  const std::int64_t tokens = vocab * hidden;
  const std::int64_t positions = position == PositionKind::kLearned ? max_positions * hidden : 0;
  const std::int64_t types = type_vocab * hidden;
  const std::int64_t head = tied_embeddings ? 0 : tokens;
  const std::int64_t pool = pooler ? hidden * hidden + hidden : 0;
  return tokens + positions + types + layers * block_parameters() + norm_parameters(*this) + head + pool;
}

// Per block: QKV 2·s·h·(n+2k)d, scores and their product with v 2·2·s²·n·d, projection 2·s·n·d·h, MLP 2·s·h·(f or 2f) + 2·s·f·h;
// then logits 2·s·h·v. A mixture: the MLP of k experts and of the shared one, router and shared gate 2·s·h·(E + 1).
double ModelSpec::forward_matmul_flops(std::int64_t seq) const {
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double s = real(seq);
  const double attention_features = real(heads * head_dim);
  double mlp = real(mlp_in_features()) + real(ffn);
  if (experts > 0) {
    const double shared = shared_ffn > 0 ? (gated_mlp ? 3 : 2) * real(shared_ffn) + 1 : 0;
    mlp = real(experts_per_token) * mlp + shared + real(experts);
  }
  const double products = 2 * s * real(hidden) * (real(qkv_features()) + attention_features + mlp);
  const double attention = 4 * s * s * attention_features;
  return real(layers) * (products + attention) + 2 * s * real(hidden) * real(vocab);
}

std::string ModelSpec::fingerprint() const {
  base::Fingerprint f;
  f.add("orrery.model/1").add(to_string(family));
  f.add(layers).add(hidden).add(heads).add(kv_heads).add(head_dim).add(ffn).add(vocab).add(max_positions).add(type_vocab);
  f.add(to_string(norm)).add(norm_epsilon).add(to_string(activation)).add(gated_mlp);
  f.add(qkv_bias).add(projection_bias).add(mlp_bias).add(tied_embeddings);
  f.add(to_string(position)).add(rope_theta).add(causal).add(post_norm).add(pooler);
  // Plans of dense models keep the digest that they were made for.
  if (experts > 0) f.add("experts").add(experts).add(experts_per_token).add(shared_ffn).add(capacity_factor);
  return f.hex();
}

}  // namespace orrery::model

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
    case Family::kDeepSeek: return "deepseek";
    case Family::kT5: return "t5";
    case Family::kViT: return "vit";
    case Family::kSwin: return "swin";
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
    case Activation::kRelu: return "relu";
  }
  return "";
}

namespace {

std::string_view to_string(PositionKind position) {
  switch (position) {
    case PositionKind::kLearned: return "learned";
    case PositionKind::kRotary: return "rotary";
    case PositionKind::kRelative: return "relative";
  }
  return "";
}

std::string_view to_string(BlockEntry entry) {
  switch (entry) {
    case BlockEntry::kNone: return "none";
    case BlockEntry::kPatchMerging: return "patch_merging";
    case BlockEntry::kEncoderEnd: return "encoder_end";
  }
  return "";
}

/// Gain, and for layer norm a bias, of each feature.
std::int64_t norm_parameters(const ModelSpec& m, std::int64_t features) {
  return (m.norm == NormKind::kLayerNorm ? 2 : 1) * features;
}

double real(std::int64_t n) { return static_cast<double>(n); }

}  // namespace

int ModelSpec::kind_of(std::int64_t layer) const {
  ORRERY_CHECK(layer >= 0 && layer < layers, "layer {} of {}", layer, layers);
  int kind = 0;
  for (std::int64_t end = 0; kind < kinds() - 1; ++kind) {
    end += runs[static_cast<std::size_t>(kind)].count;
    if (layer < end) break;
  }
  return kind;
}

ModelSpec ModelSpec::of_kind(int kind) const {
  ORRERY_CHECK(kind >= 0 && kind < kinds(), "kind {} of {}", kind, kinds());
  ModelSpec m = *this;
  if (runs.empty()) return m;
  const BlockShape& s = runs[static_cast<std::size_t>(kind)].shape;
  m.hidden = s.hidden;
  m.heads = s.heads;
  m.kv_heads = s.kv_heads;
  m.head_dim = s.head_dim;
  m.ffn = s.ffn;
  m.causal = s.causal;
  m.experts = s.experts;
  m.experts_per_token = s.experts_per_token;
  m.shared_ffn = s.shared_ffn;
  m.cross_attention = s.cross_attention;
  m.entry = s.entry;
  m.window = s.window;
  m.token_share = s.token_share;
  return m;
}

bool ModelSpec::encoder_decoder() const {
  return std::ranges::any_of(runs, [](const BlockRun& run) { return run.shape.cross_attention; });
}

std::int64_t ModelSpec::expert_capacity(std::int64_t tokens) const {
  ORRERY_CHECK(experts > 0);
  const double even =
      static_cast<double>(tokens * experts_per_token) / static_cast<double>(experts);
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(even * capacity_factor)));
}

// MLP of a mixture: every expert; router [E, h]; shared expert and its gate [1, h]. A window of
// side w: (2w - 1)² biases a head (Liu et al., "Swin Transformer", arXiv 2103.14030, equation 4).
std::int64_t ModelSpec::block_parameters() const {
  const std::int64_t attention_features = heads * head_dim;
  const std::int64_t mlp = hidden * (mlp_in_features() + ffn);
  const std::int64_t shared =
      shared_ffn > 0 ? hidden * ((gated_mlp ? 3 : 2) * shared_ffn + (shared_gate ? 1 : 0)) : 0;
  std::int64_t weights = hidden * qkv_features() + attention_features * hidden +
                         (experts > 0 ? experts * (mlp + hidden) + shared : mlp);
  std::int64_t biases = (qkv_bias ? qkv_features() : 0) + (projection_bias ? hidden : 0) +
                        (mlp_bias ? mlp_in_features() + hidden : 0);
  std::int64_t norms = 2 * norm_parameters(*this, hidden);
  if (cross_attention) {
    weights += hidden * qkv_features() + attention_features * hidden;
    norms += norm_parameters(*this, hidden);
  }
  if (window > 0) biases += relative_positions() * heads;
  switch (entry) {
    case BlockEntry::kNone: break;
    case BlockEntry::kPatchMerging:
      norms += norm_parameters(*this, 2 * hidden);
      weights += 2 * hidden * hidden;
      break;
    case BlockEntry::kEncoderEnd: norms += norm_parameters(*this, hidden); break;
  }
  return weights + biases + norms;
}

std::int64_t ModelSpec::relative_positions() const {
  const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(real(window))));
  return (2 * side - 1) * (2 * side - 1);
}

// Text: token, position and type tables; blocks; one more norm (final, or BERT's after the
// embedding); head; pooler. Images: the patch product with its bias, class token, norm; the head
// has a bias.
std::int64_t ModelSpec::parameters() const {
  const ModelSpec last = of_kind(last_kind());
  const bool image = patch_features > 0;
  const std::int64_t tokens =
      image ? (patch_features + 1 + (class_token ? 1 : 0)) * hidden : vocab * hidden;
  const std::int64_t positions = position == PositionKind::kLearned ? max_positions * hidden : 0;
  const std::int64_t types = type_vocab * hidden, relative = 2 * relative_buckets * heads;
  const std::int64_t head = tied_embeddings ? 0 : vocab * (last.hidden + (image ? 1 : 0));
  const std::int64_t pool = pooler ? hidden * hidden + hidden : 0;
  const std::int64_t norms =
      norm_parameters(*this, last.hidden) + (patch_norm ? norm_parameters(*this, hidden) : 0);
  std::int64_t blocks = runs.empty() ? layers * block_parameters() : 0;
  for (int k = 0; !runs.empty() && k < kinds(); ++k)
    blocks += runs[static_cast<std::size_t>(k)].count * of_kind(k).block_parameters();
  return tokens + positions + types + relative + blocks + norms + head + pool;
}

// Per block of s tokens: QKV 2·s·h·(n+2k)d, scores and their product with v 2·2·s·r·n·d over a span
// of r tokens, projection 2·s·n·d·h, MLP 2·s·h·(f or 2f) + 2·s·f·h; cross-attention as much again,
// over all tokens. A mixture: the MLP of k experts and of the shared one, router and shared gate
// 2·s·h·(E + 1). Patch merging 2·s·2h·h.
double ModelSpec::block_matmul_flops(std::int64_t seq) const {
  const double s = real(seq / token_share);
  const double attention_features = real(heads * head_dim);
  double mlp = real(mlp_in_features()) + real(ffn);
  if (experts > 0) {
    const double shared =
        shared_ffn > 0 ? (gated_mlp ? 3 : 2) * real(shared_ffn) + (shared_gate ? 1 : 0) : 0;
    mlp = real(experts_per_token) * mlp + shared + real(experts);
  }
  const double attention_products = real(qkv_features()) + attention_features;
  double products = 2 * s * real(hidden) * (attention_products + mlp);
  double attention = 4 * s * real(attention_span(seq / token_share)) * attention_features;
  if (cross_attention) {
    products += 2 * s * real(hidden) * attention_products;
    attention += 4 * s * s * attention_features;
  }
  if (entry == BlockEntry::kPatchMerging) products += 4 * s * real(hidden) * real(hidden);
  return products + attention;
}

// Then logits 2·s·h·v; images: the patch product, and logits of one token.
double ModelSpec::forward_matmul_flops(std::int64_t seq) const {
  const double logits =
      2 * (patch_features > 0 ? 1 : real(seq)) * real(of_kind(last_kind()).hidden) * real(vocab);
  const double patches = 2 * real(seq) * real(patch_features) * real(hidden);
  double blocks = runs.empty() ? real(layers) * block_matmul_flops(seq) : 0;
  for (int k = 0; !runs.empty() && k < kinds(); ++k)
    blocks += real(runs[static_cast<std::size_t>(k)].count) * of_kind(k).block_matmul_flops(seq);
  return blocks + logits + patches;
}

std::string ModelSpec::fingerprint() const {
  base::Fingerprint f;
  f.add("orrery.model/1").add(to_string(family));
  f.add(layers)
      .add(hidden)
      .add(heads)
      .add(kv_heads)
      .add(head_dim)
      .add(ffn)
      .add(vocab)
      .add(max_positions)
      .add(type_vocab);
  f.add(to_string(norm)).add(norm_epsilon).add(to_string(activation)).add(gated_mlp);
  f.add(qkv_bias).add(projection_bias).add(mlp_bias).add(tied_embeddings);
  f.add(to_string(position)).add(rope_theta).add(causal).add(post_norm).add(pooler);
  // Plans of dense models keep the digest that they were made for.
  const auto add_experts = [&f](const auto& b) {
    f.add("experts").add(b.experts).add(b.experts_per_token).add(b.shared_ffn);
  };
  if (experts > 0) add_experts(*this), f.add(capacity_factor);
  if (!shared_gate) f.add("no shared gate");
  if (dropout != family_defaults(family).dropout) f.add("dropout").add(dropout);
  if (patch_features > 0) f.add("patches").add(patch_features).add(class_token).add(patch_norm);
  if (relative_buckets > 0) f.add("relative buckets").add(relative_buckets);
  for (const BlockRun& run : runs) {
    const BlockShape& b = run.shape;
    f.add("run")
        .add(run.name)
        .add(run.count)
        .add(b.hidden)
        .add(b.heads)
        .add(b.kv_heads)
        .add(b.head_dim)
        .add(b.ffn)
        .add(b.causal);
    if (b.experts > 0) add_experts(b), f.add(capacity_factor);
    f.add(b.cross_attention).add(to_string(b.entry)).add(b.window).add(b.token_share);
  }
  return f.hex();
}

}  // namespace orrery::model

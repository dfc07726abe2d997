#include "model/spec.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/ids.h"
#include "base/numbers.h"

namespace orrery::model {

namespace {

constexpr base::EnumNames<Family::kSwin> kFamilies("gpt2", "llama", "mistral", "qwen2", "bert",
                                                   "mixtral", "qwen2_moe", "deepseek", "t5", "vit",
                                                   "swin");
constexpr base::EnumNames<NormKind::kRmsNorm> kNorms("layer_norm", "rms_norm");
constexpr base::EnumNames<Activation::kRelu> kActivations("gelu", "gelu_tanh", "silu", "relu");
constexpr base::EnumNames<PositionKind::kRelative> kPositions("learned", "rotary", "relative");
constexpr base::EnumNames<BlockEntry::kEncoderEnd> kEntries("none", "patch_merging", "encoder_end");

/// Gain, and for layer norm a bias, of each feature.
std::int64_t norm_parameters(const ModelSpec& m, std::int64_t features) {
  return (m.norm == NormKind::kLayerNorm ? 2 : 1) * features;
}

}  // namespace

std::string_view to_string(Family family) { return kFamilies[family]; }
std::string_view to_string(NormKind norm) { return kNorms[norm]; }
std::string_view to_string(Activation activation) { return kActivations[activation]; }

int ModelSpec::kind_of(std::int64_t layer) const {
  ORRERY_CHECK(layer >= 0 && layer < layers, "layer {} of {}", layer, layers);
  int kind = 0;
  for (std::int64_t end = 0; kind < kinds() - 1; ++kind) {
    end += runs[as_index(kind)].count;
    if (layer < end) break;
  }
  return kind;
}

ModelSpec ModelSpec::of_kind(int kind) const {
  ORRERY_CHECK(kind >= 0 && kind < kinds(), "kind {} of {}", kind, kinds());
  ModelSpec m = *this;
  if (runs.empty()) return m;
  static_cast<BlockShape&>(m) = runs[as_index(kind)].shape;
  return m;
}

std::int64_t ModelSpec::blocks_of(int kind) const {
  return runs.empty() ? layers : runs[as_index(kind)].count;
}

bool ModelSpec::encoder_decoder() const {
  return std::ranges::any_of(runs, [](const BlockRun& run) { return run.shape.cross_attention; });
}

std::int64_t ModelSpec::expert_capacity(std::int64_t tokens) const {
  ORRERY_CHECK(experts > 0);
  const double even = real(tokens * experts_per_token) / real(experts);
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
  std::int64_t blocks = 0;
  for (int k = 0; k < kinds(); ++k) blocks += blocks_of(k) * of_kind(k).block_parameters();
  return tokens + positions + types + relative + blocks + norms + head + pool;
}

// Per block of s tokens: QKV 2·s·h·(n+2k)d, scores and their product with v 2·2·s·r·n·d
// over a span of r tokens, projection 2·s·n·d·h, MLP 2·s·h·(f or 2f) + 2·s·f·h;
// cross-attention as much again, over all tokens. A mixture: the MLP of k experts and of the shared
// one, router and shared gate 2·s·h·(E + 1). Patch merging 2·s·2h·h.
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
  double blocks = 0;
  for (int k = 0; k < kinds(); ++k)
    blocks += real(blocks_of(k)) * of_kind(k).block_matmul_flops(seq);
  return blocks + logits + patches;
}

std::string ModelSpec::fingerprint() const {
  base::Fingerprint f;
  const auto add_sizes = [&f](const BlockShape& b) -> base::Fingerprint& {
    return f.add(b.hidden).add(b.heads).add(b.kv_heads).add(b.head_dim).add(b.ffn);
  };
  f.add("orrery.model/1").add(to_string(family)).add(layers);
  add_sizes(*this).add(vocab).add(max_positions).add(type_vocab);
  f.add(to_string(norm)).add(norm_epsilon).add(to_string(activation)).add(gated_mlp);
  f.add(qkv_bias).add(projection_bias).add(mlp_bias).add(tied_embeddings);
  f.add(kPositions[position]).add(rope_theta).add(causal).add(post_norm).add(pooler);
  // Plans of dense models keep the digest that they were made for.
  const auto add_experts = [&f](const BlockShape& b) {
    f.add("experts").add(b.experts).add(b.experts_per_token).add(b.shared_ffn);
  };
  if (experts > 0) add_experts(*this), f.add(capacity_factor);
  if (!shared_gate) f.add("no shared gate");
  if (dropout != family_defaults(family).dropout) f.add("dropout").add(dropout);
  if (patch_features > 0) f.add("patches").add(patch_features).add(class_token).add(patch_norm);
  if (relative_buckets > 0) f.add("relative buckets").add(relative_buckets);
  for (const BlockRun& run : runs) {
    const BlockShape& b = run.shape;
    f.add("run").add(run.name).add(run.count);
    add_sizes(b).add(b.causal);
    if (b.experts > 0) add_experts(b), f.add(capacity_factor);
    f.add(b.cross_attention).add(kEntries[b.entry]).add(b.window).add(b.token_share);
  }
  return f.hex();
}

}  // namespace orrery::model

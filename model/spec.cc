#include "model/spec.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/ids.h"
#include "base/numbers.h"

namespace orrery::model {

namespace {

constexpr base::EnumNames<kLastFamily> kFamilies(
    "gpt2", "llama", "mistral", "qwen2", "bert", "mixtral", "qwen2_moe", "deepseek", "t5", "vit",
    "swin", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "llama4", "gemma",
    "gemma2", "gemma3", "phi", "phi3", "deepseek_v2", "deepseek_v3", "kimi_k2", "gpt_oss", "glm4",
    "glm4_moe", "olmo", "olmo2", "olmo3", "olmoe", "gpt_neox", "falcon", "opt", "bloom",
    "starcoder2", "granite", "granitemoehybrid", "cohere", "minimax", "minimax_m2", "internlm2",
    "nemotron", "nemotron_h", "mamba2", "roberta", "deepseek_v32", "glm_moe_dsa");
constexpr base::EnumNames<NormKind::kRmsNorm> kNorms("layer_norm", "rms_norm");
constexpr base::EnumNames<kLastActivation> kActivations("gelu", "gelu_tanh", "silu", "relu",
                                                        "squared_relu", "clamped_swiglu",
                                                        "sigmoid");
constexpr base::EnumNames<PositionKind::kNone> kPositions("learned", "rotary", "relative", "alibi",
                                                          "none");
constexpr base::EnumNames<BlockEntry::kEncoderEnd> kEntries("none", "patch_merging", "encoder_end");

/// Gain, and for layer norm a bias, of each feature.
std::int64_t norm_parameters(const ModelSpec& m, std::int64_t features) {
  const bool bias = m.norm == NormKind::kLayerNorm && m.norm_bias;
  return ((m.norm_gain ? 1 : 0) + (bias ? 1 : 0)) * features;
}

}  // namespace

std::string_view to_string(Family family) { return kFamilies[family]; }
std::string_view to_string(NormKind norm) { return kNorms[norm]; }
std::string_view to_string(Activation activation) { return kActivations[activation]; }

int ModelSpec::kind_of(std::int64_t layer) const {
  ORRERY_CHECK(layer >= 0 && layer < layers, "layer {} of {}", layer, layers);
  if (!order.empty()) return order[as_index(layer)];
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

bool ModelSpec::has_experts() const {
  return experts > 0 ||
         std::ranges::any_of(runs, [](const BlockRun& run) { return run.shape.experts > 0; });
}

bool ModelSpec::unlike_flash() const {
  const auto narrow = [](const BlockRun& run) { return run.shape.reach > 0; };
  return reach > 0 || std::ranges::any_of(runs, narrow) || score_cap != 0 || sinks ||
         position == PositionKind::kAlibi;
}

std::int64_t ModelSpec::expert_capacity(std::int64_t tokens) const {
  ORRERY_CHECK(experts > 0);
  const double even = real(tokens * experts_per_token) / real(experts);
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(even * capacity_factor)));
}

std::int64_t ModelSpec::scan_parameters() const {
  const std::int64_t convolved = scan.values() + 2 * scan.keys(), n = scan.heads;
  switch (mixer) {
    case Mixer::kMamba2: return (scan.kernel + 1) * convolved + 3 * n + scan.values();
    case Mixer::kDeltaNet: return scan.kernel * convolved + 2 * n + scan.head_dim;
    case Mixer::kLightning: return scan.values();
    default: return 0;
  }
}

// Latent: h r_q + r_q n d (or h n d), h (r_kv + d_r), r_kv n (d - d_r + d_v), n d_v h, and two
// norms; its indexer r_q H e + h (e + H) and a layer norm.
std::int64_t ModelSpec::mixer_parameters() const {
  if (mixer == Mixer::kNone) return 0;
  const std::int64_t out = mixed_features() * hidden + (projection_bias ? hidden : 0);
  if (mixer == Mixer::kLatent) {
    const std::int64_t q = heads * head_dim, kv = heads * (head_dim - rope_dim + value_dim);
    const std::int64_t queries = q_rank > 0 ? q_rank * (hidden + q + 1) : hidden * q;
    const std::int64_t index =
        q_rank * index_queries() + hidden * index_columns() + 2 * indexer.dim;
    return queries + hidden * (kv_rank + rope_dim) + kv_rank * (kv + 1) + index + out;
  }
  if (scans()) return hidden * qkv_features() + scan_parameters() + out;
  const std::int64_t q = heads * head_dim, kv = kv_heads * head_dim;
  std::int64_t sum = hidden * (qkv_features() + (output_gate ? q : 0)) + out;
  if (qkv_bias) sum += qkv_features() - (key_bias ? 0 : kv);
  if (qk_norm == QkNorm::kHead) sum += 2 * head_dim;
  if (qk_norm == QkNorm::kWhole) sum += q + kv;
  return sum + (sinks ? heads : 0);
}

// Every expert of a mixture; router [E, h]; shared expert and its gate [1, h]; of experts of their
// own width the products to it and from it.
std::int64_t ModelSpec::mlp_parameters() const {
  const std::int64_t bias = mlp_bias ? mlp_in_features() + hidden : 0;
  if (experts == 0) return has_mlp() ? hidden * (mlp_in_features() + ffn) + bias : 0;
  const std::int64_t width = expert_width();
  const std::int64_t expert =
      width * (mlp_in_features() + ffn) + (expert_bias ? mlp_in_features() + width + 1 : 0);
  const std::int64_t shared =
      shared_ffn > 0 ? hidden * ((gated_mlp ? 3 : 2) * shared_ffn + (shared_gate ? 1 : 0)) : 0;
  return experts * (expert + hidden) + shared + (expert_hidden > 0 ? 2 * hidden * width : 0) + bias;
}

// A window of side w: (2w - 1)² biases a head (Liu et al., "Swin Transformer", arXiv 2103.14030,
// equation 4).
std::int64_t ModelSpec::block_parameters() const {
  const std::int64_t norm1 = norm_parameters(*this, hidden);
  std::int64_t sum = mixer_parameters() + mlp_parameters() + block_norms() * norm1;
  if (cross_attention) sum += hidden * qkv_features() + mixed_features() * hidden + norm1;
  if (window > 0) sum += relative_positions() * heads;
  switch (entry) {
    case BlockEntry::kNone: break;
    case BlockEntry::kPatchMerging:
      sum += norm_parameters(*this, 2 * hidden) + 2 * hidden * hidden;
      break;
    case BlockEntry::kEncoderEnd: sum += norm1; break;
  }
  return sum;
}

std::int64_t ModelSpec::relative_positions() const {
  const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(real(window))));
  return (2 * side - 1) * (2 * side - 1);
}

// Text: token, position and type tables; of a narrow table its two products; blocks; a norm after
// the embedding, and a final one but where norms stand behind the residual; head; pooler. Images:
// the patch product with its bias, class token, norm; the head has a bias.
std::int64_t ModelSpec::parameters() const {
  const ModelSpec last = of_kind(last_kind());
  const bool image = patch_features > 0;
  const std::int64_t tokens = image ? (patch_features + 1 + (class_token ? 1 : 0)) * hidden
                                    : vocab * embedding_width() + 2 * hidden * embedding_hidden;
  const std::int64_t positions = position == PositionKind::kLearned ? max_positions * hidden : 0;
  const std::int64_t types = type_vocab * hidden, relative = 2 * relative_buckets * heads;
  const std::int64_t head =
      tied_embeddings ? 0 : vocab * (last.embedding_width() + (image || head_bias ? 1 : 0));
  const std::int64_t pool = pooler ? hidden * hidden + hidden : 0;
  const std::int64_t norms = (post_norm ? 0 : norm_parameters(*this, last.hidden)) +
                             (patch_norm || embedding_norm ? norm_parameters(*this, hidden) : 0);
  std::int64_t blocks = 0;
  for (int k = 0; k < kinds(); ++k) blocks += blocks_of(k) * of_kind(k).block_parameters();
  return tokens + positions + types + relative + blocks + norms + head + pool;
}

double ModelSpec::scan_flops() const {
  const double state = real(scan.values() * scan.state);
  if (mixer == Mixer::kDeltaNet) return 8 * state;
  return 2 * real(scan.chunk) * real(scan.keys() + scan.values()) + 4 * state;
}

// Per block of s tokens: QKV 2 s h (n + 2k) d, scores and their product with v 4 s r n d over r
// keys (full s² below a causal mask, w of a window), projection 2 s n d h, MLP 2 s h (f or 2f) + 2
// s f h; cross-attention as much again, over all tokens. Latent: 2 s for each number of its
// matrices, 2 s r n (d + d_v). A scan: its two products and scan_flops. A mixture: the MLP of k
// experts and of the shared one, router and shared gate 2 s h (E + 1). Patch merging 4 s h h.
double ModelSpec::block_product_flops(std::int64_t seq) const {
  const double s = real(seq / token_share), h = real(hidden);
  const double mixed = real(mixed_features());
  double mlp = real(mlp_in_features()) + real(ffn);  // columns of h
  if (experts > 0) {
    const double shared =
        shared_ffn > 0 ? (gated_mlp ? 3 : 2) * real(shared_ffn) + (shared_gate ? 1 : 0) : 0;
    const double narrow = real(expert_width()) / h;
    mlp = real(experts_per_token) * mlp * narrow + shared + real(experts) +
          (expert_hidden > 0 ? 2 * real(expert_hidden) : 0);
  }
  double columns = real(qkv_features()) + mixed;
  if (mixer == Mixer::kAttention && output_gate) columns += mixed;
  if (mixer == Mixer::kLatent) {
    const double q = real(heads * head_dim);
    const double kv = real(heads * (head_dim - rope_dim + value_dim));
    const double up = real(q_rank) * q + real(kv_rank) * kv;
    columns = (q_rank > 0 ? real(q_rank) : q) + real(kv_rank + rope_dim) + mixed + up / h;
  }
  if (mixer == Mixer::kNone) columns = 0;
  double products = 2 * s * h * (columns + mlp);
  if (cross_attention) products += 2 * s * h * columns;
  if (entry == BlockEntry::kPatchMerging) products += 4 * s * h * h;
  return products + index_product_flops(seq);
}

double ModelSpec::index_product_flops(std::int64_t seq) const {
  return 2 * real(seq / token_share) *
         (real(q_rank) * real(index_queries()) + real(hidden) * real(index_columns()));
}

double ModelSpec::block_matmul_flops(std::int64_t seq) const {
  const double s = real(seq / token_share), keys = real(keys_seen(seq / token_share));
  const double mixed = real(mixed_features());
  double mixing = 0;
  if (mixer == Mixer::kAttention) mixing = 4 * s * keys * mixed;
  if (mixer == Mixer::kLatent)
    mixing = 2 * s * (keys * (real(heads * head_dim) + mixed) + s * real(index_queries()));
  if (scans()) mixing = s * scan_flops();
  if (cross_attention) mixing += 4 * s * s * mixed;
  return block_product_flops(seq) + mixing;
}

// Then logits 2 s h v, h of the table; its two products; images: the patch product, and logits of
// one token.
double ModelSpec::forward_matmul_flops(std::int64_t seq) const {
  const double logits = 2 * (patch_features > 0 ? 1 : real(seq)) *
                        real(of_kind(last_kind()).embedding_width()) * real(vocab);
  const double widened = 4 * real(seq) * real(embedding_hidden) * real(hidden);
  const double patches = 2 * real(seq) * real(patch_features) * real(hidden);
  double blocks = 0;
  for (int k = 0; k < kinds(); ++k)
    blocks += real(blocks_of(k)) * of_kind(k).block_matmul_flops(seq);
  return blocks + logits + widened + patches;
}

// An adapter of a product [in, out]: r (in + out).
std::int64_t ModelSpec::trained_parameters() const {
  if (!frozen()) return parameters();
  std::int64_t sum = 0;
  for (int k = 0; k < kinds(); ++k) {
    const ModelSpec m = of_kind(k);
    std::int64_t sides = 0;
    if (adapter.qkv) sides += m.hidden + m.qkv_features();
    if (adapter.projection) sides += m.mixed_features() + m.hidden;
    if (adapter.mlp_in) sides += m.hidden + m.mlp_in_features();
    if (adapter.mlp_out) sides += m.ffn + m.hidden;
    sum += blocks_of(k) * adapter.rank * sides;
  }
  return sum;
}

double ModelSpec::training_matmul_flops(std::int64_t seq) const {
  const double forward = forward_matmul_flops(seq);
  double ends = 0;
  for (int k = 0; k < kinds(); ++k)
    ends += real(blocks_of(k)) * of_kind(k).index_product_flops(seq);
  if (!frozen()) return 3 * forward - ends;
  double weights = 2 * real(seq) *
                   (real(of_kind(last_kind()).embedding_width()) * real(vocab) +
                    3 * real(embedding_hidden) * real(hidden));
  for (int k = 0; k < kinds(); ++k)
    weights += real(blocks_of(k)) * of_kind(k).block_product_flops(seq);
  return 3 * forward - ends - weights + 3 * 2 * real(seq) * real(trained_parameters());
}

namespace {

/// What older models do not have leaves their digests as they were.
void add_mixer(base::Fingerprint& f, const BlockShape& b, double theta) {
  const BlockShape plain;
  const Rope& r = b.rope;
  if (b.mixer != plain.mixer) f.add("mixer").add(as_int(b.mixer));
  if (b.reach != 0) f.add("reach").add(b.reach).add(b.chunked);
  if (!b.rotates) f.add("no rotation");
  if (b.rope_theta != theta) f.add("theta").add(b.rope_theta);
  if (r != plain.rope) {
    f.add("rope").add(r.dims).add(as_int(r.scaling)).add(r.factor).add(r.low).add(r.high);
    f.add(r.original).add(r.magnitude);
  }
  if (b.mixer == Mixer::kLatent) f.add(b.q_rank).add(b.kv_rank).add(b.rope_dim).add(b.value_dim);
  if (b.indexer != plain.indexer)
    f.add("indexer").add(b.indexer.heads).add(b.indexer.dim).add(b.indexer.keys);
  const Scan& s = b.scan;
  if (s != plain.scan)
    f.add(s.heads).add(s.head_dim).add(s.groups).add(s.state).add(s.kernel).add(s.chunk);
}

void add_features(base::Fingerprint& f, const ModelSpec& m) {
  const ModelSpec plain;
  const auto add = [&](const char* name, auto ModelSpec::*field) {
    if (m.*field != plain.*field) f.add(name).add(m.*field);
  };
  if (m.qk_norm != plain.qk_norm) f.add("qk norm").add(as_int(m.qk_norm));
  if (m.branches != plain.branches) f.add("branches").add(as_int(m.branches));
  add("norm before", &ModelSpec::norm_before), add("norm after", &ModelSpec::norm_after);
  add("norm gain", &ModelSpec::norm_gain), add("norm bias", &ModelSpec::norm_bias);
  // BERT's has one; of old that went without saying
  if (m.embedding_norm != m.post_norm) f.add("embedding norm").add(m.embedding_norm);
  add("key bias", &ModelSpec::key_bias), add("embedding width", &ModelSpec::embedding_hidden);
  add("head bias", &ModelSpec::head_bias), add("output gate", &ModelSpec::output_gate);
  add("sinks", &ModelSpec::sinks), add("score cap", &ModelSpec::score_cap);
  add("logit cap", &ModelSpec::logit_cap), add("score scale", &ModelSpec::score_scale);
  add("embedding scale", &ModelSpec::embedding_scale);
  add("residual scale", &ModelSpec::residual_scale), add("logit scale", &ModelSpec::logit_scale);
  add("expert bias", &ModelSpec::expert_bias), add("expert width", &ModelSpec::expert_hidden);
  if (const Routing& r = m.routing; r != plain.routing) {
    f.add("routing").add(r.sigmoid).add(r.groups).add(r.groups_per_token);
    f.add(r.normalised).add(r.scale);
    if (r.of_inputs) f.add("gates of inputs");
  }
  for (const auto* factors : {&m.short_factors, &m.long_factors}) {
    if (!factors->empty()) f.add("longrope");
    for (const double factor : *factors) f.add(factor);
  }
  for (const int kind : m.order) f.add(kind);
  if (m.frozen()) f.add("adapter").add(m.adapter.rank).add(targets_of(m.adapter));
}

}  // namespace

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
    add_mixer(f, b, rope_theta);
  }
  add_mixer(f, *this, rope_theta);
  add_features(f, *this);
  return f.hex();
}

}  // namespace orrery::model

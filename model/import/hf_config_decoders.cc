/// \file
/// config.json of today's decoders (docs/models/families.md): what a family fixes, which of its
/// keys say what, which blocks attend how and which are mixtures.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/numbers.h"
#include "model/import/hf_config_fields.h"

namespace orrery::model::hf {
namespace {

using enum Family;
using enum base::ErrorCode;

void use_layer_norm(ModelSpec& m) {
  m.norm = NormKind::kLayerNorm;
  m.norm_epsilon = 1e-5;
}
/// GPT's MLP, with biases everywhere.
void use_plain_mlp(ModelSpec& m, Activation activation) {
  use_layer_norm(m);
  m.qkv_bias = m.projection_bias = m.mlp_bias = true;
  m.gated_mlp = false;
  m.activation = activation;
}

/// Of a rotated share that the file leaves out: half of a head, a quarter.
constexpr std::int64_t kHalf = -2, kQuarter = -4;

/// Families with Llama's norms and gated MLP; what else they fix.
void set_gated_traits(ModelSpec& m) {
  switch (m.family) {
    case kQwen3:
    case kQwen3Moe: m.qk_norm = QkNorm::kHead; break;
    case kLlama4: m.qk_norm = QkNorm::kPlain; break;
    case kQwen3Next:
    case kQwen35:
    case kQwen35Moe:
      m.qk_norm = QkNorm::kHead;
      m.rope.dims = 64;
      break;
    case kGemma:
    case kGemma2:
    case kGemma3:
      m.tied_embeddings = true;
      m.activation = Activation::kGeluTanh;
      m.norm_after = m.family != kGemma;
      if (m.family != kGemma3) break;
      m.qk_norm = QkNorm::kHead;
      m.rope_theta = 1e6;
      break;
    case kGptOss:
      m.sinks = m.expert_bias = m.qkv_bias = m.projection_bias = true;
      m.activation = Activation::kClampedSwiglu;
      m.rope_theta = 150000;
      break;
    case kGlm4:
      m.qkv_bias = m.norm_after = true;
      m.rope.dims = kHalf;
      break;
    case kGlm4Moe: m.rope.dims = kHalf; break;
    case kOlmo2:
    case kOlmo3:
      m.norm_before = false;
      m.norm_after = true;
      m.qk_norm = QkNorm::kWhole;
      break;
    case kOlmoe:
    case kMinimaxM2: m.qk_norm = QkNorm::kWhole; break;
    case kOlmo:
      use_layer_norm(m);
      m.norm_gain = m.norm_bias = false;
      break;
    case kCohere:
      use_layer_norm(m);
      m.norm_bias = false;
      m.tied_embeddings = true;
      m.branches = Branches::kParallel;
      m.logit_scale = 0.0625;
      break;
    default: break;
  }
}

/// What a family fixes; sizes come from the file.
ModelSpec traits(Family family) {
  ModelSpec m = family_defaults(family);
  set_gated_traits(m);
  switch (family) {
    case kPhi:
      use_plain_mlp(m, Activation::kGeluTanh);
      m.branches = Branches::kParallel;
      m.head_bias = true;
      break;
    case kGptNeox:
      use_plain_mlp(m, Activation::kGelu);
      m.branches = Branches::kParallelTwoNorms;
      m.rope.dims = kQuarter;
      break;
    case kFalcon:
      use_plain_mlp(m, Activation::kGelu);
      m.tied_embeddings = true;
      break;
    case kOpt:
      use_plain_mlp(m, Activation::kRelu);
      m.tied_embeddings = true;
      m.position = PositionKind::kLearned;
      break;
    case kBloom:
      use_plain_mlp(m, Activation::kGeluTanh);
      m.tied_embeddings = m.embedding_norm = true;
      m.position = PositionKind::kAlibi;
      break;
    case kStarcoder2:
      use_plain_mlp(m, Activation::kGeluTanh);
      m.tied_embeddings = true;
      break;
    case kNemotron:
      use_plain_mlp(m, Activation::kSquaredRelu);
      m.qkv_bias = m.projection_bias = m.mlp_bias = false;
      m.rope.dims = kHalf;
      break;
    default: break;
  }
  return m;
}

struct Decoder {
  base::Reader& r;
  ModelSpec& m;

  bool of(std::initializer_list<Family> families) const {
    return std::ranges::find(families, m.family) != families.end();
  }

  void read_sizes() {
    m.hidden = require_size(r, {"hidden_size", "n_embed"});
    m.layers = require_size(r, {"num_hidden_layers", "n_layer"});
    m.heads = require_size(r, {"num_attention_heads", "n_head"});
    m.kv_heads = r.optional_int("num_key_value_heads", kSize).value_or(m.heads);
    if (m.family == kFalcon) falcon_heads();
    const auto stated = r.optional_int(
        m.family == kNemotron && !r.has("head_dim") ? "kv_channels" : "head_dim", kSize);
    const bool fixed = of({kGemma, kGemma2, kGemma3, kQwen35, kQwen35Moe, kQwen3Next});
    m.head_dim = stated.value_or(fixed ? 256 : m.hidden / m.heads);
    const bool four = of({kBloom, kFalcon});
    const auto ffn = find_int(r, {"intermediate_size", "ffn_dim", "ffn_hidden_size"}, kSize).value;
    m.ffn = ffn.value_or(four ? 4 * m.hidden : 0);
    if (!ffn && !four && !r.has("moe_intermediate_size")) require_size(r, {"intermediate_size"});
    m.vocab = m.family == kGemma3 && !r.has("vocab_size") ? 262208
                                                          : require_size(r, {"vocab_size"}, kTable);
    const auto positions = find_int(
        r, {"max_position_embeddings", "n_positions", "seq_length", "max_sequence_length"}, kTable);
    m.max_positions = positions.value.value_or(m.family == kGemma3 ? 131072 : 2048);
    if (m.rope.dims < 0) m.rope.dims = m.head_dim / -m.rope.dims;
    if (!r.sink().ok()) return;
    if (!stated && !fixed && m.hidden % m.heads != 0)
      r.fault("num_attention_heads", kInconsistent, "change one of them, or state 'head_dim'",
              "{} heads do not divide the hidden size {}", m.heads, m.hidden);
    if (m.heads % m.kv_heads != 0)
      r.fault("num_key_value_heads", kInconsistent,
              "every key/value head serves the same number of query heads",
              "{} key/value heads do not divide {} heads", m.kv_heads, m.heads);
  }

  /// Penedo et al.: one key head with multi_query, num_kv_heads with the new architecture.
  void falcon_heads() {
    const bool grouped = r.optional_bool("new_decoder_architecture").value_or(false);
    const bool one = r.optional_bool("multi_query").value_or(true);
    const auto stated = r.optional_int("num_kv_heads", kSize);
    m.kv_heads = one ? 1 : m.heads;
    if (grouped) m.kv_heads = stated.value_or(m.heads);
    const bool parallel = r.optional_bool("parallel_attn").value_or(true);
    m.branches = grouped    ? Branches::kParallelTwoNorms
                 : parallel ? Branches::kParallel
                            : Branches::kSerial;
    m.position =
        r.optional_bool("alibi").value_or(false) ? PositionKind::kAlibi : PositionKind::kRotary;
    m.qkv_bias = m.projection_bias = m.mlp_bias = r.optional_bool("bias").value_or(false);
  }

  void read_flags() {
    for (const std::string_view key :
         {"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"})
      m.norm_epsilon = r.optional_double(key, kEpsilon).value_or(m.norm_epsilon);
    for (const std::string_view key : {"hidden_activation", "activation_function", "hidden_act"}) {
      if (m.family == kGptOss) break;  // the file says silu
      if (const auto a = find_activation(r, key)) m.activation = *a;
    }
    m.tied_embeddings = r.optional_bool("tie_word_embeddings").value_or(m.tied_embeddings);
    if (const auto bias = r.optional_bool("attention_bias")) {
      m.qkv_bias = *bias;
      if (!of({kGlm4, kGlm4Moe, kQwen3, kQwen3Moe})) m.projection_bias = *bias;
    }
    if (const auto bias = r.optional_bool("use_bias"))
      m.qkv_bias = m.projection_bias = m.mlp_bias = *bias;
    if (const auto bias = r.optional_bool("mlp_bias")) m.mlp_bias = *bias;
    if (m.family == kInternlm2 && r.optional_bool("bias").value_or(false))
      m.qkv_bias = m.projection_bias = true;
    if (r.has("use_qk_norm") && !r.optional_bool("use_qk_norm").value_or(true))
      m.qk_norm = QkNorm::kNone;
    else if (r.has("use_qk_norm") && of({kGlm4Moe, kCohere}))
      m.qk_norm = QkNorm::kHead;
    if (m.family == kGptNeox && !r.optional_bool("use_parallel_residual").value_or(true))
      m.branches = Branches::kSerial;
    refuse();
  }

  void refuse_set(std::string_view key, std::string_view why) {
    if (!r.optional_bool(key).value_or(false)) return;
    r.fault(key, kUnsupported, "set it to false", "'{}': {}", key, why);
  }
  void refuse() {
    refuse_set("apply_residual_connection_post_layernorm",
               "the residual behind a norm is not modelled");
    refuse_set("qk_layernorm", "layer norms of queries and keys are not modelled");
    if (const auto clip = r.optional_double("clip_qkv", {0, 1e9}); clip && *clip > 0)
      r.fault("clip_qkv", kUnsupported, "leave it out", "'clip_qkv' is not modelled");
    if (m.family != kOpt) return;
    const auto width = r.optional_int("word_embed_proj_dim", kSize).value_or(m.hidden);
    if (width != m.hidden) m.embedding_hidden = width;
    m.post_norm = !r.optional_bool("do_layer_norm_before").value_or(true);
    m.max_positions += 2;  // its table's first two rows serve padding
  }

  void read_scales() {
    constexpr base::DoubleRange kScale{1e-9, 1e9};
    const auto scale = [&](std::string_view key) { return r.optional_double(key, kScale); };
    if (of({kGemma, kGemma2, kGemma3})) m.embedding_scale = std::sqrt(real(m.hidden));
    if (of({kGemma2, kGemma3})) {
      m.score_scale = 1 / std::sqrt(scale("query_pre_attn_scalar").value_or(256));
      if (m.score_scale == 1 / std::sqrt(real(m.head_dim))) m.score_scale = 0;
    }
    if (m.family == kGemma2) {
      m.score_cap =
          scale("attn_logit_softcapping").value_or(r.has("attn_logit_softcapping") ? 50 : 0);
      m.logit_cap = scale("final_logit_softcapping").value_or(0);
    }
    m.embedding_scale = scale("embedding_multiplier").value_or(m.embedding_scale);
    m.score_scale = scale("attention_multiplier").value_or(m.score_scale);
    m.residual_scale = scale("residual_multiplier").value_or(m.residual_scale);
    if (const auto divisor = scale("logits_scaling")) m.logit_scale = 1 / *divisor;
    m.logit_scale = scale("logit_scale").value_or(m.logit_scale);
  }

  void read_experts() {
    const auto experts =
        find_int(r, {"num_local_experts", "num_experts", "n_routed_experts"}, kSize).value;
    if (!experts) return;
    m.experts = *experts;
    m.experts_per_token = require_size(r, {"num_experts_per_tok", "experts_per_token"});
    m.capacity_factor =
        r.optional_double("moe_expert_capacity_factor", kCapacity).value_or(m.capacity_factor);
    if (const auto own = r.optional_int("moe_intermediate_size", kSize)) m.ffn = *own;
    m.shared_gate = of({kQwen3Next, kQwen35Moe});
    const auto count = r.optional_int("n_shared_experts", {0, 1 << 10}).value_or(0);
    m.shared_ffn = find_int(r,
                            {"shared_expert_intermediate_size",
                             "moe_shared_expert_intermediate_size", "shared_intermediate_size"},
                            {0, 1 << 20})
                       .value.value_or(count * m.ffn);
    if (m.family == kLlama4) m.shared_ffn = m.ffn;
    if (m.experts_per_token > m.experts)
      r.fault("num_experts_per_tok", kInconsistent, fmt::format("at most {}", m.experts),
              "a token goes to {} experts, and there are {}", m.experts_per_token, m.experts);
    else
      read_routing(r, m);
  }
};

/// Which keys the queries of each block see, and which blocks are mixtures.
class Turns {
 public:
  Turns(base::Reader& r, ModelSpec& m) : r_(r), m_(m) {}

  void read() {
    read_reach();
    read_dense();
    if (!r_.sink().ok() || m_.layers > 4096) return;
    std::vector<std::pair<std::string, BlockShape>> blocks;
    for (std::int64_t i = 0; i < m_.layers; ++i) blocks.push_back(block(i));
    set_order(m_, blocks);
  }

 private:
  bool is(Family family) const { return m_.family == family; }

  /// layer_types says it block by block; else a period of blocks of which the last attends fully.
  void read_reach() {
    const bool chunks = is(Family::kLlama4);
    const auto size = find_int(r_, {chunks ? "attention_chunk_size" : "sliding_window"}, kTable);
    reach_ = size.value.value_or(0);
    const bool off =
        r_.has("use_sliding_window") && !r_.optional_bool("use_sliding_window").value_or(false);
    const bool needs_switch = is(kQwen3) || is(kQwen3Moe);
    if (off || (needs_switch && !r_.has("use_sliding_window"))) reach_ = 0;
    first_ = r_.optional_int("max_window_layers", {0, 1 << 20}).value_or(0);
    if (!needs_switch) first_ = 0;
    if (r_.has("layer_types")) types_ = r_.required_strings("layer_types");
    if (!types_.empty() && static_cast<std::int64_t>(types_.size()) != m_.layers)
      r_.fault("layer_types", kInconsistent, "one entry for each block", "{} entries for {} blocks",
               types_.size(), m_.layers);
    period_ =
        find_int(r_,
                 {"sliding_window_pattern", "full_attention_interval", "no_rope_layer_interval"},
                 {1, 1 << 20})
            .value.value_or(default_period());
    if (is(kGemma3)) {
      if (!size.value) reach_ = 4096;
      local_theta_ = r_.optional_double("rope_local_base_freq", {1.0, 1e12}).value_or(1e4);
    }
    if (is(kGemma2) && !size.value) reach_ = 4096;
    if (is(kGptOss) && !size.value) reach_ = 128;
    if (chunks && !size.value) reach_ = 8192;
  }
  std::int64_t default_period() const {
    if (is(kGemma2) || is(kGptOss)) return 2;
    if (is(kGemma3)) return 6;
    if (is(kOlmo3) || is(kLlama4) || is(kQwen3Next) || is(kQwen35) || is(kQwen35Moe)) return 4;
    return 0;  // all alike
  }
  bool full(std::int64_t i) const {
    if (!types_.empty()) return types_[as_index(i)] == "full_attention";
    if (period_ > 1) return (i + 1) % period_ == 0;
    return false;
  }

  void read_dense() {
    dense_first_ = r_.optional_int("first_k_dense_replace", {0, 1 << 20}).value_or(0);
    step_ = find_int(r_, {"decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq"},
                     {1, 1 << 20})
                .value.value_or(1);
    if (r_.has("mlp_layer_types")) mlps_ = r_.required_strings("mlp_layer_types");
    for (const std::string& type : mlps_)
      if (type != "dense" && type != "sparse")
        r_.fault("mlp_layer_types", kBadValue, "dense or sparse", "a block's MLP is '{}'", type);
    if (!mlps_.empty() && static_cast<std::int64_t>(mlps_.size()) != m_.layers)
      r_.fault("mlp_layer_types", kInconsistent, "one entry for each block",
               "{} entries for {} blocks", mlps_.size(), m_.layers);
    if (r_.has("mlp_only_layers")) only_ = r_.required_ints("mlp_only_layers", {0, 1 << 20});
    const auto ffn =
        find_int(r_, {is(kLlama4) ? "intermediate_size_mlp" : "intermediate_size"}, kSize).value;
    dense_ffn_ = ffn.value_or(0);
    if (m_.experts > 0 && dense_ffn_ == 0 &&
        (dense_first_ > 0 || step_ > 1 || !only_.empty() || !mlps_.empty()))
      r_.fault("intermediate_size", kMissingKey, "state it", "dense blocks have no size");
  }
  bool dense(std::int64_t i) const {
    if (!mlps_.empty()) return mlps_[as_index(i)] == "dense";
    return i < dense_first_ || (i + 1) % step_ != 0 || std::ranges::find(only_, i) != only_.end();
  }

  std::pair<std::string, BlockShape> block(std::int64_t i) const {
    BlockShape s = m_;
    std::string name;
    const bool recurrent = s.scan.heads > 0;  // the DeltaNet of a hybrid
    if (full(i) || recurrent || reach_ == 0 || i < first_) {
      if (is(Family::kLlama4) && full(i)) s.rotates = false;
      if (recurrent && !full(i)) name = "linear";
    } else {
      s.reach = reach_;
      s.chunked = is(Family::kLlama4);
      name = s.chunked ? "chunk" : "window";
      if (is(kGemma3)) s.rope_theta = local_theta_;
      if (is(kGemma3) || is(kOlmo3)) s.rope = {};
    }
    if (name.empty()) name = "full";
    if (name != "linear" && recurrent) {
      s.scan = {};
      s.mixer = Mixer::kAttention;
    }
    if (m_.experts > 0 && dense(i)) {
      s.experts = s.experts_per_token = s.shared_ffn = 0;
      s.ffn = dense_ffn_;
      name += " dense";
    }
    return {name, s};
  }

  base::Reader& r_;
  ModelSpec& m_;
  std::int64_t reach_ = 0, first_ = 0, period_ = 0, dense_first_ = 0, step_ = 1, dense_ffn_ = 0;
  double local_theta_ = 1e4;
  std::vector<std::string> types_, mlps_;
  std::vector<std::int64_t> only_;
};

}  // namespace

bool is_decoder(Family family) { return family >= kQwen3 && family != kRoberta; }

void read_decoder(base::Reader& r, ModelSpec& m) {
  const ModelSpec named = m;
  m = traits(m.family);
  m.name = named.name;
  m.dropout = named.dropout;
  const bool recurrent = m.family == kMamba2 || m.family == kNemotronH || m.family == kMinimax ||
                         m.family == kGraniteMoeHybrid;
  Decoder d{r, m};
  if (m.family == kMamba2) return read_recurrent(r, m);
  d.read_sizes();
  if (d.of({kDeepSeekV2, kDeepSeekV3, kKimiK2, kDeepSeekV32, kGlmMoeDsa})) read_latent(r, m);
  d.read_flags();
  d.read_scales();
  if (m.position == PositionKind::kRotary) read_rope(r, m);
  d.read_experts();
  if (!r.sink().ok()) return;
  if (recurrent || d.of({kQwen3Next, kQwen35, kQwen35Moe})) read_recurrent(r, m);
  if (!recurrent) Turns(r, m).read();
}

}  // namespace orrery::model::hf

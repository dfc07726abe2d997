/// \file
/// Hugging Face config.json -> ModelSpec. Keys and their defaults are those of the transformers
/// library (src/transformers/models/<model_type>/configuration_<model_type>.py).
#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>

#include "model/hf_config_fields.h"
#include "model/spec.h"

namespace orrery::model {
namespace {

using base::ErrorCode;

using namespace hf;

constexpr base::DoubleRange kTheta{1.0, 1e12};
constexpr base::DoubleRange kCapacity{1e-3, 1e3};

constexpr std::array<base::Named<Family>, 11> kFamilies{{{"gpt2", Family::kGpt2},
                                                         {"llama", Family::kLlama},
                                                         {"mistral", Family::kMistral},
                                                         {"qwen2", Family::kQwen2},
                                                         {"bert", Family::kBert},
                                                         {"mixtral", Family::kMixtral},
                                                         {"qwen2_moe", Family::kQwen2Moe},
                                                         {"deepseek", Family::kDeepSeek},
                                                         {"t5", Family::kT5},
                                                         {"vit", Family::kViT},
                                                         {"swin", Family::kSwin}}};

constexpr std::array<base::Named<Activation>, 8> kActivations{
    {{"gelu", Activation::kGelu},
     {"gelu_new", Activation::kGeluTanh},
     {"gelu_pytorch_tanh", Activation::kGeluTanh},
     {"gelu_tanh", Activation::kGeluTanh},
     {"gelu_fast", Activation::kGeluTanh},
     {"silu", Activation::kSilu},
     {"swish", Activation::kSilu},
     {"relu", Activation::kRelu}}};

}  // namespace

ModelSpec family_defaults(Family family) {
  ModelSpec m;
  m.family = family;
  // 0.1 there, else 0
  m.dropout = family == Family::kGpt2 || family == Family::kBert || family == Family::kT5;
  if (family == Family::kGpt2) return m;
  if (family == Family::kBert) {
    m.norm_epsilon = 1e-12;
    m.activation = Activation::kGelu;
    m.causal = false;
    m.post_norm = true;
    m.pooler = true;
    m.type_vocab = 2;
    return m;
  }
  m.norm = NormKind::kRmsNorm;
  m.norm_epsilon = family == Family::kMixtral ? 1e-5 : 1e-6;
  m.activation = Activation::kSilu;
  m.gated_mlp = true;
  m.qkv_bias = family == Family::kQwen2 || family == Family::kQwen2Moe;
  m.projection_bias = false;
  m.mlp_bias = false;
  m.tied_embeddings = false;
  m.position = PositionKind::kRotary;
  if (family == Family::kMixtral) m.rope_theta = 1e6;
  return m;
}

namespace hf {

void add_fault(base::Reader& r, std::string_view key, ErrorCode code, std::string message,
               std::string hint) {
  r.sink().add(base::Diagnostic{
      .code = code, .message = std::move(message), .where = r.span(key), .hint = std::move(hint)});
}

Found find_int(base::Reader& r, std::initializer_list<std::string_view> keys,
               base::IntRange range) {
  Found found{.value = std::nullopt, .key = *keys.begin()};
  for (const std::string_view key : keys) {
    const auto value = r.optional_int(key, range);
    if (!value) continue;
    if (found.value && *found.value != *value) {
      add_fault(r, key, ErrorCode::kInconsistent,
                fmt::format("'{}' is {}, but '{}' is {}", key, *value, found.key, *found.value),
                "both name the same size: keep one");
    }
    if (!found.value) found = {.value = value, .key = key};
  }
  return found;
}

Found require_int(base::Reader& r, std::initializer_list<std::string_view> keys,
                  base::IntRange range) {
  Found found = find_int(r, keys, range);
  bool present = false;
  for (const std::string_view key : keys) present = present || r.has(key);
  if (!present) r.required_int(*keys.begin(), range);
  if (!found.value) found.value = 1;
  return found;
}

std::optional<Activation> find_activation(base::Reader& r, std::string_view key) {
  return r.optional_enum(key, kActivations);
}

}  // namespace hf

namespace {

bool is_rotary_family(Family f) { return f != Family::kGpt2 && f != Family::kBert; }
bool has_experts(Family f) {
  return f == Family::kMixtral || f == Family::kQwen2Moe || f == Family::kDeepSeek;
}

/// Key/value heads when the file is silent: as many as query heads, 8 in MistralConfig and
/// MixtralConfig (there null means as many).
std::int64_t default_kv_heads(const base::Node& root, const ModelSpec& m) {
  const bool eight = m.family == Family::kMistral || m.family == Family::kMixtral;
  return eight && !root.find("num_key_value_heads") ? 8 : m.heads;
}

void read_heads(base::Reader& r, const base::Node& root, ModelSpec& m) {
  const Found hidden = require_int(r, {"hidden_size", "n_embd"}, kSize);
  const Found heads = require_int(r, {"num_attention_heads", "n_head"}, kSize);
  m.hidden = *hidden.value;
  m.heads = *heads.value;
  m.kv_heads = m.heads;
  std::optional<std::int64_t> head_dim;
  if (is_rotary_family(m.family)) {
    m.kv_heads = r.optional_int("num_key_value_heads", kSize).value_or(default_kv_heads(root, m));
    head_dim = r.optional_int("head_dim", kSize);
  }
  m.head_dim = head_dim.value_or(m.hidden / m.heads);
  if (!r.sink().ok()) return;  // contradictions of wrong numbers say nothing new
  if (!head_dim && m.hidden % m.heads != 0) {
    add_fault(r, heads.key, ErrorCode::kInconsistent,
              fmt::format("{} heads do not divide the hidden size {}", m.heads, m.hidden),
              is_rotary_family(m.family)
                  ? fmt::format("change '{}' or '{}', or state 'head_dim'", heads.key, hidden.key)
                  : fmt::format("change '{}' or '{}'", heads.key, hidden.key));
    return;
  }
  if (m.heads % m.kv_heads != 0) {
    add_fault(r, "num_key_value_heads", ErrorCode::kInconsistent,
              fmt::format("{} key/value heads do not divide {} heads", m.kv_heads, m.heads),
              "every key/value head serves the same number of query heads");
  }
  if (is_rotary_family(m.family) && m.head_dim % 2 != 0) {
    add_fault(r, head_dim ? "head_dim" : heads.key, ErrorCode::kInconsistent,
              fmt::format("rotary positions rotate pairs, but a head has {} numbers", m.head_dim),
              "make the head size even");
  }
}

void read_sizes(base::Reader& r, ModelSpec& m) {
  m.layers = *require_int(r, {"num_hidden_layers", "n_layer"}, kSize).value;
  m.vocab = *require_int(r, {"vocab_size"}, kTable).value;
  m.max_positions =
      *require_int(r, {"max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"},
                   kTable)
           .value;
  if (m.family == Family::kGpt2) {
    m.ffn = find_int(r, {"n_inner", "intermediate_size"}, kSize).value.value_or(4 * m.hidden);
  } else {
    // Of qwen2_moe "intermediate_size" is that of dense blocks, which we refuse; of deepseek that
    // of its first blocks.
    const bool expert = m.family == Family::kQwen2Moe || m.family == Family::kDeepSeek;
    m.ffn = *require_int(r, {expert ? "moe_intermediate_size" : "intermediate_size"}, kSize).value;
  }
  if (m.family == Family::kBert)
    m.type_vocab = r.optional_int("type_vocab_size", {0, 1 << 16}).value_or(m.type_vocab);
}

/// Mixtures of experts. "moe_expert_capacity_factor" is Megatron-LM's word: transformers drops no
/// token and has none. Weights that are made to add up to 1 or not (norm_topk_prob), and the
/// auxiliary loss, change no size.
void read_experts(base::Reader& r, ModelSpec& m) {
  const Found experts =
      require_int(r, {"num_local_experts", "num_experts", "n_routed_experts"}, kSize);
  m.experts = *experts.value;
  m.experts_per_token = *require_int(r, {"num_experts_per_tok"}, kSize).value;
  m.capacity_factor =
      r.optional_double("moe_expert_capacity_factor", kCapacity).value_or(m.capacity_factor);
  if (m.family == Family::kQwen2Moe)
    m.shared_ffn = *require_int(r, {"shared_expert_intermediate_size"}, kSize).value;
  if (m.family == Family::kDeepSeek) {
    m.shared_gate = false;
    m.shared_ffn = r.optional_int("n_shared_experts", {0, 1 << 20}).value_or(0) * m.ffn;
  }
  if (!r.sink().ok()) return;
  if (m.experts_per_token > m.experts) {
    add_fault(
        r, "num_experts_per_tok", ErrorCode::kInconsistent,
        fmt::format("a token goes to {} experts, and there are {}", m.experts_per_token, m.experts),
        fmt::format("make it at most {}, or '{}' larger", m.experts, experts.key));
  }
  const auto step = r.optional_int("decoder_sparse_step", {1, 1 << 20}).value_or(1);
  const auto dense = r.optional_list("mlp_only_layers");
  if (step == 1 && (!dense || dense->empty())) return;
  add_fault(r, step != 1 ? "decoder_sparse_step" : "mlp_only_layers", ErrorCode::kUnsupported,
            "dense blocks between blocks of experts are not supported",
            "every block is alike: leave the key out");
}

/// The probability that attention drops is GPT2Config's attn_pdrop, BertConfig's
/// attention_probs_dropout_prob, T5Config's dropout_rate, else attention_dropout.
void read_dropout(base::Reader& r, ModelSpec& m) {
  constexpr base::DoubleRange kProbability{0.0, 1.0};
  for (const std::string_view key :
       {"attn_pdrop", "attention_probs_dropout_prob", "dropout_rate", "attention_dropout"}) {
    if (const auto p = r.optional_double(key, kProbability)) m.dropout = *p > 0;
  }
}

void read_flags(base::Reader& r, ModelSpec& m) {
  const bool gpt2 = m.family == Family::kGpt2, bert = m.family == Family::kBert;
  const std::string_view epsilon = gpt2   ? "layer_norm_epsilon"
                                   : bert ? "layer_norm_eps"
                                          : "rms_norm_eps";
  m.norm_epsilon = r.optional_double(epsilon, kEpsilon).value_or(m.norm_epsilon);
  const std::string_view activation =
      gpt2 && r.has("activation_function") ? "activation_function" : "hidden_act";
  m.activation = r.optional_enum(activation, kActivations).value_or(m.activation);
  m.tied_embeddings = r.optional_bool("tie_word_embeddings").value_or(m.tied_embeddings);
  if (m.family == Family::kLlama) {
    m.qkv_bias = m.projection_bias = r.optional_bool("attention_bias").value_or(false);
    m.mlp_bias = r.optional_bool("mlp_bias").value_or(false);
  }
}

/// rope_theta stands at the top, or (transformers 5) inside rope_parameters. Scaling changes no
/// size and no FLOP.
void read_rotary(base::Reader& r, ModelSpec& m) {
  r.ignore("rope_scaling");
  std::optional<double> theta = r.optional_double("rope_theta", kTheta);
  if (const auto parameters = r.optional_object("rope_parameters")) {
    base::Reader inner(*parameters, "rope_parameters", r.sink());
    inner.allow_unknown();
    const auto nested = inner.optional_double("rope_theta", kTheta);
    if (!theta) theta = nested;
    inner.finish();
  }
  m.rope_theta = theta.value_or(m.rope_theta);
}

/// Switches of transformers that change the mathematics into something that we do not train.
void refuse_unsupported(base::Reader& r, const ModelSpec& m) {
  const auto refuse_true = [&](std::string_view key) {
    if (r.optional_bool(key).value_or(false)) {
      add_fault(r, key, ErrorCode::kUnsupported,
                fmt::format("'{}' is not supported for {}", key, to_string(m.family)),
                "set it to false");
    }
  };
  if (m.family == Family::kGpt2) {
    refuse_true("scale_attn_by_inverse_layer_idx");
    refuse_true("add_cross_attention");
  }
  if (m.family != Family::kBert) return;
  refuse_true("is_decoder");
  refuse_true("add_cross_attention");
  const auto position = r.optional_string("position_embedding_type");
  if (position && *position != "absolute") {
    add_fault(r, "position_embedding_type", ErrorCode::kUnsupported,
              fmt::format("position embeddings '{}' are not supported", *position),
              "only 'absolute' is");
  }
}

void refuse_latent_attention(base::Reader& r) {
  const auto type = r.optional_string("model_type");
  if (!type || !(type->starts_with("deepseek_v2") || type->starts_with("deepseek_v3"))) return;
  add_fault(
      r, "model_type", ErrorCode::kUnsupported,
      fmt::format(
          "'{}' compresses keys and values (multi-head latent attention), which is not modelled",
          *type),
      "of DeepSeek the first mixture, 'deepseek' (deepseek-moe-16b), is");
}

/// Sizes that are each in range may still multiply to a model whose counts overflow: 1e15
/// parameters are 1000 times the largest ever trained. Counted in doubles: the matrices by their
/// FLOPs for one token, then the tables.
void check_total(base::Reader& r, const ModelSpec& m) {
  const ModelSpec last = m.of_kind(m.last_kind());
  const double tables = static_cast<double>(m.vocab + m.max_positions + m.patch_features) *
                        static_cast<double>(std::max(m.hidden, last.hidden));
  // Experts that one token does not go to: three products each.
  const double others = 3 * static_cast<double>(last.experts) * static_cast<double>(m.layers) *
                        static_cast<double>(last.hidden) * static_cast<double>(last.ffn);
  double parameters = others + 2 * tables;
  for (int k = 0; k < m.kinds(); ++k) {
    const ModelSpec kind = m.of_kind(k);
    const std::int64_t count =
        m.runs.empty() ? m.layers : m.runs[static_cast<std::size_t>(k)].count;
    parameters += static_cast<double>(count) * kind.block_matmul_flops(kind.token_share) / 2;
  }
  if (parameters <= 1e15) return;
  add_fault(r, "model_type", ErrorCode::kOutOfRange,
            fmt::format("the sizes make a model of {:.2g} parameters", parameters),
            "at most 1e15 are counted exactly");
}

}  // namespace

base::Result<ModelSpec> read_hf_config(const base::Node& root, std::string_view name) {
  base::ErrorSink sink;
  base::Reader r(root, fmt::format("model '{}'", name), sink);
  r.allow_unknown();
  refuse_latent_attention(r);
  if (!sink.ok()) return sink.result(ModelSpec{});
  const Family family = r.required_enum("model_type", kFamilies);
  if (!sink.ok()) return sink.result(ModelSpec{});  // what the other keys mean depends on it
  ModelSpec m = family_defaults(family);
  m.name = std::string(name);
  read_dropout(r, m);
  if (has_kinds(family)) {
    read_kinds(r, m);
    r.finish();
    if (sink.ok()) check_total(r, m);
    return sink.result(std::move(m));
  }
  read_heads(r, root, m);
  read_sizes(r, m);
  if (has_experts(family)) read_experts(r, m);
  read_flags(r, m);
  if (m.position == PositionKind::kRotary) read_rotary(r, m);
  refuse_unsupported(r, m);
  if (family == Family::kDeepSeek && sink.ok()) read_dense_first(r, m);
  r.finish();
  if (sink.ok()) check_total(r, m);
  return sink.result(std::move(m));
}

base::Result<ModelSpec> load_hf_config(const std::string& path) {
  TRY(const base::Node root, base::Node::parse_file(path));
  return read_hf_config(root, path);
}

}  // namespace orrery::model

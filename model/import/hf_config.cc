/// \file
/// Hugging Face config.json -> ModelSpec. Keys and their defaults are those of the transformers
/// library (src/transformers/models/<model_type>/configuration_<model_type>.py).
#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "model/import/hf_config_fields.h"
#include "model/names.h"
#include "model/spec.h"

namespace orrery::model {
namespace {

using enum Family;
using enum base::ErrorCode;
using base::ErrorCode;

using namespace hf;

constexpr std::array<base::Named<Activation>, 9> kActivations{
    {{"gelu", Activation::kGelu},
     {"gelu_new", Activation::kGeluTanh},
     {"gelu_pytorch_tanh", Activation::kGeluTanh},
     {"gelu_tanh", Activation::kGeluTanh},
     {"gelu_fast", Activation::kGeluTanh},
     {"silu", Activation::kSilu},
     {"swish", Activation::kSilu},
     {"relu", Activation::kRelu},
     {"relu2", Activation::kSquaredRelu}}};

}  // namespace

ModelSpec family_defaults(Family family) {
  ModelSpec m;
  m.family = family;
  // 0.1 there, else 0
  m.dropout = family == kGpt2 || family == kBert || family == kRoberta || family == kT5;
  if (family == kGpt2) return m;
  if (family == kBert || family == kRoberta) {
    m.norm_epsilon = 1e-12;
    m.activation = Activation::kGelu;
    m.causal = false;
    m.post_norm = m.embedding_norm = true;
    m.pooler = true;
    m.type_vocab = 2;
    return m;
  }
  m.norm = NormKind::kRmsNorm;
  m.norm_epsilon = family == kMixtral ? 1e-5 : 1e-6;
  m.activation = Activation::kSilu;
  m.gated_mlp = true;
  m.qkv_bias = family == kQwen2 || family == kQwen2Moe;
  m.projection_bias = false;
  m.mlp_bias = false;
  m.tied_embeddings = false;
  m.position = PositionKind::kRotary;
  if (family == kMixtral) m.rope_theta = 1e6;
  return m;
}

namespace hf {

Found find_int(base::Reader& r, std::initializer_list<std::string_view> keys,
               base::IntRange range) {
  Found found{.value = std::nullopt, .key = *keys.begin()};
  for (const std::string_view key : keys) {
    const auto value = r.optional_int(key, range);
    if (!value) continue;
    if (found.value && *found.value != *value) {
      r.fault(key, kInconsistent, "both name the same size: keep one", "'{}' is {}, but '{}' is {}",
              key, *value, found.key, *found.value);
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

/// Their names, and those of text models inside models of several media.
std::vector<base::Named<Family>> family_names() {
  std::vector<base::Named<Family>> names = names_up_to(kLastFamily);
  names.push_back({"llama4_text", kLlama4});
  names.push_back({"gemma3_text", kGemma3});
  names.push_back({"qwen3_5_text", kQwen35});
  names.push_back({"qwen3_5_moe_text", kQwen35Moe});
  return names;
}

bool is_rotary_family(Family f) { return f != kGpt2 && f != kBert && f != kRoberta; }
bool has_experts(Family f) { return f == kMixtral || f == kQwen2Moe || f == kDeepSeek; }

/// Reads one file.
struct Reading {
  const base::Node& root;
  base::Reader& r;
  ModelSpec& m;

  /// Key/value heads when the file is silent: as many as query heads, 8 in MistralConfig and
  /// MixtralConfig (there null means as many).
  std::int64_t default_kv_heads() const {
    const bool eight = m.family == kMistral || m.family == kMixtral;
    return eight && !root.find("num_key_value_heads") ? 8 : m.heads;
  }

  void read_heads() {
    const Found hidden = require_int(r, {"hidden_size", "n_embd"}, kSize);
    const Found heads = require_int(r, {"num_attention_heads", "n_head"}, kSize);
    m.hidden = *hidden.value;
    m.heads = *heads.value;
    m.kv_heads = m.heads;
    std::optional<std::int64_t> head_dim;
    if (is_rotary_family(m.family)) {
      m.kv_heads = r.optional_int("num_key_value_heads", kSize).value_or(default_kv_heads());
      head_dim = r.optional_int("head_dim", kSize);
    }
    m.head_dim = head_dim.value_or(m.hidden / m.heads);
    if (!r.sink().ok()) return;  // contradictions of wrong numbers say nothing new
    if (!head_dim && m.hidden % m.heads != 0) {
      r.fault(heads.key, kInconsistent,
              is_rotary_family(m.family)
                  ? fmt::format("change '{}' or '{}', or state 'head_dim'", heads.key, hidden.key)
                  : fmt::format("change '{}' or '{}'", heads.key, hidden.key),
              "{} heads do not divide the hidden size {}", m.heads, m.hidden);
      return;
    }
    if (m.heads % m.kv_heads != 0) {
      r.fault("num_key_value_heads", kInconsistent,
              "every key/value head serves the same number of query heads",
              "{} key/value heads do not divide {} heads", m.kv_heads, m.heads);
    }
    if (is_rotary_family(m.family) && m.head_dim % 2 != 0) {
      r.fault(head_dim ? "head_dim" : heads.key, kInconsistent, "make the head size even",
              "rotary positions rotate pairs, but a head has {} numbers", m.head_dim);
    }
  }

  void read_sizes() {
    m.layers = require_size(r, {"num_hidden_layers", "n_layer"});
    m.vocab = require_size(r, {"vocab_size"}, kTable);
    m.max_positions = require_size(
        r, {"max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"}, kTable);
    if (m.family == kGpt2) {
      m.ffn = find_int(r, {"n_inner", "intermediate_size"}, kSize).value.value_or(4 * m.hidden);
    } else {
      // Of qwen2_moe "intermediate_size" is that of dense blocks, which we refuse; of deepseek that
      // of its first blocks.
      const bool expert = m.family == kQwen2Moe || m.family == kDeepSeek;
      m.ffn = require_size(r, {expert ? "moe_intermediate_size" : "intermediate_size"});
    }
    if (m.family == kBert || m.family == kRoberta)
      m.type_vocab = r.optional_int("type_vocab_size", {0, 1 << 16}).value_or(m.type_vocab);
  }

  /// Mixtures of experts. "moe_expert_capacity_factor" is Megatron-LM's word: transformers drops no
  /// token and has none. The auxiliary loss changes no size.
  void read_experts() {
    const Found experts =
        require_int(r, {"num_local_experts", "num_experts", "n_routed_experts"}, kSize);
    m.experts = *experts.value;
    m.experts_per_token = require_size(r, {"num_experts_per_tok"});
    m.capacity_factor =
        r.optional_double("moe_expert_capacity_factor", kCapacity).value_or(m.capacity_factor);
    if (m.family == kQwen2Moe) m.shared_ffn = require_size(r, {"shared_expert_intermediate_size"});
    if (m.family == kDeepSeek) {
      m.shared_gate = false;
      m.shared_ffn = r.optional_int("n_shared_experts", {0, 1 << 20}).value_or(0) * m.ffn;
    }
    if (!r.sink().ok()) return;
    if (m.experts_per_token > m.experts) {
      r.fault("num_experts_per_tok", kInconsistent,
              fmt::format("make it at most {}, or '{}' larger", m.experts, experts.key),
              "a token goes to {} experts, and there are {}", m.experts_per_token, m.experts);
    }
    read_routing(r, m);
    const auto step = r.optional_int("decoder_sparse_step", {1, 1 << 20}).value_or(1);
    const auto dense = r.optional_list("mlp_only_layers");
    if (step == 1 && (!dense || dense->empty())) return;
    r.fault(step != 1 ? "decoder_sparse_step" : "mlp_only_layers", kUnsupported,
            "every block is alike: leave the key out",
            "dense blocks between blocks of experts are not supported");
  }

  /// The probability that attention drops is GPT2Config's attn_pdrop, BertConfig's
  /// attention_probs_dropout_prob, T5Config's dropout_rate, else attention_dropout.
  void read_dropout() {
    constexpr base::DoubleRange kProbability{0.0, 1.0};
    for (const std::string_view key :
         {"attn_pdrop", "attention_probs_dropout_prob", "dropout_rate", "attention_dropout"}) {
      if (const auto p = r.optional_double(key, kProbability)) m.dropout = *p > 0;
    }
  }

  void read_flags() {
    const bool gpt2 = m.family == kGpt2, bert = m.family == kBert || m.family == kRoberta;
    const std::string_view epsilon = gpt2   ? "layer_norm_epsilon"
                                     : bert ? "layer_norm_eps"
                                            : "rms_norm_eps";
    m.norm_epsilon = r.optional_double(epsilon, kEpsilon).value_or(m.norm_epsilon);
    const std::string_view activation =
        gpt2 && r.has("activation_function") ? "activation_function" : "hidden_act";
    m.activation = r.optional_enum(activation, kActivations).value_or(m.activation);
    m.tied_embeddings = r.optional_bool("tie_word_embeddings").value_or(m.tied_embeddings);
    if (m.family == kLlama) {
      m.qkv_bias = m.projection_bias = r.optional_bool("attention_bias").value_or(false);
      m.mlp_bias = r.optional_bool("mlp_bias").value_or(false);
    }
  }

  /// Mistral's and Mixtral's window; Qwen2's means nothing unless it is switched on, and then from
  /// block max_window_layers on.
  void read_window() {
    if (m.family != kMistral && m.family != kMixtral && m.family != kQwen2 && m.family != kQwen2Moe)
      return;
    const auto window = r.optional_int("sliding_window", kTable);
    const bool qwen = m.family == kQwen2 || m.family == kQwen2Moe;
    if (!window || (qwen && !r.optional_bool("use_sliding_window").value_or(false))) return;
    const auto from = r.optional_int("max_window_layers", {0, 1 << 20}).value_or(0);
    std::vector<std::pair<std::string, BlockShape>> blocks;
    for (std::int64_t i = 0; i < m.layers && m.layers <= 4096; ++i) {
      BlockShape s = m;
      if (!qwen || i >= from) s.reach = *window;
      blocks.emplace_back(s.reach > 0 ? "window" : "full", s);
    }
    set_order(m, blocks);
  }

  /// Switches of transformers that change the mathematics into something that we do not train.
  void refuse_unsupported() {
    const auto refuse_true = [&](std::string_view key) {
      if (r.optional_bool(key).value_or(false)) {
        r.fault(key, kUnsupported, "set it to false", "'{}' is not supported for {}", key,
                to_string(m.family));
      }
    };
    if (m.family == kGpt2) {
      refuse_true("scale_attn_by_inverse_layer_idx");
      refuse_true("add_cross_attention");
    }
    if (m.family != kBert && m.family != kRoberta) return;
    refuse_true("is_decoder");
    refuse_true("add_cross_attention");
    const auto position = r.optional_string("position_embedding_type");
    if (position && *position != "absolute") {
      r.fault("position_embedding_type", kUnsupported, "only 'absolute' is",
              "position embeddings '{}' are not supported", *position);
    }
  }

  /// Sizes that are each in range may still multiply to a model whose counts overflow: 1e15
  /// parameters are 1000 times the largest ever trained. Counted in doubles: the matrices by their
  /// FLOPs for one token, then the tables.
  void check_total() {
    const ModelSpec last = m.of_kind(m.last_kind());
    const double tables = real(m.vocab + m.max_positions + m.patch_features) *
                          real(std::max({m.hidden, last.hidden, m.embedding_width()}));
    double parameters = 2 * tables;
    for (int k = 0; k < m.kinds(); ++k) {
      const ModelSpec kind = m.of_kind(k);
      // Experts that one token does not go to: three products each.
      const double others = 3 * real(kind.experts) * real(kind.expert_width()) * real(kind.ffn);
      parameters += real(m.blocks_of(k)) * (others + kind.block_matmul_flops(kind.token_share) / 2);
    }
    if (parameters <= 1e15) return;
    r.fault("model_type", kOutOfRange, "at most 1e15 are counted exactly",
            "the sizes make a model of {:.2g} parameters", parameters);
  }
};

}  // namespace

namespace {

/// The text model of a model of several media; tied embeddings are said outside of it.
base::Result<ModelSpec> read_text_config(const base::Node& root, const base::Node& text,
                                         std::string_view name) {
  TRY(ModelSpec m, read_hf_config(text, name));
  if (const auto tied = root.find("tie_word_embeddings"); tied && !tied->is_null()) {
    TRY(m.tied_embeddings, tied->as_bool());
  }
  return m;
}

}  // namespace

base::Result<ModelSpec> read_hf_config(const base::Node& root, std::string_view name) {
  if (const auto text = root.find("text_config"); text && text->is_object())
    return read_text_config(root, *text, name);
  base::ErrorSink sink;
  base::Reader r(root, fmt::format("model '{}'", name), sink);
  ModelSpec m;
  Reading reading{root, r, m};
  const Family family = r.required_enum("model_type", family_names());
  if (!sink.ok()) return sink.result(m);  // what the other keys mean depends on it
  if (is_decoder(family))
    ignore_harmless(root, r);
  else
    r.allow_unknown();
  m = family_defaults(family);
  m.name = std::string(name);
  reading.read_dropout();
  if (has_kinds(family)) {
    read_kinds(r, m);
  } else if (is_decoder(family)) {
    read_decoder(r, m);
  } else {
    reading.read_heads();
    reading.read_sizes();
    if (has_experts(family)) reading.read_experts();
    reading.read_flags();
    if (m.position == PositionKind::kRotary) read_rope(r, m);
    reading.refuse_unsupported();
    if (family == kDeepSeek && sink.ok()) read_dense_first(r, m);
    reading.read_window();
  }
  r.finish();
  if (sink.ok()) reading.check_total();
  return sink.result(std::move(m));
}

base::Result<ModelSpec> load_hf_config(const std::string& path) {
  TRY(const base::Node root, base::Node::parse_file(path));
  return read_hf_config(root, path);
}

}  // namespace orrery::model

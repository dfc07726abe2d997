/// \file
/// config.json: latent attention, and recurrent mixers (Mamba-2, gated DeltaNet, lightning).
#include <algorithm>

#include <fmt/format.h>

#include "base/numbers.h"
#include "model/import/hf_config_fields.h"

namespace orrery::model::hf {
namespace {

using enum Family;
using enum base::ErrorCode;

/// Mamba-2's sizes under the keys of mamba2, nemotron_h and granitemoehybrid.
Scan read_mamba(base::Reader& r, bool plain = false) {
  Scan s;  // `plain`: mamba2 itself, whose head_dim is that of the scan
  s.heads = require_size(r, {"num_heads", "mamba_num_heads", "mamba_n_heads"});
  s.head_dim =
      plain ? require_size(r, {"head_dim"}) : require_size(r, {"mamba_head_dim", "mamba_d_head"});
  s.groups = find_int(r, {"n_groups", "mamba_n_groups"}, kSize).value.value_or(1);
  s.state =
      find_int(r, {"state_size", "ssm_state_size", "mamba_d_state"}, kSize).value.value_or(128);
  s.kernel = find_int(r, {"conv_kernel", "mamba_d_conv"}, kSize).value.value_or(4);
  s.chunk = find_int(r, {"chunk_size", "mamba_chunk_size"}, kSize).value.value_or(256);
  for (const std::string_view key : {"use_bias", "mamba_proj_bias"}) {
    if (!r.optional_bool(key).value_or(false)) continue;
    r.fault(key, kUnsupported, "set it to false",
            "biases of a Mamba-2 projection are not modelled");
  }
  if (!r.optional_bool("use_conv_bias").value_or(true))
    r.fault("use_conv_bias", kUnsupported, "true", "a convolution without bias is not modelled");
  return s;
}

/// A mixer without an MLP, or an MLP without one.
BlockShape mixer_alone(BlockShape s) {
  s.ffn = s.experts = s.experts_per_token = s.shared_ffn = 0;
  return s;
}

void read_mamba2(base::Reader& r, ModelSpec& m) {
  m.hidden = require_size(r, {"hidden_size"});
  m.layers = require_size(r, {"num_hidden_layers"});
  m.vocab = require_size(r, {"vocab_size"}, kTable);
  m.max_positions = find_int(r, {"max_position_embeddings"}, kTable).value.value_or(1 << 20);
  m.norm_epsilon = r.optional_double("layer_norm_epsilon", kEpsilon).value_or(1e-5);
  m.tied_embeddings = r.optional_bool("tie_word_embeddings").value_or(false);
  m.position = PositionKind::kNone;
  m.mixer = Mixer::kMamba2;
  m.scan = read_mamba(r, true);
  m.heads = m.kv_heads = m.scan.heads;
  m.head_dim = m.scan.head_dim;
}

/// A letter a block: M Mamba-2, * attention without positions, - MLP, E mixture.
void read_nemotron_h(base::Reader& r, ModelSpec& m) {
  m.position = PositionKind::kNone;
  m.gated_mlp = false;
  m.activation = find_activation(r, "mlp_hidden_act").value_or(Activation::kSquaredRelu);
  m.expert_hidden = r.optional_int("moe_latent_size", kSize).value_or(0);
  const std::string pattern = r.required_string("hybrid_override_pattern");
  const Scan scan = read_mamba(r);
  if (const auto d = r.optional_int("attention_head_dim", kSize)) m.head_dim = *d;
  const std::int64_t dense = find_int(r, {"intermediate_size"}, kSize).value.value_or(m.ffn);
  std::vector<std::pair<std::string, BlockShape>> blocks;
  for (const char letter : pattern) {
    BlockShape s = m;
    switch (letter) {
      case 'M':
        s = mixer_alone(m);
        s.mixer = Mixer::kMamba2;
        s.scan = scan;
        blocks.emplace_back("mamba", s);
        break;
      case '*': blocks.emplace_back("attention", mixer_alone(m)); break;
      case 'E':
        s.mixer = Mixer::kNone;
        blocks.emplace_back("experts", s);
        break;
      case '-':
        s = mixer_alone(m);
        s.ffn = dense;
        s.mixer = Mixer::kNone;
        blocks.emplace_back("mlp", s);
        break;
      default:
        r.fault("hybrid_override_pattern", kBadValue, "letters M, *, - and E",
                "the pattern has a letter '{}'", letter);
        return;
    }
  }
  set_order(m, blocks);
}

void read_granite_hybrid(base::Reader& r, ModelSpec& m) {
  m.position = r.optional_string("position_embedding_type").value_or("nope") == "rope"
                   ? PositionKind::kRotary
                   : PositionKind::kNone;
  if (m.experts > 0) m.ffn = require_size(r, {"intermediate_size"});
  const Scan scan = read_mamba(r);
  const std::vector<std::string> types =
      r.required_strings(r.has("layers_block_type") ? "layers_block_type" : "layer_types");
  std::vector<std::pair<std::string, BlockShape>> blocks;
  for (const std::string& type : types) {
    BlockShape s = m;
    if (type == "mamba") {
      s.mixer = Mixer::kMamba2;
      s.scan = scan;
    }
    blocks.emplace_back(type, s);
  }
  set_order(m, blocks);
}

/// 1 in attn_type_list: softmax.
void read_minimax(base::Reader& r, ModelSpec& m) {
  const std::vector<std::int64_t> types = r.required_ints("attn_type_list", {0, 1});
  std::vector<std::pair<std::string, BlockShape>> blocks;
  const std::int64_t chunk = r.optional_int("block_size", kSize).value_or(256);
  for (const std::int64_t softmax : types) {
    BlockShape s = m;
    if (softmax == 0) {
      s.mixer = Mixer::kLightning;
      s.scan = {m.heads, m.head_dim, m.heads, m.head_dim, 0, chunk};
    }
    blocks.emplace_back(softmax != 0 ? "full" : "lightning", s);
  }
  set_order(m, blocks);
}

void read_delta(base::Reader& r, ModelSpec& m) {
  m.output_gate = true;
  m.mixer = Mixer::kDeltaNet;
  Scan& s = m.scan;
  s.heads = r.optional_int("linear_num_value_heads", kSize).value_or(32);
  s.groups = r.optional_int("linear_num_key_heads", kSize).value_or(16);
  s.head_dim = r.optional_int("linear_value_head_dim", kSize).value_or(128);
  s.state = r.optional_int("linear_key_head_dim", kSize).value_or(128);
  s.kernel = r.optional_int("linear_conv_kernel_dim", kSize).value_or(4);
  s.chunk = 64;
}

}  // namespace

void read_latent(base::Reader& r, ModelSpec& m) {
  m.mixer = Mixer::kLatent;
  m.q_rank = r.optional_int("q_lora_rank", kSize).value_or(0);
  m.kv_rank = require_size(r, {"kv_lora_rank"});
  m.rope_dim = require_size(r, {"qk_rope_head_dim"});
  m.value_dim = require_size(r, {"v_head_dim"});
  m.head_dim = require_size(r, {"qk_nope_head_dim"}) + m.rope_dim;
  m.kv_heads = m.heads;
  if (m.family != kDeepSeekV32 && m.family != kGlmMoeDsa) return;
  m.indexer = {require_size(r, {"index_n_heads"}), require_size(r, {"index_head_dim"}),
               require_size(r, {"index_topk"})};
  if (m.q_rank == 0)
    r.fault("q_lora_rank", kMissingKey, "state it",
            "'q_lora_rank' is missing, and an indexer reads the latent of queries");
  else if (r.sink().ok() && m.indexer.dim < m.rope_dim)
    r.fault("index_head_dim", kInconsistent, "at least as many",
            "{} numbers of an index key hold no {} rotated ones", m.indexer.dim, m.rope_dim);
}

void read_recurrent(base::Reader& r, ModelSpec& m) {
  switch (m.family) {
    case kMamba2: return read_mamba2(r, m);
    case kNemotronH: return read_nemotron_h(r, m);
    case kGraniteMoeHybrid: return read_granite_hybrid(r, m);
    case kMinimax: return read_minimax(r, m);
    default: return read_delta(r, m);
  }
}

}  // namespace orrery::model::hf

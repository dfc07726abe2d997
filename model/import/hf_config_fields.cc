/// \file
/// config.json: keys that change nothing of what is modelled.
#include <algorithm>
#include <string_view>

#include "model/import/hf_config_fields.h"

namespace orrery::model::hf {
namespace {

/// Of the file itself, of inference, of initial values, of the tokenizer; of mixtures
/// balancing losses and biases, and, where there are no experts, how routers choose; modules that
/// predict further tokens, which transformers leaves out as well; of recurrent mixers their initial
/// steps.
constexpr std::string_view kHarmless[] = {"_attn_implementation",
                                          "_name_or_path",
                                          "architectures",
                                          "attn_implementation",
                                          "auto_map",
                                          "aux_loss_alpha",
                                          "cache_implementation",
                                          "description",
                                          "dtype",
                                          "ep_size",
                                          "expand",
                                          "experts_per_token",
                                          "hidden_act",
                                          "indexer_rope_interleave",
                                          "initial_context_length",
                                          "initializer_factor",
                                          "initializer_range",
                                          "keys_to_ignore_at_inference",
                                          "mamba_expand",
                                          "mamba_hidden_act",
                                          "max_window_layers",
                                          "model_type",
                                          "n_group",
                                          "norm_topk_prob",
                                          "num_nextn_predict_layers",
                                          "original_max_position_embeddings",
                                          "pretraining_tp",
                                          "qk_head_dim",
                                          "qk_norm_type",
                                          "quantization_config",
                                          "rescale_prenorm_residual",
                                          "residual_in_fp32",
                                          "rope_interleave",
                                          "routed_scaling_factor",
                                          "router_aux_loss_coef",
                                          "router_jitter_noise",
                                          "scale_fmt",
                                          "scoring_func",
                                          "seq_aux",
                                          "source",
                                          "swiglu_limit",
                                          "tokenizer_class",
                                          "topk_group",
                                          "topk_method",
                                          "torch_dtype",
                                          "transformers_version",
                                          "use_cache",
                                          "use_conv_bias",
                                          "use_mamba_kernels",
                                          "use_routing_bias",
                                          "num_logits_to_keep"};
constexpr std::string_view kSuffixes[] = {"_token_id", "_token_ids",    "_token_index", "dropout",
                                          "_pdrop",    "_dropout_prob", "_loss_coef",   "_loss"};
constexpr std::string_view kPrefixes[] = {"output_", "time_step_"};

/// null, false, 0, "", [] and {}: switched off.
bool is_off(const base::Node& value) {
  if (value.is_list() || value.is_object()) return value.size() == 0;
  if (value.is_null()) return true;
  if (const auto flag = value.as_bool()) return !*flag;
  if (const auto number = value.as_double()) return *number == 0;
  const auto text = value.as_string();
  return text && text->empty();
}

bool is_harmless(std::string_view key) {
  return std::ranges::find(kHarmless, key) != std::end(kHarmless) ||
         std::ranges::any_of(kSuffixes, [&](auto s) { return key.ends_with(s); }) ||
         std::ranges::any_of(kPrefixes, [&](auto s) { return key.starts_with(s); });
}

}  // namespace

void ignore_harmless(const base::Node& root, base::Reader& r) {
  for (const base::Node::Member& m : root.members())
    if (is_harmless(m.key) || is_off(m.value)) r.ignore(m.key);
}

}  // namespace orrery::model::hf

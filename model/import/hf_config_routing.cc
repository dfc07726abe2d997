/// \file
/// How routers of mixtures choose (model/spec.h, Routing). What a file leaves out is what the
/// family's published models have.
#include "model/import/hf_config_fields.h"

namespace orrery::model::hf {
namespace {

using enum Family;
using enum base::ErrorCode;

Routing usual(Family family) {
  switch (family) {
    case kDeepSeekV3:
    case kDeepSeekV32: return {.sigmoid = true, .groups = 8, .groups_per_token = 4, .scale = 2.5};
    case kGlmMoeDsa: return {.sigmoid = true, .scale = 2.5};
    case kKimiK2:
    case kGlm4Moe:
    case kMinimaxM2:
    case kNemotronH: return {.sigmoid = true};
    case kLlama4: return {.sigmoid = true, .normalised = false, .of_inputs = true};
    case kDeepSeek:
    case kDeepSeekV2:
    case kQwen2Moe:
    case kOlmoe: return {.normalised = false};
    default: return {};
  }
}

}  // namespace

void read_routing(base::Reader& r, ModelSpec& m) {
  const bool groups = m.mixer == Mixer::kLatent || m.family == kGlm4Moe || m.family == kNemotronH;
  Routing& routing = m.routing = usual(m.family);
  const std::string scoring =
      r.optional_string("scoring_func").value_or(routing.sigmoid ? "sigmoid" : "softmax");
  if (scoring != "sigmoid" && scoring != "softmax")
    r.fault("scoring_func", kBadValue, "softmax or sigmoid", "'scoring_func' is '{}'", scoring);
  routing.sigmoid = scoring == "sigmoid";
  routing.normalised = r.optional_bool("norm_topk_prob").value_or(routing.normalised);
  routing.scale = r.optional_double("routed_scaling_factor", {1e-9, 1e9}).value_or(routing.scale);
  const std::string method = r.optional_string("topk_method").value_or("");
  const auto stated = r.optional_int("n_group", kSize), best = r.optional_int("topk_group", kSize);
  if (!groups) return;
  routing.groups = stated.value_or(routing.groups);
  routing.groups_per_token = best.value_or(routing.groups_per_token);
  // DeepSeek's words: groups do not count; they do, of a softmax; they do, of sigmoids.
  if (method == "greedy") routing.groups = routing.groups_per_token = 1;
  const std::string_view grouped = routing.sigmoid ? "noaux_tc" : "group_limited_greedy";
  if (routing.groups > 1 && !method.empty() && method != grouped)
    r.fault("topk_method", kUnsupported, fmt::format("{}, or greedy", grouped),
            "'topk_method' is '{}', and scores are those of a {}", method, scoring);
  if (m.experts % routing.groups != 0)
    r.fault("n_group", kInconsistent, "groups are equal", "{} groups of {} experts", routing.groups,
            m.experts);
  else if (routing.groups_per_token > routing.groups)
    r.fault("topk_group", kInconsistent, "at most all", "{} groups of {}", routing.groups_per_token,
            routing.groups);
  else if (m.experts / routing.groups * routing.groups_per_token < m.experts_per_token)
    r.fault("topk_group", kInconsistent, "more groups, or fewer experts a token",
            "{} groups of {} experts have no {} experts", routing.groups_per_token,
            m.experts / routing.groups, m.experts_per_token);
}

}  // namespace orrery::model::hf

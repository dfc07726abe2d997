/// \file
/// config.json: rotary positions, which keys a query sees, and blocks that take turns.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/numbers.h"
#include "model/import/hf_config_fields.h"

namespace orrery::model::hf {
namespace {

using enum base::ErrorCode;

constexpr base::DoubleRange kTheta{1.0, 1e12}, kFactor{1e-6, 1e6}, kShare{0.0, 1.0};

constexpr std::array<base::Named<RopeScaling>, 9> kScalings{{{"default", RopeScaling::kNone},
                                                             {"linear", RopeScaling::kLinear},
                                                             {"dynamic", RopeScaling::kDynamic},
                                                             {"yarn", RopeScaling::kYarn},
                                                             {"deepseek_yarn", RopeScaling::kYarn},
                                                             {"llama3", RopeScaling::kLlama3},
                                                             {"longrope", RopeScaling::kLongRope},
                                                             {"su", RopeScaling::kLongRope},
                                                             {"mrope", RopeScaling::kNone}}};

/// Peng et al., "YaRN", arXiv 2309.00071, equation 22: 0.1 m ln(factor) + 1.
double yarn_magnitude(double factor, double m) {
  return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
}

/// Factors of pairs, and the magnitude sqrt(1 + ln(positions / original) / ln(original)) (Ding et
/// al., "LongRoPE", arXiv 2402.13753; Phi-3, arXiv 2404.14219). `outer`: around rope_scaling.
void read_longrope(base::Reader& inner, base::Reader& outer, ModelSpec& m) {
  m.short_factors = inner.required_doubles("short_factor", kFactor);
  m.long_factors = inner.required_doubles("long_factor", kFactor);
  Rope& rope = m.rope;
  if (const auto original = outer.optional_int("original_max_position_embeddings", kTable)) {
    rope.original = *original;
    rope.factor = real(m.max_positions) / real(rope.original);
  }
  if (rope.factor > 1 && rope.original > 1)
    rope.magnitude = std::sqrt(1 + std::log(rope.factor) / std::log(real(rope.original)));
}

/// Inside rope_scaling or rope_parameters.
void read_scaling(const base::Node& node, std::string_view key, base::Reader& r, ModelSpec& m) {
  base::Reader inner(node, std::string(key), r.sink());
  inner.allow_unknown();
  Rope& rope = m.rope;
  const std::string_view type = inner.has("rope_type") ? "rope_type" : "type";
  rope.scaling = inner.optional_enum(type, kScalings).value_or(RopeScaling::kNone);
  if (const auto theta = inner.optional_double("rope_theta", kTheta)) m.rope_theta = *theta;
  if (const auto share = inner.optional_double("partial_rotary_factor", kShare))
    rope.dims = std::llround(*share * real(m.head_dim));
  if (rope.scaling == RopeScaling::kNone) return inner.finish();
  rope.factor = inner.optional_double("factor", kFactor).value_or(1);
  rope.original =
      inner.optional_int("original_max_position_embeddings", kTable).value_or(m.max_positions);
  if (rope.scaling == RopeScaling::kLlama3) {
    rope.low = inner.optional_double("low_freq_factor", kFactor).value_or(1);
    rope.high = inner.optional_double("high_freq_factor", kFactor).value_or(4);
  }
  if (rope.scaling == RopeScaling::kYarn) {
    rope.low = inner.optional_double("beta_slow", kFactor).value_or(1);
    rope.high = inner.optional_double("beta_fast", kFactor).value_or(32);
    const double m_all = inner.optional_double("mscale_all_dim", {0, 1e3}).value_or(0),
                 m_one = inner.optional_double("mscale", {0, 1e3}).value_or(0);
    rope.magnitude = m_all > 0 && m_one > 0
                         ? yarn_magnitude(rope.factor, m_one) / yarn_magnitude(rope.factor, m_all)
                         : yarn_magnitude(rope.factor, 1);
    // DeepSeek scales its scores as well.
    if (m.mixer == Mixer::kLatent && m_all > 0)
      m.score_scale = std::pow(yarn_magnitude(rope.factor, m_all), 2) / std::sqrt(real(m.head_dim));
  }
  if (rope.scaling == RopeScaling::kLongRope) read_longrope(inner, r, m);
  if (const auto magnitude = inner.optional_double("attention_factor", kFactor))
    rope.magnitude = *magnitude;
  inner.finish();
}

/// Equal but for the keys that queries see and how these are rotated.
bool alike(BlockShape a, const BlockShape& b) {
  a.reach = b.reach;
  a.chunked = b.chunked;
  a.rotates = b.rotates;
  a.rope_theta = b.rope_theta;
  a.rope = b.rope;
  return a == b;
}

}  // namespace

void read_rope(base::Reader& r, ModelSpec& m) {
  for (const std::string_view key : {"rope_theta", "rotary_emb_base"})
    if (const auto theta = r.optional_double(key, kTheta)) m.rope_theta = *theta;
  for (const std::string_view key : {"partial_rotary_factor", "rotary_pct"})
    if (const auto share = r.optional_double(key, kShare))
      m.rope.dims = std::llround(*share * real(m.head_dim));
  if (const auto dims = r.optional_int("rotary_dim", kSize)) m.rope.dims = *dims;
  for (const std::string_view key : {"rope_scaling", "rope_parameters"})
    if (const auto node = r.optional_object(key)) read_scaling(*node, key, r, m);
  if (m.rope.dims == m.head_dim) m.rope.dims = 0;
  if (m.rope.dims > m.head_dim || m.rope.dims % 2 != 0)
    r.fault("head_dim", kInconsistent, "an even share of a head is rotated",
            "{} of {} numbers of a head are rotated", m.rope.dims, m.head_dim);
  const std::size_t pairs = as_index((m.rope.dims == 0 ? m.head_dim : m.rope.dims) / 2);
  for (const auto* factors : {&m.short_factors, &m.long_factors})
    if (m.rope.scaling == RopeScaling::kLongRope && factors->size() != pairs)
      r.fault("rope_scaling", kInconsistent, "a factor for each rotated pair",
              "longrope has {} factors for {} rotated pairs", factors->size(), pairs);
}

void set_order(ModelSpec& m, const std::vector<std::pair<std::string, BlockShape>>& shapes) {
  std::vector<BlockRun> kinds;
  const auto find = [&](const BlockShape& s) {
    return std::ranges::find_if(kinds, [&](const BlockRun& k) { return k.shape == s; });
  };
  for (const auto& [name, shape] : shapes) {
    if (const auto known = find(shape); known != kinds.end()) {
      ++known->count;
      continue;
    }
    const auto kin = std::find_if(kinds.rbegin(), kinds.rend(),
                                  [&s = shape](const BlockRun& k) { return alike(k.shape, s); });
    kinds.insert(kin.base() == kinds.begin() ? kinds.end() : kin.base(), {name, 1, shape});
  }
  if (shapes.empty()) return;
  m.runs.clear();
  m.order.clear();
  m.layers = static_cast<std::int64_t>(shapes.size());
  if (kinds.size() > 1) {
    m.runs = kinds;
    for (const auto& [name, shape] : shapes) m.order.push_back(as_int(find(shape) - kinds.begin()));
    if (std::ranges::is_sorted(m.order)) m.order.clear();
  }
  static_cast<BlockShape&>(m) = kinds.front().shape;
}

}  // namespace orrery::model::hf

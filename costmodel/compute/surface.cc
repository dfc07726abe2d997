#include "costmodel/compute/surface.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::costmodel {
namespace {

using enum model::SegmentKind;
using enum model::Phase;
using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

struct Tile {
  double rows, columns;
  std::size_t halvings;  // of 256 x 128
};
constexpr std::array<Tile, 6> kTiles{
    {{256, 128, 0}, {128, 256, 0}, {128, 128, 1}, {128, 64, 2}, {64, 128, 2}, {64, 64, 3}}};
constexpr std::array<double, 6> kSplits{1, 2, 3, 4, 6, 8};
constexpr double kPartialSumBytes = 8;  // written and read in fp32
constexpr double kThrottleSeconds = 100e-6;
constexpr double kUnmeasuredFormat = 0.9;  // of the efficiency of the compute type
constexpr double kVectorEfficiency = 0.8;  // only binds on devices with little arithmetic
// of the segments: max, sum, read and write of the gradient
constexpr double kLossPasses = 4;

bool has_b(Phase p) { return p == kB || p == kBG; }
bool has_g(Phase p) { return p == kG || p == kBG; }

/// A product of queries or scores with keys or values, head by head, as one of all heads' rows: so
/// search/partition prices it.
SegmentShape product_of(const SegmentShape& heads) {
  SegmentShape s = heads;
  s.kind = kMlpIn;
  s.sequences *= heads.heads;
  s.in = heads.kind == kScores ? heads.head_dim : heads.kv_tokens;
  s.out = heads.kind == kScores ? heads.kv_tokens : heads.head_dim;
  return s;
}

/// Trilinear in logarithms: the product of hat functions of the two knots around each size.
double correction(const model::ProductCorrection& c, double m, double n, double k) {
  if (c.ln.empty()) return 0;
  struct Place {
    std::size_t low = 0, high = 0;
    double share = 0;  // of the high one
  };
  const auto place = [](const std::vector<double>& knots, double x) -> Place {
    if (x <= knots.front()) return {};
    if (x >= knots.back()) return {knots.size() - 1, knots.size() - 1, 0};
    const auto high = as_index(std::ranges::upper_bound(knots, x) - knots.begin());
    return {high - 1, high,
            std::log(x / knots[high - 1]) / std::log(knots[high] / knots[high - 1])};
  };
  const std::array<Place, 3> at{place(c.m, m), place(c.n, n), place(c.k, k)};
  double sum = 0;
  for (int corner = 0; corner < 8; ++corner) {
    double weight = 1;
    std::array<std::size_t, 3> i{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const bool high = (corner >> axis & 1) != 0;
      weight *= high ? at[axis].share : 1 - at[axis].share;
      i[axis] = high ? at[axis].high : at[axis].low;
    }
    sum += weight * c.ln[(i[0] * c.n.size() + i[1]) * c.k.size() + i[2]];
  }
  return sum;
}

/// Of the efficiency, for heads of d numbers.
double head_factor(const model::AttentionSurface& a, double d) {
  const std::vector<double>&sizes = a.head_sizes, &factors = a.head_factors;
  if (sizes.empty()) return 1;
  const auto above = as_index(std::ranges::upper_bound(sizes, d) - sizes.begin());
  if (above == 0 || above == sizes.size()) return above == 0 ? factors.front() : factors.back();
  const double w = std::log(d / sizes[above - 1]) / std::log(sizes[above] / sizes[above - 1]);
  return (1 - w) * factors[above - 1] + w * factors[above];
}

}  // namespace

SurfacePrices::SurfacePrices(model::ComputeSurface surface,
                             std::optional<model::Framework> framework, DeviceRates rates,
                             double composition)
    : surface_(std::move(surface)),
      framework_(framework.value_or(model::Framework{})),
      peak_(rates.peak.raw()),
      bandwidth_(rates.memory_bandwidth.raw()),
      products_(composition),
      attention_(composition) {
  ORRERY_CHECK(peak_ > 0 && bandwidth_ > 0);
  const model::PowerSurface& power = surface_.power;
  if (rates.power.raw() > 0 && power.joules_per_flop > 0) {
    dynamic_watts_ = rates.power.raw() - power.idle_watts;
    ORRERY_CHECK(dynamic_watts_ > 0, "a limit of {} W is below the {} W of an idle device",
                 rates.power.raw(), power.idle_watts);
  }
  by_format_[0] = Products(surface_.product, peak_, 1);
  for (std::size_t i = 1; i < model::kFormats; ++i) {
    const auto format = static_cast<model::Format>(i);
    const double peak = rates.of(format).raw();
    if (peak == 0) continue;
    const auto measured = std::ranges::find_if(surface_.formats, [&](const auto& f) {
      return std::ranges::find(f.formats, format) != f.formats.end();
    });
    model::ProductSurface like = surface_.product;
    like.efficiency *= kUnmeasuredFormat;
    by_format_[i] =
        Products(measured == surface_.formats.end() ? like : measured->product, peak, peak_ / peak);
  }
}

SurfacePrices::Products::Products(model::ProductSurface s, double peak, double energy_share)
    : surface(std::move(s)), energy(energy_share) {
  for (std::size_t j = 0; j < tile_rates.size(); ++j)
    tile_rates[j] = surface.efficiency * peak * std::pow(surface.half_tile, real(j));
}

SurfacePrices SurfacePrices::drawn(const PriceFactors& errors) const {
  SurfacePrices other(*this);
  other.products_ *= errors.products;
  other.attention_ *= errors.attention;
  other.streams_ *= errors.streams;
  return other;
}

double SurfacePrices::sustained(double seconds, double flops) const {
  if (dynamic_watts_ == 0) return seconds;
  const double load = surface_.power.joules_per_flop * flops / seconds / dynamic_watts_;
  return load > 1 ? seconds * std::pow(load, 1 / surface_.power.exponent) : seconds;
}

double SurfacePrices::copy_seconds(double bytes) const {
  return streams_ *
         (bytes / (surface_.stream.efficiency * bandwidth_) + surface_.product.launch_seconds);
}

double SurfacePrices::product_seconds(std::int64_t m, std::int64_t n, std::int64_t k,
                                      std::int64_t batch, double bytes,
                                      model::Format format) const {
  const Products& products = this->products(format);
  const model::ProductSurface& p = products.surface;
  ORRERY_CHECK(products.tile_rates[0] > 0, "no products in {}", to_string(format));
  const double rows = real(m), columns = real(n), depth = real(k), units = real(p.units),
               count = real(batch);
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double whole = std::ceil(rows / tile.rows) * std::ceil(columns / tile.columns) * count;
    const double rate = products.tile_rates[tile.halvings];
    for (const double split : kSplits) {
      const double each = whole * split / units;
      const double waves =
          p.quantisation * std::ceil(each) + (1 - p.quantisation) * std::max(each, 1.0);
      double t = 2 * tile.rows * tile.columns * units * waves *
                 (std::ceil(depth / split) + p.prologue_features) / rate;
      if (split > 1)
        t += p.split_traffic * kPartialSumBytes * split * rows * columns * count / bandwidth_;
      if (best == 0 || t < best) best = t;
    }
  }
  const double memory = bytes / (p.memory_efficiency * bandwidth_);
  const double larger = std::max(best, memory), ratio = std::min(best, memory) / larger;
  const double load = larger * std::sqrt(std::sqrt(1 + ratio * ratio * ratio * ratio));
  const double throttled =
      p.throttle > 0 ? load * std::pow(1 + load / kThrottleSeconds, p.throttle) : load;
  const double alone = (p.launch_seconds + throttled) *
                       std::exp(correction(p.correction, rows * count, columns, depth));
  return products_ * sustained(alone, 2 * rows * columns * depth * count * products.energy);
}

double SurfacePrices::expert_bias(const SegmentShape& s, Phase phase) const {
  const bool forward = phase == kF;
  if (s.kind != kExpertOut || !s.bias || !(forward || has_g(phase))) return 0;
  const double each =
      forward ? framework_.expert_bias_bytes : framework_.expert_bias_gradient_bytes;
  if (each == 0) return 0;
  return copy_seconds(each * real(s.token_count()) * real(s.out));
}

double SurfacePrices::linear(const SegmentShape& s, Phase phase) const {
  if (s.pieces > 1) {
    SegmentShape whole = s;
    whole.tokens *= s.pieces;
    whole.pieces = 1;
    return linear(whole, phase) / s.pieces;
  }
  const std::int64_t matrices = s.kind == kExpertIn || s.kind == kExpertOut ? s.experts : 1;
  ORRERY_CHECK(matrices > 0);
  const std::int64_t rows = (s.token_count() + matrices - 1) / matrices;
  const auto product = [&](Phase p, std::int64_t m, std::int64_t n, std::int64_t k) {
    const double quantising = model::quantising_bytes(s, p).raw(),
                 bytes = model::work(s, p).bytes.raw() - quantising;
    const double alone = product_seconds(m, n, k, matrices, bytes, s.format);
    return quantising > 0 ? alone + copy_seconds(quantising) : alone;
  };
  if (phase == kF) return product(kF, rows, s.out, s.in) + expert_bias(s, kF);
  double sum = expert_bias(s, phase);
  if (has_b(phase)) sum += product(kB, rows, s.in, s.out);
  if (has_g(phase)) sum += product(kG, s.out, s.in, rows);
  if (phase == kBG && s.format != model::Format::kNone) {
    // One pass quantises the incoming gradient by rows and by columns.
    const double twice =
                     model::quantising_bytes(s, kB).raw() + model::quantising_bytes(s, kG).raw(),
                 once = model::quantising_bytes(s, kBG).raw();
    sum -= streams_ * (twice - once) / (surface_.stream.efficiency * bandwidth_);
  }
  return sum;
}

double SurfacePrices::flash(const SegmentShape& s, Phase phase) const {
  const model::AttentionSurface& a = surface_.attention;
  const double b = real(s.sequences), q = real(s.tokens), n = real(s.heads), v = real(s.kv_heads),
               latent = real(s.value_dim),
               d = latent > 0 ? (real(s.head_dim) + latent) / 2 : real(s.head_dim);
  const double keys = real(s.kind == kAttentionBlock ? s.kv_tokens : s.tokens);
  // of a window w: its query sees w keys but for the first w, a triangle; of a chunk half
  const double r = s.kind == kAttentionBlock ? keys : real(s.keys_seen());
  const double e = real(model::element_bytes(s.dtype));
  const double share = !s.causal ? 1.0 : s.chunked || r == keys ? 0.5 : 1 - r / (2 * keys);
  const double traffic =
      e * b * d * (2 * n * q + 2 * a.key_weight * v * keys) / (a.memory_efficiency * bandwidth_);
  const double flops = 4 * share * b * n * q * r * d;
  const bool older =
      framework_.attention == model::AttentionKernel::kFlash2 && a.flash2_efficiency > 0;
  const double forward_rate = older ? a.flash2_efficiency : a.efficiency * head_factor(a, d),
               backward_rate = older ? forward_rate : forward_rate * a.backward_efficiency;
  const double products = flops / (forward_rate * peak_), serial = a.seconds_per_token * r;
  const double edges = r < keys ? a.window_seconds * b * q * n : 0;
  const double rotated =
      s.rotary ? framework_.rotary_passes * 2 * e * b * d * (n * q + v * keys) : 0;
  const double rotation = rotated > 0 ? copy_seconds(rotated) : 0;
  if (phase == kF) {
    const double core = a.launch_seconds + serial + traffic + products + edges;
    return rotation + attention_ * sustained(core, flops);
  }
  const double core = a.launch_seconds + 2 * serial + 2 * traffic +
                      2.5 * (flops / (backward_rate * peak_) + edges / a.backward_efficiency);
  return rotation + attention_ * sustained(core, 2.5 * flops);
}

double SurfacePrices::explicit_attention(const SegmentShape& s, Phase phase) const {
  const std::int64_t q = s.tokens, r = s.kind == kAttentionBlock ? s.kv_tokens : s.tokens,
                     batch = s.sequences * s.heads, d = s.head_dim;
  const double e = real(model::element_bytes(s.dtype));
  const double operands = e * real(batch) * real(d) * real(q + r),
               scores = e * real(batch) * real(q) * real(r);
  const double layouts = 8 * e * real(batch) * real(q) * real(d);
  const double half = s.causal ? 0.5 : 1.0;
  const double by_scores = product_seconds(q, r, d, batch, operands + scores);
  const double by_context = product_seconds(q, d, r, batch, operands + scores);
  const double dropout = framework_.dropout ? copy_seconds((2 + 1 / e) * scores) : 0;
  const bool fused = s.dtype == model::DType::kBFloat16;
  const double softmax = fused ? 1 + half : 4, softmax_backward = fused ? 1 + 2 * half : 5;
  if (phase == kF)
    return by_scores + copy_seconds(softmax * scores) + dropout + by_context +
           copy_seconds(layouts);
  return by_scores + 3 * by_context + copy_seconds(softmax_backward * scores) + dropout +
         copy_seconds(layouts);
}

double SurfacePrices::stream(const SegmentShape& s, Phase phase) const {
  const auto work = model::work(s, phase);
  double bytes = work.bytes.raw(), efficiency = surface_.stream.efficiency;
  const bool loss = s.kind == kLossMax || s.kind == kLossSum || (s.kind == kLoss && phase != kF);
  if (loss && framework_.loss_passes > 0)
    bytes *= framework_.loss_passes / kLossPasses * 2 / real(model::element_bytes(s.dtype));
  if (s.kind == kNorm && s.norm == model::NormKind::kRmsNorm) bytes *= framework_.norm_passes;
  if (s.kind == kActivation && s.gated) bytes *= framework_.activation_passes;
  if (s.kind == kActivation && s.activation == model::Activation::kClampedSwiglu)
    bytes += (phase == kF ? framework_.clamp_bytes : framework_.clamp_gradient_bytes) *
             real(s.token_count()) * real(s.out);
  if (s.kind == kAttentionSplit && s.rotary) bytes *= framework_.rotary_passes;
  if (s.kind == kNorm && phase != kF) efficiency *= surface_.stream.norm_backward;
  if (s.kind == kResidual && framework_.dropout) {
    const double tensor = real(model::element_bytes(s.dtype)) * real(s.token_count()) * real(s.in);
    bytes += (phase == kF ? 0.5 : 2.5) * tensor;
  }
  const double arithmetic = work.flops.raw() / (kVectorEfficiency * peak_);
  return streams_ * (std::max(arithmetic, bytes / (efficiency * bandwidth_)) +
                     surface_.product.launch_seconds);
}

namespace {

/// The keys that an indexer chooses, as the latent has them: one key head of c + d_r numbers, whose
/// first c are the value. A query sees the last top_k keys: as many as it chooses.
SegmentShape chosen_core(const SegmentShape& s) {
  SegmentShape core = s;
  core.head_dim = s.in + s.rope_dim;
  core.value_dim = s.in;
  core.kv_heads = 1;
  core.reach = s.top_k;
  return core;
}
/// One product, where attention has two: of half as wide heads.
SegmentShape index_scores(const SegmentShape& s) {
  SegmentShape index = s;
  index.heads = s.index_heads;
  index.kv_heads = 1;
  index.head_dim = s.index_dim / 2;
  index.value_dim = index.rope_dim = 0;
  return index;
}

}  // namespace

double SurfacePrices::seconds(const SegmentShape& shape, Phase phase) const {
  const auto work = model::work(shape, phase);
  if (work.flops.raw() == 0 && work.bytes.raw() == 0) return 0;
  if (shape.kind == kScores || shape.kind == kValues) return linear(product_of(shape), phase);
  switch (work_kind(shape.kind)) {
    case WorkKind::kProduct: return linear(shape, phase);
    case WorkKind::kAttention: {
      const double all = framework_.attention == model::AttentionKernel::kExplicit
                             ? explicit_attention(shape, phase)
                             : flash(shape, phase);
      if (shape.index_heads == 0) return all;
      // The scores again in backward, and the gradients of queries and keys.
      const double index = (phase == kF ? 1 : 3) * flash(index_scores(shape), kF);
      return index +
             (shape.top_k < shape.tokens ? std::min(all, flash(chosen_core(shape), phase)) : all);
    }
    case WorkKind::kStream: break;
  }
  return stream(shape, phase);
}

}  // namespace orrery::costmodel

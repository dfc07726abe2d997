#include "costmodel/compute/compute.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/check.h"
#include "base/numbers.h"
#include "base/rng.h"
#include "costmodel/compute/layer_calibration.h"

namespace orrery::costmodel {
namespace {

using enum PriceSource;
using enum model::Phase;
using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

constexpr double kProductEfficiency = 0.80;
constexpr double kCausalAttentionEfficiency = 0.90;
constexpr double kFullAttentionEfficiency = 0.50;
constexpr double kMemoryEfficiency = 0.80;
constexpr std::size_t kKinds = as_index(model::kLastSegmentKind) + 1;

double efficiency(const SegmentShape& shape) {
  if (shape.kind != SegmentKind::kAttention && shape.kind != SegmentKind::kAttentionBlock &&
      shape.kind != SegmentKind::kLatentAttention)
    return kProductEfficiency;
  return shape.causal ? kCausalAttentionEfficiency : kFullAttentionEfficiency;
}

/// The executor copies a piece of the features inside a tensor group out of the tensor of all
/// pieces, or into it (executor/runtime/interpreter_run.cc): both where it makes both gradients. A
/// copy moves two thirds of what a sum of tensors of that size does.
constexpr double kCopyOfSum = 2.0 / 3;
double copies_of_piece(Phase phase) { return phase == kBG ? 2 : 1; }
SegmentShape sum_of_piece(const SegmentShape& product) {
  SegmentShape sum = product;
  const bool into_group = product.kind == SegmentKind::kQkv || product.kind == SegmentKind::kMlpIn;
  sum.kind = SegmentKind::kResidual;
  sum.in = sum.out = into_group ? product.out : product.in;
  sum.bias = false;
  sum.pieces = 1;
  return sum;
}

/// Everything that makes two shapes the same operation at another size.
bool same_flags(const SegmentShape& a, const SegmentShape& b) {
  return a.norm == b.norm && a.activation == b.activation && a.gated == b.gated &&
         a.bias == b.bias && a.rotary == b.rotary && a.causal == b.causal &&
         (a.ring_step == 0) == (b.ring_step == 0) && a.residual == b.residual &&
         a.shared == b.shared && a.reach == b.reach && a.chunked == b.chunked &&
         a.explicit_core() == b.explicit_core() && a.delta == b.delta &&
         a.routing.of_inputs == b.routing.of_inputs && (a.index_heads > 0) == (b.index_heads > 0);
}

std::array<std::int64_t, 15> dimensions(const SegmentShape& s) {
  return {s.sequences, s.tokens,   s.in,        s.out,         s.heads,
          s.kv_heads,  s.head_dim, s.elements,  s.kv_tokens,   s.experts,
          s.top_k,     s.capacity, s.value_dim, s.index_heads, s.index_dim};
}

/// Euclid on logarithms, 0 exactly when all dimensions agree.
double distance(const SegmentShape& a, const SegmentShape& b) {
  const auto x = dimensions(a), y = dimensions(b);
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i]) continue;
    const double d =
        std::log(real(std::max<std::int64_t>(x[i], 1)) / real(std::max<std::int64_t>(y[i], 1)));
    sum += d * d;
  }
  return std::sqrt(sum);
}

/// w of (a) in compute.h. `x`: way from the smaller point to the larger, 0 to 1; `log_ratio`: of
/// their rooflines, >= 0.
double weight_above(double x, double log_ratio) {
  constexpr double kAlike = 1e-9;
  return log_ratio < kAlike
             ? x
             : -std::exp(log_ratio) * std::expm1(-x * log_ratio) / std::expm1(log_ratio);
}

/// Layer times that suit a model best: its own, else those of the nearest width.
const model::LayerTimes* choose(const std::vector<model::LayerTimes>& all,
                                const model::ModelSpec& spec, model::Precision precision) {
  return base::closest(all, [&](const model::LayerTimes& times) {
    if (times.precision != precision) return base::kTooFar;
    if (times.model == spec.name) return 0.0;
    return 1 +
           std::abs(std::log(real(std::max<std::int64_t>(times.hidden, 1)) / real(spec.hidden)));
  });
}

/// (t) in compute.h.
model::ComputeSurface in_type(model::DType type, model::ComputeSurface surface,
                              const Roofline& device) {
  const double faster = device.peak(type).raw() / device.peak(surface.dtype).raw();
  surface.product.prologue_features *= faster * kProductEfficiency / surface.product.efficiency;
  surface.product.efficiency = kProductEfficiency;
  const double traffic =
      faster * real(model::element_bytes(type)) / real(model::element_bytes(surface.dtype));
  surface.product.half_tile = 1 - (1 - surface.product.half_tile) * std::min(traffic, 1.0);
  surface.product.correction = {};
  surface.power.joules_per_flop /= faster;
  surface.dtype = type;
  return surface;
}

/// The model that layer times were taken on.
base::Result<model::ModelSpec> measured_model(const model::LayerTimes& times,
                                              const model::ModelSpec& spec) {
  if (times.model == spec.name) return spec;
  auto found = model::find_model(times.model);
  if (found) return found;
  if (times.hidden == spec.hidden) return spec;
  return base::fail(
      base::make_error(base::ErrorCode::kInconsistent,
                       "profile times layers of '{}', hidden size {}, which is no model known here",
                       times.model, times.hidden)
          .with_hint(fmt::format("name a catalog model in the profile, or use a profile of '{}'",
                                 spec.name)));
}

tl::unexpected<base::Diagnostics> wrong_precision(const model::Profile& profile,
                                                  model::Precision precision) {
  return base::fail(
      base::make_error(base::ErrorCode::kInconsistent, "profile '{}' has no compute times in {}",
                       profile.name, model::to_string(precision))
          .with_hint(fmt::format("use the other --precision, or a profile measured in {}",
                                 model::to_string(precision))));
}

base::Result<void> check_format(const topologies::DeviceModel& device, model::DType type,
                                model::Format format) {
  if (Roofline::of(device).rates(type).of(format).raw() > 0) return {};
  if (format == model::Format::kNone)
    return base::fail(base::make_error(base::ErrorCode::kInconsistent, "{} has no peak in {}",
                                       device.name, model::to_string(type))
                          .with_hint("a topology says peak_fp32 and peak_bf16 of a device"));
  const bool later = format == model::Format::kNvFp4 || format == model::Format::kMxFp8;
  return base::fail(
      base::make_error(base::ErrorCode::kInconsistent, "{} has no products in {}", device.name,
                       to_string(format))
          .with_hint(later ? "from Blackwell on; a topology says peak_fp8 and peak_fp4 of a device"
                           : "from Hopper on; a topology says peak_fp8 of a device"));
}

/// A device that may draw less than an idle one of the profile is a slip of units.
base::Result<void> check_power(const Roofline& device, const model::PowerSurface& power,
                               const std::string& profile) {
  if (device.power.raw() == 0 || device.power.raw() > power.idle_watts) return {};
  return base::fail(base::make_error(base::ErrorCode::kInconsistent,
                                     "a device may draw {} W, and an idle one of profile '{}' "
                                     "draws {} W",
                                     device.power.raw(), profile, power.idle_watts)
                        .with_hint("power is the limit of one device under load"));
}

}  // namespace

Roofline Roofline::of(const topologies::DeviceModel& device) {
  return {device.peak_fp32,        device.peak_bf16,       device.peak_fp8, device.peak_fp4,
          device.memory_bandwidth, device.launch_overhead, device.power};
}

base::FlopsPerSecond Roofline::peak(model::DType type) const {
  return type == model::DType::kBFloat16 ? peak_bf16 : peak_fp32;
}

DeviceRates Roofline::rates(model::DType type) const {
  return {peak(type), memory_bandwidth, power, peak_fp8, peak_fp4};
}

Roofline::Bounds Roofline::bounds(const SegmentShape& shape, Phase phase) const {
  const auto work = model::work(shape, phase);
  const base::FlopsPerSecond rate = work_kind(shape.kind) == WorkKind::kProduct
                                        ? rates(shape.dtype).of(shape.format)
                                        : peak(shape.dtype);
  return {(work.flops / (rate * efficiency(shape))).raw(),
          (work.bytes / (memory_bandwidth * kMemoryEfficiency)).raw()};
}

double Roofline::seconds(const SegmentShape& shape, Phase phase) const {
  const Bounds b = bounds(shape, phase);
  return b.arithmetic == 0 && b.memory == 0 ? 0 : std::max(b.arithmetic, b.memory) + launch.raw();
}

double LayerCalibration::factor(const SegmentShape& shape, Phase phase) const {
  const CalibratedPart part = calibrated_part(shape.kind);
  if (part == CalibratedPart::kNeither) return 1.0;
  const auto of = [&](const Point& p) {
    if (part == CalibratedPart::kBlock) return phase == kF ? p.block_forward : p.block_backward;
    return phase == kF ? p.other_forward : p.other_backward;
  };
  const double x = std::log(real(std::max<std::int64_t>(shape.sequences, 1)));
  if (x <= points.front().log_batch) return of(points.front());
  for (std::size_t i = 1; i < points.size(); ++i) {
    const Point& a = points[i - 1];
    const Point& b = points[i];
    if (x == b.log_batch) return of(b);
    if (x > b.log_batch) continue;
    const double w = (x - a.log_batch) / (b.log_batch - a.log_batch);
    return of(a) * std::pow(of(b) / of(a), w);
  }
  return of(points.back());
}

double expected_greatest(std::int64_t n) {
  return base::normal_quantile((real(n) - 0.375) / (real(n) + 0.25));
}

base::Result<ComputePrices> ComputePrices::make(const model::ModelSpec& model,
                                                const topologies::Topology& topology,
                                                const std::optional<model::Profile>& profile,
                                                model::Precision precision, std::size_t kind) {
  ComputePrices prices;
  const topologies::DeviceModel& device = topology.device_models()[kind];
  prices.roofline_ = Roofline::of(device);
  const model::DType type = model::compute_dtype(precision);
  TRY_VOID(check_format(device, type, model::format_of(precision)));
  if (!profile) return prices;
  if (const auto& all = profile->surfaces; !all.empty()) {
    const auto own = std::ranges::find(all, type, &model::ComputeSurface::dtype);
    prices.of_other_type_ = own == all.end();
    const model::ComputeSurface& measured = prices.of_other_type_ ? all.front() : *own;
    TRY_VOID(check_power(prices.roofline_, measured.power, profile->name));
    prices.surface_.emplace(
        prices.of_other_type_ ? in_type(type, measured, prices.roofline_) : measured,
        profile->framework, prices.roofline_.rates(type), profile->composition_factor);
  }
  for (const auto& p : profile->operators) {
    if (p.shape.dtype != type || !(p.seconds_median > 0)) continue;
    prices.points_.push_back(
        {p.shape, p.phase, p.seconds_median, prices.base_seconds(p.shape, p.phase)});
  }
  std::ranges::stable_sort(
      prices.points_, [](const Point& a, const Point& b) { return a.shape.kind < b.shape.kind; });
  for (std::size_t segment = 0, i = 0; segment <= kKinds; ++segment) {
    while (i < prices.points_.size() && as_index(prices.points_[i].shape.kind) < segment) ++i;
    prices.first_of_kind_.push_back(i);
  }
  prices.composition_factor_ = profile->composition_factor;
  prices.launch_seconds_ = profile->launch_seconds;
  prices.slowest_ = 1 + profile->device_deviation * expected_greatest(topology.device_count());
  const auto* times = choose(profile->layers, model, precision);
  if (times != nullptr) {
    TRY(const auto spec, measured_model(*times, model));
    TRY(prices.layers_, calibrate_layers(*times, spec, prices.roofline_));
  }
  const bool has_compute = !profile->operators.empty() || !profile->layers.empty();
  if (has_compute && !prices.measured() && !prices.fitted())
    return wrong_precision(*profile, precision);
  return prices;
}

ComputePrices ComputePrices::drawn(const PriceFactors& errors) const {
  ComputePrices other(*this);
  other.errors_ = errors;
  other.launch_seconds_ *= errors.launches;
  if (!surface_) return other;
  other.surface_ = surface_->drawn(errors);
  for (Point& p : other.points_) p.roofline = other.base_seconds(p.shape, p.phase);
  return other;
}

double ComputePrices::seconds(const SegmentShape& shape, Phase phase) const {
  const double roofline = base_seconds(shape, phase);
  if (roofline == 0) return 0;
  const double own = slowest_ * errors_.of_shape(shape, phase),
               error = own * errors_.of_kind(shape.kind);
  if (const auto measured = operator_seconds(shape, phase)) {
    const double copies =
        shape.pieces == 1 ? 0 : operator_seconds(sum_of_piece(shape), kF).value_or(0);
    return error * composition_factor_ *
               (*measured + copies_of_piece(phase) * kCopyOfSum * copies) +
           launch_seconds_;
  }
  if (layers_) return error * roofline_.seconds(shape, phase) * layers_->factor(shape, phase);
  // a surface has its kinds' errors in it
  return surface_ ? own * roofline + launch_seconds_ : error * roofline;
}

double ComputePrices::base_seconds(const SegmentShape& shape, Phase phase) const {
  return surface_ ? surface_->seconds(shape, phase) : roofline_.seconds(shape, phase);
}

std::optional<double> ComputePrices::operator_seconds(const SegmentShape& shape,
                                                      Phase phase) const {
  // points are of products in the compute type
  if (points_.empty() || shape.format != model::Format::kNone) return std::nullopt;
  if (shape.kind == SegmentKind::kAttentionBlock) return block_seconds(shape, phase);
  if (const auto own = interpolate(shape, phase)) return own;
  if (phase == kBG) {
    const auto b = interpolate(shape, kB), g = interpolate(shape, kG);
    if (b && g) return *b + *g;
  }
  const double roofline = base_seconds(shape, phase);
  for (const Phase other : {kBG, kB, kG, kF}) {
    const double r = base_seconds(shape, other);
    if (other == phase || r == 0) continue;
    if (const auto t = interpolate(shape, other)) return *t * roofline / r;
  }
  return std::nullopt;
}

/// A block that nobody measured runs as well, against its roofline, as the attention core over as
/// many tokens.
std::optional<double> ComputePrices::block_seconds(const SegmentShape& shape, Phase phase) const {
  if (const auto own = interpolate(shape, phase)) return own;
  SegmentShape core = shape;
  core.kind = SegmentKind::kAttention;
  core.kv_tokens = 0;
  const auto measured = operator_seconds(core, phase);
  if (!measured) return std::nullopt;
  return *measured * base_seconds(shape, phase) / base_seconds(core, phase);
}

std::optional<ComputePrices::Neighbours> ComputePrices::neighbours(const SegmentShape& shape,
                                                                   Phase phase,
                                                                   double roofline) const {
  const auto kind = as_index(shape.kind);
  for (const bool any_flags : {false, true}) {
    Neighbours n{.same_flags = !any_flags};
    for (std::size_t i = first_of_kind_[kind]; i < first_of_kind_[kind + 1]; ++i) {
      const Point& p = points_[i];
      if (p.phase != phase || (!any_flags && !same_flags(p.shape, shape))) continue;
      const double d = distance(p.shape, shape);
      if (d == 0 && !any_flags) return Neighbours{.below = &p, .above = &p};
      if (p.roofline <= roofline && (n.below == nullptr || d < n.below_distance)) {
        n.below = &p;
        n.below_distance = d;
      }
      if (p.roofline >= roofline && (n.above == nullptr || d < n.above_distance)) {
        n.above = &p;
        n.above_distance = d;
      }
    }
    if (n.below != nullptr || n.above != nullptr) return n;
  }
  return std::nullopt;
}

std::optional<double> ComputePrices::interpolate(const SegmentShape& shape, Phase phase) const {
  const double roofline = base_seconds(shape, phase);
  const auto n = neighbours(shape, phase, roofline);
  if (!n) return std::nullopt;
  if (n->exact()) return n->below->seconds;
  if (n->below == nullptr || n->above == nullptr) {
    const Point& only = n->below != nullptr ? *n->below : *n->above;
    return only.seconds * roofline / only.roofline;
  }
  const double lower = n->below->seconds * roofline / n->below->roofline;
  const double upper = n->above->seconds * roofline / n->above->roofline;
  const double apart = n->below_distance + n->above_distance;
  if (apart == 0) return lower;
  const double w =
      weight_above(n->below_distance / apart, std::log(n->above->roofline / n->below->roofline));
  return (1 - w) * lower + w * upper;
}

PriceSource ComputePrices::source(const SegmentShape& shape, Phase phase) const {
  if (operator_seconds(shape, phase)) {
    const auto n = neighbours(shape, phase, base_seconds(shape, phase));
    if (n && n->exact()) return kMeasured;
    return n && n->same_flags && n->below != nullptr && n->above != nullptr ? kBetween : kBeyond;
  }
  if (layers_) return kLayers;
  return fitted() ? kSurface : kRoofline;
}

}  // namespace orrery::costmodel

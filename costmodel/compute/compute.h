#pragma once
/// \file
/// Prices of computation. Seconds of one phase of a segment, alone on its device, from the best
/// source the profile has:
///
/// Roofline (datasheet; Williams et al., CACM 2009), W FLOPs and Q bytes from model::work():
///
///   R = max(W / (efficiency(kind) * peak), Q / (0.80 * memory bandwidth)) + launch
///
///   efficiency 0.80 for products: median of 2106 bf16 products that take over 200 us at peak on
///   A100, H100 and H200 is 0.80 (0.72 .. 0.89 at the 5th and 95th percentile on A100;
///   aiconfigurator's measurements, Apache-2.0). Attention counts the full s²: 0.90 when causal
///   (flash attention skips half; 0.77 .. 1.16 measured there from 2048 tokens up), 0.50 when not.
///   Other segments 0.80 of the peak, which only binds on devices with little arithmetic. AdamW,
///   zeroing and accumulation are bandwidth.
///
/// (s) A fitted surface of the device (surface.h), where the profile has one for the type: R is
///     then its time, which has composition_factor in it, plus launch as in (a), and (a) and (b)
///     refine it.
///
/// (t) A surface of the other type alone (fp32 on a device measured in bf16): what launches and
///     memory take is the device's, and so is the time of a tile's prologue; products are as on
///     the datasheet:
///
///     e = 0.80,   k0 = k0' e P / (e' P'),   no correction,   energy of a FLOP = that' P' / P
///     h = 1 - (1 - h') min(1, e_type P / e_type' P')     what a small tile loses is traffic
///
///     ' of the type that was measured. P of fp32 is what the topology states, of TF32 or not.
///     Attention in one kernel keeps its shares of the peak.
///
/// (a) Measured operators, points (shape, seconds) of the same kind, phase, type and flags:
///
///   t = composition_factor * ((1 - w) t_1 R / R_1 + w t_2 R / R_2) + launch
///   w = (r - r^(1 - x)) / (r - 1), and w = x for r = 1
///   r = R_2 / R_1,   x = distance_1 / (distance_1 + distance_2)
///
///   of the nearest point 1 with no more work (R_1 ≤ R) and the nearest 2 with no less; distance:
///   Euclid on the logarithms of the dimensions. An exact hit is t_i itself. The weight makes a
///   time that is a constant and a rate times the work exact where R = R_1 r^x, along one dimension
///   say: what is constant tells little of the larger point. (A straight line between logarithms is
///   6 % above it half way to 16 times the work, when the constant is a fifth of t_1.) With one
///   neighbour it is its roofline ratio. A phase without points takes those of the nearest phase
///   (BG = B + G when both are measured) by roofline ratio.
///
/// (b) Measured layer times (Galvatron, arXiv 2211.13878 section 5): per sample and batch, a block
///     and the rest of the model (embedding, head, loss):
///
///   t = R * f(b)
///   f(b) = b * seconds_per_sample(b) / sum of R over the layer's forward segments at tp 1, batch b
///
///   so that the segments of one block add up to the measurement; between measured batches ln f is
///   linear in ln b, beyond them f is constant. Backward phases take
///   f * 2 sum R_forward / sum R_backward: backward is twice forward in total. Tensor shards take
///   their own R, so a product shrinks as 1/tp and what does not shrink stays. AdamW, zeroing,
///   accumulation and slices stay at R.
///
/// Slowest of many. Equal devices differ by a standard deviation of σ (device_deviation of the
/// profile), and ranks wait for one another in every step, so that of n devices all are as slow as
/// the slowest:
///
///   t(n) = t (1 + σ z(n)),   z(n) = E max of n standard normals = Φ⁻¹((n - 3/8) / (n + 1/4))
///
///   z by Blom, Statistical Estimates and Transformed Beta-Variables, 1958: 0 for one device,
///   4.5 % above the integral for two, 0.7 % for eight, 0.4 % below it for a thousand and for
///   16,384. σ is a property of the devices (silicon, cooling), the same in every step; n counts
///   all devices of the topology.
///
/// Scope: no cache effects; clocks fall only on surfaces (surface.h); one device model
/// (cost_model.h has one of these for each).
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "costmodel/compute/price_factors.h"
#include "costmodel/compute/surface.h"
#include "model/profile.h"
#include "model/segment.h"
#include "model/spec.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

/// Rates of a device.
struct Roofline {
  base::FlopsPerSecond peak_fp32, peak_bf16, peak_fp8, peak_fp4;  // the last two: 0, none
  base::BytesPerSecond memory_bandwidth;
  base::Seconds launch;
  base::Watts power;  // zero: not stated
  static Roofline of(const topologies::DeviceModel& device);
  base::FlopsPerSecond peak(model::DType type) const;
  DeviceRates rates(model::DType type) const;
  /// The two times that R is the larger of, without launch.
  struct Bounds {
    double arithmetic = 0, memory = 0;  // seconds
  };
  Bounds bounds(const model::SegmentShape& shape, model::Phase phase) const;
  /// R above; zero for a phase without work.
  double seconds(const model::SegmentShape& shape, model::Phase phase) const;
};

/// f(b) of one LayerTimes, for blocks and for the rest of the model.
struct LayerCalibration {
  struct Point {
    double log_batch = 0;
    double block_forward = 0, block_backward = 0;  // factors on R
    double other_forward = 0, other_backward = 0;
  };
  std::vector<Point> points;  // ascending batch
  double factor(const model::SegmentShape& shape, model::Phase phase) const;
};

/// Where the price of one phase of a segment is from: that very point, between two, from one alone
/// (beyond the range, of other flags or of another phase), measured layers, a fitted surface, the
/// roofline.
enum class PriceSource : std::uint8_t {
  kMeasured,
  kBetween,
  kBeyond,
  kLayers,
  kSurface,
  kRoofline
};
inline constexpr std::size_t kPriceSources = 6;

/// z(n) above. @pre n >= 1.
double expected_greatest(std::int64_t n);

class ComputePrices {
 public:
  /// On the devices of model `kind` of the topology. Errors: operators or layer times of another
  /// precision, layer times of a model that is neither this nor in the catalog, times ≤ 0.
  static base::Result<ComputePrices> make(const model::ModelSpec& model,
                                          const topologies::Topology& topology,
                                          const std::optional<model::Profile>& profile,
                                          model::Precision precision, std::size_t kind = 0);

  /// The same prices times the errors of a draw, whatever their source.
  ComputePrices drawn(const PriceFactors& errors) const;

  double seconds(const model::SegmentShape& shape, model::Phase phase) const;
  PriceSource source(const model::SegmentShape& shape, model::Phase phase) const;
  const Roofline& roofline() const { return roofline_; }
  bool measured() const { return !points_.empty() || layers_.has_value(); }
  /// In this type: not by (t).
  bool fitted() const { return surface_.has_value() && !of_other_type_; }

 private:
  struct Point {
    model::SegmentShape shape;
    model::Phase phase = model::Phase::kF;
    double seconds = 0;
    double roofline = 0;  // R
  };
  /// The nearest point with no more work and the nearest with no less; of other flags only when
  /// none has the same ones.
  struct Neighbours {
    const Point* below = nullptr;
    const Point* above = nullptr;
    double below_distance = 0, above_distance = 0;
    bool same_flags = true;
    bool exact() const {
      return same_flags && below != nullptr && below == above && below_distance == 0;
    }
  };
  std::optional<Neighbours> neighbours(const model::SegmentShape& shape, model::Phase phase,
                                       double roofline) const;
  double base_seconds(const model::SegmentShape& shape, model::Phase phase) const;
  std::optional<double> operator_seconds(const model::SegmentShape& shape,
                                         model::Phase phase) const;
  std::optional<double> block_seconds(const model::SegmentShape& shape, model::Phase phase) const;
  std::optional<double> interpolate(const model::SegmentShape& shape, model::Phase phase) const;

  Roofline roofline_;
  std::optional<SurfacePrices> surface_;
  bool of_other_type_ = false;  // (t)
  std::vector<Point> points_;   // by kind
  std::vector<std::size_t> first_of_kind_;
  double composition_factor_ = 1.0;
  double launch_seconds_ = 0;
  double slowest_ = 1;  // t(n) / t
  std::optional<LayerCalibration> layers_;
  PriceFactors errors_;
};

}  // namespace orrery::costmodel

#pragma once
/// \file
/// Time of one phase of a segment from a device's fitted surface. docs/models/compute.md has
/// assumptions, sources of the parameters and errors.
///
/// Products C[m,n] = A[m,k] B[k,n], u units, peak P, bandwidth M of the datasheet; a fraction each:
/// e efficiency, h half_tile, q quantisation, e_m memory efficiency. A kernel covers C with tiles
/// of a x b in {256x128, 128x256, 128x128, 128x64, 64x128, 64x64} and may split k in s in {1, 2, 3,
/// 4, 6, 8} parts; the library takes the fastest (cuBLAS's heuristics do about that):
///
///   tiles    N = ceil(m / a) ceil(n / b) s
///   waves    w = q ceil(N / u) + (1 - q) max(N / u, 1)
///   rate     r = e P h^j,  j = log2(32768 / (a b))
///   split    x = [s > 1] c 8 s m n / M     partial sums in fp32, c split_traffic
///   product  T = min over tiles, s of  2 a b u w (ceil(k / s) + k0) / r + x,  k0 prologue_features
///   memory   Q = bytes of model::work() / (e_m M)
///   time     t = launch + L (1 + L / 100 us)^g,  L = (T⁴ + Q⁴)^(1/4),
///            times exp(correction(ln m, ln n, ln k)): trilinear, constant outside its grid
///
/// g (throttle): short products run at boost clocks, long ones under the power limit. B is [m,n,k]
/// = [T, in, out], G [out, in, T]; BG their sum.
///
/// Flash attention, b sequences of s queries and r keys, n query and v key heads of d, share c of
/// the scores (1/2 under a causal mask, else 1):
///
///   t = launch + z r + e_type b s d (2n + 2 g_k v r / s) / (e_m M) + 4 c b n s r d / (e f P)
///       + [window] z_w b n s
///
/// with z seconds_per_token, g_k key_weight, f the factor of heads of d numbers, z_w
/// window_seconds; backward: 5 products for 2 at e · backward_efficiency, the edges of windows
/// like them, twice the traffic and the serial part. FlashAttention-2 where it is
/// not what was measured: both at flash2_efficiency.
///
/// Both times the profile's composition factor, what they lose in a step's company; the stream's
/// efficiency was measured in layers.
///
/// Sustained clocks. A kernel of W FLOPs that takes t at the clocks of the measurement draws
/// P = P0 + e W / t; where that is above the device's limit C, clocks fall until P fits, and power
/// goes with the clock to the γ:
///
///   t_C = t max(1, (e W / t) / (C - P0))^(1/γ)
///
/// for products and attention. e joules_per_flop, P0 idle_watts, γ exponent; memory's share is in
/// e.
///
/// Rotary positions of attention that is not written out: a pass over q and k, r 2 e_type T (n + v)
/// d bytes each way, r rotary_passes; RMS norms, gated activations and the
/// split of a ring: their traffic times their passes.
///
/// The rest: max(W / (0.8 P), Q / (e_s M)) + launch, e_s stream efficiency; backward of a norm at
/// e_s · norm_backward.
///
/// Explicit attention (Megatron-LM before flash attention, arXiv 1909.08053 section 3): scores
/// product [s, r, d] per head, softmax, dropout, context product [s, d, r]; S = e_type b n s r
/// bytes of scores:
///
///   forward   1.5 S for a masked softmax (a causal mask leaves half to read), 2.5 S for dropout
///             (its mask is a byte per element of two)
///   fp32      no fused softmax: mask, softmax and its mask again pass by themselves, 4 S forward,
///             5 S backward; dropout moves 2.25 S (a byte per element of four)
///   backward  2 S and 2.5 S, one product like the first and three like the second; copies that
///             change the layout of q, k, v and the output: 8 e_type b s n d each way
///   pieces    a product in pieces of its tokens takes what the whole takes, a piece its share:
///   they
///             run on streams of their own, and the tiles of one fill the last wave of another
///             (Transformer Engine's userbuffers; PyTorch's asynchronous tensor parallelism)
///   format    products of quantised operands: the surface of that format (`formats`), or, where
///   the
///             device has none, that of the compute type at 0.9 of its efficiency over the format's
///             peak; each operand is quantised by a kernel of its own, a copy. A FLOP takes energy
///             as 1 / peak does.
///   bias      of experts' outputs, weighted by the gate: expert_bias_bytes of an output element
///             forward, expert_bias_gradient_bytes backward, a stream behind the product
///   clamps    in front of a gated activation: clamp_bytes of an output element more forward,
///             clamp_gradient_bytes more backward
///   dropout   before a residual: 0.5 of a tensor more forward, 2.5 more backward
///   loss      loss_passes L: the loss segments' traffic times L / 4, in fp32 L / 8
///
/// Worked example: tests/unit/costmodel/surface_test.cc. Scope: one kernel at a time; sizes from
/// 256 up were fitted, below that the prologue rules.
#include <array>
#include <cstdint>
#include <optional>

#include "base/units.h"
#include "costmodel/compute/price_factors.h"
#include "model/segment.h"
#include "model/surface.h"

namespace orrery::costmodel {

/// Rates of the device that the surface's fractions refer to.
struct DeviceRates {
  base::FlopsPerSecond peak;  // dense peak of the surface's type
  base::BytesPerSecond memory_bandwidth;
  base::Watts power = {};                             // what it may draw; zero: no limit
  base::FlopsPerSecond peak_fp8 = {}, peak_fp4 = {};  // of quantised operands; zero: none
  /// Of products in a format; zero: the device has none. Blocks of 32 and fp4 came together.
  base::FlopsPerSecond of(model::Format format) const {
    if (format == model::Format::kNone) return peak;
    if (format == model::Format::kNvFp4) return peak_fp4;
    return format == model::Format::kMxFp8 && peak_fp4.raw() == 0 ? peak_fp4 : peak_fp8;
  }
};

class SurfacePrices {
 public:
  SurfacePrices(model::ComputeSurface surface, std::optional<model::Framework> framework,
                DeviceRates rates, double composition = 1);

  /// The same surface with prices that err; `operators` is not its business.
  SurfacePrices drawn(const PriceFactors& errors) const;

  /// Zero for a phase without work. Never less than one launch otherwise.
  double seconds(const model::SegmentShape& shape, model::Phase phase) const;
  /// `batch` products of [m,k] by [k,n], `bytes` of traffic in all, of operands in `format`.
  double product_seconds(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch,
                         double bytes, model::Format format = model::Format::kNone) const;
  const model::ComputeSurface& surface() const { return surface_; }

 private:
  double expert_bias(const model::SegmentShape& shape, model::Phase phase) const;
  double linear(const model::SegmentShape& shape, model::Phase phase) const;
  double flash(const model::SegmentShape& shape, model::Phase phase) const;
  double explicit_attention(const model::SegmentShape& shape, model::Phase phase) const;
  double stream(const model::SegmentShape& shape, model::Phase phase) const;
  double copy_seconds(double bytes) const;
  double sustained(double seconds, double flops) const;

  /// A surface of products and the rates that its fractions stand for.
  struct Products {
    model::ProductSurface surface;
    std::array<double, 4> tile_rates{};  // FLOP/s of all units, by halvings of the largest tile
    double energy = 1;                   // of a FLOP, over one of the compute type
    Products() = default;
    Products(model::ProductSurface s, double peak, double energy_share);
  };
  const Products& products(model::Format format) const { return by_format_[as_index(format)]; }

  model::ComputeSurface surface_;
  model::Framework framework_;
  std::array<Products, model::kFormats> by_format_;
  double peak_ = 0, bandwidth_ = 0;      // FLOP/s, bytes/s
  double dynamic_watts_ = 0;             // cap - P0; 0: no limit
  double products_ = 1, attention_ = 1;  // in a step / alone
  double streams_ = 1;
};

}  // namespace orrery::costmodel

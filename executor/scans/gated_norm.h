#pragma once
/// The norm of a scan's output y, gated by z, in fp32; g the gate, w the gain, r^-2 the mean square
/// over a group of features, plus epsilon:
///
///   Mamba-2      v = y g, g = silu(z),    n = r v,  o = w n      over the heads of a group
///   delta rule   v = y,   g = silu(z),    n = r v,  o = w n g    over a head, which share w
///   lightning    v = y,   g = sigma(z),   n = r v,  o = w n g    over all heads
///
///   dn = w do (times g behind the norm),  dv = r (dn - n m), m = mean(dn n)
///   dy = dv (times g before it),  dg = dv y, or do w n,  dw = do n (times g behind it)
#include <cstdint>

namespace orrery::executor::kernels {

struct GatedNorm {
  std::int64_t width = 0,
               gains = 0;  // features of a group; of w, of which feature i takes i % gains
  bool gate_first = false, sigmoid = false;
  double epsilon = 1e-5;
};

/// One group of one token: o from y and z, `gain` its gains.
void gated_norm(const GatedNorm& norm, const float* y, const float* z, const float* gain, float* o);

/// What the features of a group share.
struct NormStatistics {
  float rstd = 0, mean = 0;  // r, m
};
NormStatistics norm_statistics(const GatedNorm& norm, const float* y, const float* z,
                               const float* gain, const float* d_o);
/// Of `count` of its features: dy and dz written, dgain added to.
void gated_norm_back(const GatedNorm& norm, const NormStatistics& statistics, std::int64_t count,
                     const float* y, const float* z, const float* gain, const float* d_o, float* dy,
                     float* dz, double* dgain);

}  // namespace orrery::executor::kernels

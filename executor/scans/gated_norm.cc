#include "executor/scans/gated_norm.h"

#include "executor/scans/scan_math.h"

namespace orrery::executor::kernels {
namespace {

inline float gate(const GatedNorm& norm, float z) { return norm.sigmoid ? sigmoid(z) : silu(z); }
inline float gate_slope(const GatedNorm& norm, float z) {
  if (!norm.sigmoid) return silu_slope(z);
  const float s = sigmoid(z);
  return s * (1.0F - s);
}

inline float rstd_of(const GatedNorm& norm, const float* y, const float* z) {
  double squares = 0;
  for (std::int64_t i = 0; i < norm.width; ++i) {
    const float v = norm.gate_first ? y[i] * gate(norm, z[i]) : y[i];
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  const double mean = squares / static_cast<double>(norm.width);
  return static_cast<float>(1 / std::sqrt(mean + norm.epsilon));
}

}  // namespace

void gated_norm(const GatedNorm& norm, const float* y, const float* z, const float* gain,
                float* o) {
  const float rstd = rstd_of(norm, y, z);
  for (std::int64_t i = 0; i < norm.width; ++i)
    o[i] = gain[i % norm.gains] * (rstd * y[i]) * gate(norm, z[i]);
}

NormStatistics norm_statistics(const GatedNorm& norm, const float* y, const float* z,
                               const float* gain, const float* d_o) {
  // n times dn is the same wherever the gate stands.
  const float rstd = rstd_of(norm, y, z);
  double sum = 0;
  for (std::int64_t i = 0; i < norm.width; ++i) {
    const float n = rstd * y[i] * gate(norm, z[i]);
    sum += static_cast<double>(gain[i % norm.gains] * d_o[i]) * static_cast<double>(n);
  }
  return {rstd, static_cast<float>(sum / static_cast<double>(norm.width))};
}

void gated_norm_back(const GatedNorm& norm, const NormStatistics& statistics, std::int64_t count,
                     const float* y, const float* z, const float* gain, const float* d_o, float* dy,
                     float* dz, double* dgain) {
  const auto [rstd, mean] = statistics;
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gate(norm, z[i]), w = gain[i % norm.gains], plain = rstd * y[i];
    const float n = norm.gate_first ? plain * g : plain,
                dn = norm.gate_first ? w * d_o[i] : w * d_o[i] * g;
    const float dv = rstd * (dn - n * mean);
    dy[i] = norm.gate_first ? dv * g : dv;
    dz[i] = (norm.gate_first ? dv * y[i] : d_o[i] * w * n) * gate_slope(norm, z[i]);
    dgain[i % norm.gains] += static_cast<double>(d_o[i] * plain * g);
  }
}

}  // namespace orrery::executor::kernels

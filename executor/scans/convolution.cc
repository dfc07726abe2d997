#include "executor/scans/convolution.h"

#include "executor/scans/scan_math.h"

namespace orrery::executor::kernels {

ORRERY_EACH_WIDTH
void convolve(const Convolution& c, const float* u, std::int64_t rows, float* p) {
  const std::int64_t n = c.channels;
  const float *weights = c.weights.data(), *bias = c.bias.data();
  for (std::int64_t t = 0; t < rows; ++t) {
    float* to = p + t * n;
    for (std::int64_t i = 0; i < n; ++i) to[i] = bias[i];
    for (std::int64_t j = 0; j < c.taps; ++j) {
      const float *from = u + (t + j) * n, *w = weights + j * n;
      for (std::int64_t i = 0; i < n; ++i) to[i] += w[i] * from[i];
    }
  }
}

ORRERY_EACH_WIDTH
void convolve_back(const Convolution& c, const float* dp, std::int64_t rows, float* du) {
  const std::int64_t n = c.channels;
  const float* weights = c.weights.data();
  for (std::int64_t t = 0; t < rows; ++t) {
    float* to = du + t * n;
    for (std::int64_t i = 0; i < n; ++i) to[i] = 0;
    for (std::int64_t j = 0; j < c.taps; ++j) {
      const float *from = dp + (t + c.taps - 1 - j) * n, *w = weights + j * n;
      for (std::int64_t i = 0; i < n; ++i) to[i] += w[i] * from[i];
    }
  }
}

ORRERY_EACH_WIDTH
void add_taps(const Convolution& c, const float* u, const float* dp, std::int64_t rows, double* dw,
              double* dbias) {
  const std::int64_t n = c.channels;
  for (std::int64_t t = 0; t < rows; ++t) {
    const float* d = dp + t * n;
    for (std::int64_t i = 0; i < n; ++i) dbias[i] += static_cast<double>(d[i]);
    for (std::int64_t j = 0; j < c.taps; ++j) {
      const float* from = u + (t + j) * n;
      double* to = dw + j * n;
      for (std::int64_t i = 0; i < n; ++i) to[i] += static_cast<double>(d[i] * from[i]);
    }
  }
}

ORRERY_EACH_WIDTH
void activate(const float* p, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = silu(p[i]);
}

ORRERY_EACH_WIDTH
void activate_back(const float* p, std::int64_t n, float* d) {
  for (std::int64_t i = 0; i < n; ++i) d[i] *= silu_slope(p[i]);
}

}  // namespace orrery::executor::kernels

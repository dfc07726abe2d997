#pragma once
/// What the kernels of scans share: rows of numbers in fp32, sums in eight lanes, so that every
/// width of vectors gives the same bits, and gates.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "executor/segments/vector_math.h"

namespace orrery::executor::kernels {

inline float dot(const float* a, const float* b, std::int64_t n) {
  constexpr std::int64_t kLanes = 8;
  std::array<float, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l)
      lanes[static_cast<std::size_t>(l)] += a[i + l] * b[i + l];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <class T>
void load_row(const T* from, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
}
template <class T>
void store_row(const float* from, std::int64_t n, T* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[i]);
}

inline float sigmoid(float x) { return 1.0F / (1.0F + exponential(-x)); }
inline float silu(float x) { return x * sigmoid(x); }
/// d silu(x) / dx.
inline float silu_slope(float x) {
  const float s = sigmoid(x);
  return s * (1.0F + x * (1.0F - s));
}
/// ln(1 + e^x).
inline float softplus(float x) { return std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace orrery::executor::kernels

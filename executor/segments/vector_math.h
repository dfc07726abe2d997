#pragma once
/// Element-wise loops on the CPU that the compiler vectorises, for each width of vectors that a
/// processor may have. Without contraction (-ffp-contract=off) all widths give the same bits, so a
/// result depends neither on the processor nor on where a thread's or a rank's part begins.
#include <bit>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ORRERY_EACH_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ORRERY_EACH_WIDTH
#endif

namespace orrery::executor::kernels {

/// e^x to 1.2e-7 of itself for -87 <= x <= 87, beyond at the nearer end. x = n ln 2 + r, |r| <= ln
/// 2 / 2: e^r by the polynomial of Cephes' expf (S. Moshier, 1989), 2^n by the exponent's bits. ln
/// 2 is taken off in two parts, so that r is exact.
inline float exponential(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 87.0F ? 87.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: its sum with n has n in the lowest bits
  const float shifted = x * 1.44269504F + kRound, n = shifted - kRound;
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  return p * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23U) + 0x3f800000U);
}

}  // namespace orrery::executor::kernels

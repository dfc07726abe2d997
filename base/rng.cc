#include "base/rng.h"

#include <cmath>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::base {
namespace {

constexpr std::uint32_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;  // golden ratio and sqrt(3) - 1

constexpr std::uint32_t low(std::uint64_t x) { return as_u32(x); }
constexpr std::uint32_t high(std::uint64_t x) { return as_u32(x >> 32); }

std::uint64_t draw(std::uint64_t seed, std::uint64_t index, std::uint32_t domain) {
  const auto out = philox4x32({low(index), high(index), domain, 0}, {low(seed), high(seed)});
  return static_cast<std::uint64_t>(out[1]) << 32 | out[0];
}

/// Natural logarithm from + - * / only, so that every machine gives the same bits. x = m 2^e with m
/// in [√½, √2); ln m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.172: twelve terms of the
/// series leave less than 1e-17.
double portable_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // exact
  if (m < 0.70710678118654752440) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  const double s2 = s * s;
  double series = 0;
  for (int k = 23; k >= 1; k -= 2) series = series * s2 + 1.0 / k;
  return 2 * s * series + exponent * 0.69314718055994530942;
}

template <std::size_t N>
double polynomial(const std::array<double, N>& coefficients, double x) {
  double value = 0;
  for (std::size_t i = N; i-- > 0;) value = value * x + coefficients[i];
  return value;
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kMultiply0) * c[0];
    const std::uint64_t p1 = static_cast<std::uint64_t>(kMultiply1) * c[2];
    c = {high(p1) ^ c[1] ^ key[0], low(p1), high(p0) ^ c[3] ^ key[1], low(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return c;
}

std::uint64_t hash(std::uint64_t seed, std::uint64_t index) { return draw(seed, index, 0); }

std::uint64_t derive(std::uint64_t seed, std::uint64_t stream) { return draw(seed, stream, 1); }

double normal(std::uint64_t seed, std::uint64_t index) {
  // The middle of one of 2^52 cells: symmetric about ½, never 0 or 1.
  return normal_quantile((real(hash(seed, index) >> 12) + 0.5) * 0x1p-52);
}

double normal_quantile(double p) {
  ORRERY_CHECK(p > 0 && p < 1, "probability {}", p);
  // M. J. Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied
  // Statistics 37 (1988), PPND16: rational approximations in three regions.
  static constexpr std::array<double, 8> kA = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                               1.9715909503065514427e3, 1.3731693765509461125e4,
                                               4.5921953931549871457e4, 6.7265770927008700853e4,
                                               3.3430575583588128105e4, 2.5090809287301226727e3};
  static constexpr std::array<double, 8> kB = {1.0,
                                               4.2313330701600911252e1,
                                               6.8718700749205790830e2,
                                               5.3941960214247511077e3,
                                               2.1213794301586595867e4,
                                               3.9307895800092710610e4,
                                               2.8729085735721942674e4,
                                               5.2264952788528545610e3};
  static constexpr std::array<double, 8> kC = {
      1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
      3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
      2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr std::array<double, 8> kD = {1.0,
                                               2.05319162663775882187e0,
                                               1.67638483018380384940e0,
                                               6.89767334985100004550e-1,
                                               1.48103976427480074590e-1,
                                               1.51986665636164571966e-2,
                                               5.47593808499534494600e-4,
                                               1.05075007164441684324e-9};
  static constexpr std::array<double, 8> kE = {
      6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
      2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
      2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr std::array<double, 8> kF = {1.0,
                                               5.99832206555887937690e-1,
                                               1.36929880922735805310e-1,
                                               1.48753612908506148525e-2,
                                               7.86869131145613259100e-4,
                                               1.84631831751005468180e-5,
                                               1.42151175831644588870e-7,
                                               2.04426310338993978564e-15};

  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kA, r) / polynomial(kB, r);
  }
  const double tail = q < 0 ? p : 1 - p;
  const double r = std::sqrt(-portable_log(tail));
  const double x = r <= 5 ? polynomial(kC, r - 1.6) / polynomial(kD, r - 1.6)
                          : polynomial(kE, r - 5) / polynomial(kF, r - 5);
  return q < 0 ? -x : x;
}

std::uint64_t Rng::below(std::uint64_t n) {
  ORRERY_CHECK(n > 0);
  // Lemire, "Fast random integer generation in an interval" (2019): the high word of x * n is
  // uniform once the low words below 2^64 mod n are rejected.
  const std::uint64_t reject_below = (0 - n) % n;
  for (;;) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(next()) * n;
    if (static_cast<std::uint64_t>(product) >= reject_below)
      return static_cast<std::uint64_t>(product >> 64);
  }
}

double Rng::normal() { return base::normal(seed_, index_++); }

}  // namespace orrery::base

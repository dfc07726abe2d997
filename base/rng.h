#pragma once
/// Random numbers that are a function of (seed, index): the same on every machine, in any order, on
/// any thread.
///
/// Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11,
/// §3), a bijection of a 128-bit counter under a 64-bit key; ten rounds pass BigCrush. Nothing
/// here uses <random> distributions or libm, whose results differ between libraries.

#include <array>
#include <cstdint>

namespace orrery::base {

/// One Philox4x32-10 block: counter and key as the reference implementation (Random123) orders
/// them.
[[nodiscard]] std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                      std::array<std::uint32_t, 2> key);

/// 64 uniform bits, pure in (seed, index).
[[nodiscard]] std::uint64_t hash(std::uint64_t seed, std::uint64_t index);
/// Standard normal, by inversion of the distribution function (Wichura, AS 241, PPND16; relative
/// error about 1e-16).
[[nodiscard]] double normal(std::uint64_t seed, std::uint64_t index);
/// A seed for a named sub-stream: `derive(seed, 1)` and `derive(seed, 2)` are unrelated, and to
/// `hash(seed, …)` too.
[[nodiscard]] std::uint64_t derive(std::uint64_t seed, std::uint64_t stream);

/// Quantile of the standard normal distribution. @pre 0 < p < 1.
[[nodiscard]] double normal_quantile(double p);

/// The same numbers in sequence, for code that draws until satisfied. Copyable; not for sharing
/// between threads.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : seed_(seed) {}
  /// 64 uniform bits.
  std::uint64_t next() { return hash(seed_, index_++); }
  /// Uniform in 0 … n-1, without bias (Lemire's multiplication with rejection). @pre n > 0.
  std::uint64_t below(std::uint64_t n);
  /// Standard normal.
  double normal();

 private:
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
};

}  // namespace orrery::base

#pragma once
/// \file
/// Computation that does not take the same time every time.
///
///     time of operation i on rank r = price * (1 + sigma z),      z = clamp(N(0, 1), -3, 3),
///
/// one z for each operation, or one for each rank that holds for the whole step. z is a function of
/// (seed, r, i) alone: the same on every machine, in every order and on any thread. Clamped, so
/// that a step lies between that of all at 1 - 3 sigma and that of all at 1 + 3 sigma wherever a
/// longer computation never shortens a step.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/numbers.h"
#include "base/rng.h"

namespace orrery::sim {

struct Jitter {
  enum class Of : std::uint8_t { kOperation, kDevice };
  std::int64_t sigma_ppm = 0;  // 0: none; at most kMaxSigmaPpm
  Of of = Of::kOperation;
  std::uint64_t seed = 1;

  /// How long the operation takes, in millionths of its price.
  [[nodiscard]] std::int64_t ppm(std::uint32_t rank, std::uint32_t operation) const {
    constexpr double kClamp = 3;
    if (sigma_ppm == 0) return kMillion;
    const double z = std::clamp(
        base::normal(base::derive(seed, rank), of == Of::kDevice ? 0 : operation), -kClamp, kClamp);
    return kMillion + std::llround(real(sigma_ppm) * z);
  }

  static constexpr std::int64_t kMillion = 1'000'000, kMaxSigmaPpm = 300'000;
};

}  // namespace orrery::sim

#include "executor/segments/rotary_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::executor {
namespace {

using enum model::RopeScaling;

double yarn(const model::Rope& rope, double theta, double dims, double i, double frequency) {
  const auto pair = [&](double turns) {
    return dims * std::log(real(rope.original) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(pair(rope.high)), 0.0),
               high = std::min(std::ceil(pair(rope.low)), dims - 1);
  const double ramp = std::clamp((i - low) / std::max(high - low, 1e-3), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1 - ramp);
}

double llama3(const model::Rope& rope, double frequency) {
  const double length = 2 * std::numbers::pi / frequency, original = real(rope.original);
  if (length < original / rope.high) return frequency;
  if (length > original / rope.low) return frequency / rope.factor;
  const double smooth = (original / length - rope.low) / (rope.high - rope.low);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<double> rotary_frequencies(const model::Rope& rope, double theta, std::int64_t dims,
                                       std::int64_t tokens, const LongRopeFactors& factors) {
  const std::vector<double>& divisors = tokens > rope.original ? factors.of_long : factors.of_short;
  const bool divided = rope.scaling == kLongRope && !divisors.empty();
  ORRERY_CHECK(!divided || as_int(divisors.size()) == dims / 2);
  const double d = real(dims);
  if (rope.scaling == kDynamic && tokens > rope.original)
    theta *=
        std::pow(rope.factor * real(tokens) / real(rope.original) - rope.factor + 1, d / (d - 2));
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    double f = std::pow(theta, -2.0 * real(i) / d);
    if (rope.scaling == kLinear) f /= rope.factor;
    if (rope.scaling == kYarn) f = yarn(rope, theta, d, real(i), f);
    if (rope.scaling == kLlama3) f = llama3(rope, f);
    if (divided) f /= divisors[as_index(i)];
    frequencies.push_back(f);
  }
  return frequencies;
}

}  // namespace orrery::executor

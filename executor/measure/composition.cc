#include "executor/measure/composition.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace orrery::executor {
namespace {

constexpr double kApart = 4;

bool tells_apart(std::span<const ComposedStep> steps) {
  const auto length = [](const ComposedStep& s) { return s.medians / s.operations; };
  const auto [least, most] = std::ranges::minmax(steps, {}, length);
  return length(most) > kApart * length(least);
}

}  // namespace

Composition fit_composition(std::span<const ComposedStep> steps) {
  // a f + b e = 1 for every step, a = medians / seconds, b = operations / seconds
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  for (const ComposedStep& s : steps) {
    const double a = s.medians / s.seconds, b = s.operations / s.seconds;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    a1 += a;
    b1 += b;
  }
  Composition c{.factor = a1 / aa};
  const double determinant = aa * bb - ab * ab;
  if (tells_apart(steps) && determinant > 0) {
    const double factor = (a1 * bb - b1 * ab) / determinant,
                 overhead = (aa * b1 - ab * a1) / determinant;
    if (factor > 0 && overhead > 0) {
      c.factor = factor;
      c.overhead = overhead;
    }
  }
  std::vector<double> deviations;
  for (const ComposedStep& s : steps)
    deviations.push_back(
        std::abs((c.factor * s.medians + c.overhead * s.operations) / s.seconds - 1));
  std::ranges::sort(deviations);
  c.residual = deviations[(4 * deviations.size() + 4) / 5 - 1];
  return c;
}

}  // namespace orrery::executor

#pragma once
/// What whole steps take over the sum of what their operations take.
#include <span>

namespace orrery::executor {

/// Operations of one training step: their seconds there, the sum of their medians (or of their
/// seconds alone), and how many they are.
struct ComposedStep {
  double seconds = 0, medians = 0, operations = 0;
};
struct Composition {
  double factor = 1;    // on the sum
  double overhead = 0;  // seconds more per operation
  // what 80 % of the steps stay within of factor * medians + overhead * operations, relative
  double residual = 0;
};

/// Least squares of relative errors over `steps` (not empty), factor > 0 and overhead >= 0. Small
/// and large operations are distinguished only where both are there: with operations of alike
/// length (less than 4 times apart from step to step) the overhead is 0.
Composition fit_composition(std::span<const ComposedStep> steps);

}  // namespace orrery::executor

#pragma once
/// Rotary frequencies f_i = theta^(-2i/d), i = 0 .. d/2 - 1, as models rescale them to longer
/// sequences than L, the positions they were trained for:
///
///   linear   f_i / factor (Chen et al., arXiv 2306.15595)
///   dynamic  theta (factor s / L - factor + 1)^(d / (d - 2)) for theta in a sequence of s > L
///   yarn     f_i / factor r_i + f_i (1 - r_i), r_i = clamp((i - low) / (high - low), 0, 1); low
///            and high: the pairs that turn beta_fast and beta_slow times in L positions, floor and
///            ceil of d ln(L / (2 pi turns)) / (2 ln theta) (arXiv 2309.00071, section 3.2)
///   llama3   f_i / factor for wave lengths above L / low, f_i below L / high, between them in
///            proportion (Llama 3.1, transformers' modeling_rope_utils.py)
///   longrope f_i / c_i: c the model's short factors in a sequence of up to L, else its long ones
///            (arXiv 2402.13753; Phi-3)
#include <cstdint>
#include <vector>

#include "model/spec.h"

namespace orrery::executor {

/// Of a model with longrope, dims / 2 each; else none.
struct LongRopeFactors {
  std::vector<double> of_short, of_long;
};

/// With kLongRope and without factors (where time alone is measured) these are 1.
std::vector<double> rotary_frequencies(const model::Rope& rope, double theta, std::int64_t dims,
                                       std::int64_t tokens, const LongRopeFactors& factors = {});

}  // namespace orrery::executor

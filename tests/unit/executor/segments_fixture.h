#pragma once
/// What tests of segments share: operands, one phase, gradients against differences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "executor/segments/segments.h"

namespace orrery::executor {

inline constexpr std::int64_t kBatch = 2, kTokens = 6;

inline at::Tensor random(at::IntArrayRef shape) { return at::randn(shape); }
inline at::Tensor zeros(at::IntArrayRef shape) { return at::zeros(shape); }
inline double inner_product(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) * b.to(at::kDouble)).sum().item<double>();
}

inline Output declared(std::vector<std::int64_t> shape,
                       model::DType type = model::DType::kFloat32) {
  return {.shape = std::move(shape), .dtype = type, .device = at::kCPU, .tensor = {}};
}

inline void run_phase(const model::SegmentShape& s, model::Phase phase, Operands& o,
                      SegmentContext context = {}) {
  RotaryTables rotary;
  context.rotary = &rotary;
  const auto done = run_segment(s, phase, o, context);
  ASSERT_TRUE(done) << base::to_string(done.error());
}

/// Directional derivative of `value` at x, against <gradient, v>. `step` balances truncation
/// against rounding.
inline void expect_gradient(const std::function<double(const at::Tensor&)>& value,
                            const at::Tensor& x, const at::Tensor& gradient, double step = 1e-2) {
  for (int i = 0; i < 3; ++i) {
    const at::Tensor v = random(x.sizes());
    const double numeric = (value(x + v * step) - value(x - v * step)) / (2 * step);
    const double analytic = inner_product(gradient, v);
    EXPECT_NEAR(numeric, analytic, 3e-3 * (std::abs(analytic) + gradient.norm().item<double>()));
  }
}

inline model::SegmentShape shape_of(model::SegmentKind kind, std::int64_t in, std::int64_t out) {
  model::SegmentShape s;
  s.kind = kind;
  s.sequences = kBatch;
  s.tokens = kTokens;
  s.in = in;
  s.out = out;
  return s;
}

class Segments : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(3); }
};

}  // namespace orrery::executor

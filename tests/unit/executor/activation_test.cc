// The CPU's own loops of activations against LibTorch's operations, which stay the reference.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <gtest/gtest.h>

#include <cmath>

#include "executor/segments/segments.h"
#include "executor/segments/vector_math.h"

namespace orrery::executor {
namespace {

using model::Activation;
using model::Phase;

model::SegmentShape shape_of(Activation activation, bool gated, std::int64_t rows,
                             std::int64_t features) {
  model::SegmentShape s;
  s.kind = model::SegmentKind::kActivation;
  s.sequences = 1;
  s.tokens = rows;
  s.in = gated ? 2 * features : features;
  s.out = features;
  s.activation = activation;
  s.gated = gated;
  return s;
}

at::Tensor run(const model::SegmentShape& s, Phase phase, std::vector<at::Tensor> reads) {
  Operands o;
  const std::int64_t features = phase == Phase::kF ? s.out : s.in;
  o.writes = {{.shape = {1, s.tokens, features}}};
  o.reads = std::move(reads);
  SegmentContext context;
  EXPECT_TRUE(run_segment(s, phase, o, context));
  return o.writes[0].tensor;
}

double largest_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found - expected).abs() / (expected.abs() + 1.0)).max().item<double>();
}
at::Tensor exact(const at::Tensor& t) { return t.to(at::kDouble); }

// From where the result is zero to where it is the input, with numbers no vector divides.
constexpr std::int64_t kRows = 37, kFeatures = 1031;
at::Tensor inputs(std::int64_t features) {
  return at::linspace(-30, 30, kRows * features).view({1, kRows, features});
}

// LibTorch in double precision: in single its own error is as large as the bound.
TEST(ActivationLoops, AreLibTorchsOperations) {
  const at::Tensor u = inputs(kFeatures), d = at::rand({1, kRows, kFeatures});
  const auto gelu = shape_of(Activation::kGeluTanh, false, kRows, kFeatures),
             silu = shape_of(Activation::kSilu, false, kRows, kFeatures);
  EXPECT_LE(largest_error(run(gelu, Phase::kF, {u}), at::gelu(exact(u), "tanh")), 1e-6);
  EXPECT_LE(
      largest_error(run(gelu, Phase::kB, {d, u}), at::gelu_backward(exact(d), exact(u), "tanh")),
      1e-6);
  EXPECT_LE(largest_error(run(silu, Phase::kF, {u}), at::silu(exact(u))), 1e-6);
  EXPECT_LE(largest_error(run(silu, Phase::kB, {d, u}), at::silu_backward(exact(d), exact(u))),
            1e-6);
}

TEST(ActivationLoops, GateInTwoHalves) {
  const at::Tensor u = inputs(2 * kFeatures), d = at::rand({1, kRows, kFeatures});
  const at::Tensor gate = u.narrow(-1, 0, kFeatures), up = u.narrow(-1, kFeatures, kFeatures);
  const auto s = shape_of(Activation::kSilu, true, kRows, kFeatures);
  EXPECT_LE(largest_error(run(s, Phase::kF, {u}), at::silu(exact(gate)) * up), 1e-6);
  const at::Tensor du = run(s, Phase::kB, {d, u});
  EXPECT_LE(
      largest_error(du.narrow(-1, 0, kFeatures), at::silu_backward(exact(d * up), exact(gate))),
      1e-6);
  EXPECT_LE(largest_error(du.narrow(-1, kFeatures, kFeatures), d * at::silu(exact(gate))), 1e-6);
}

TEST(ActivationLoops, GiveAnElementTheSameBitsWhereverItLies) {
  const auto s = shape_of(Activation::kGeluTanh, false, kRows, kFeatures);
  const at::Tensor u = inputs(kFeatures), whole = run(s, Phase::kF, {u});
  constexpr std::int64_t kPart = 13;
  const auto narrow = shape_of(Activation::kGeluTanh, false, kRows, kPart);
  for (const std::int64_t first : {0, 1, 500, 1018}) {
    const at::Tensor part = run(narrow, Phase::kF, {u.narrow(-1, first, kPart).contiguous()});
    EXPECT_TRUE(at::equal(part, whole.narrow(-1, first, kPart))) << first;
  }
}

TEST(Exponential, IsThatOfTheLibraryAndStaysAtItsEnds) {
  for (double x = -87; x <= 87; x += 0.0117)
    EXPECT_NEAR(kernels::exponential(static_cast<float>(x)) /
                    std::exp(static_cast<double>(static_cast<float>(x))),
                1.0, 1.3e-7)
        << x;
  EXPECT_EQ(kernels::exponential(-1e30F), kernels::exponential(-87.0F));
  EXPECT_EQ(kernels::exponential(INFINITY), kernels::exponential(87.0F));
}

}  // namespace
}  // namespace orrery::executor

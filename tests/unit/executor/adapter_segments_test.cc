// An adapter's two segments, one behind the other, against central differences of
// L = <r, y0 + scale (x A') B'> in x, A and B.
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "executor/segments/segments.h"

namespace orrery::executor {
namespace {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

constexpr std::int64_t kIn = 6, kRank = 2, kOut = 5;
constexpr double kScale = 4;

SegmentShape shape_of(SegmentKind kind, std::int64_t in, std::int64_t out) {
  SegmentShape s;
  s.kind = kind;
  s.sequences = 2;
  s.tokens = 3;
  s.in = in;
  s.out = out;
  return s;
}

struct Adapter {
  SegmentShape in = shape_of(SegmentKind::kAdapterIn, kIn, kRank),
               out = shape_of(SegmentKind::kAdapterOut, kRank, kOut);
  Adapter() { out.scale = kScale; }

  static void run(const SegmentShape& s, Phase phase, Operands& o) {
    SegmentContext context;
    const auto done = run_segment(s, phase, o, context);
    ASSERT_TRUE(done) << base::to_string(done.error());
  }
  static Output declared(std::int64_t features) {
    return {.shape = {2, 3, features},
            .dtype = model::DType::kFloat32,
            .device = at::kCPU,
            .tensor = {}};
  }
  [[nodiscard]] at::Tensor t(const at::Tensor& x, const at::Tensor& a) const {
    Operands o{
        .reads = {x}, .writes = {declared(kRank)}, .updates = {}, .weights = {a}, .gradients = {}};
    run(in, Phase::kF, o);
    return o.writes[0].tensor;
  }
  /// <r, y0 + ...>
  [[nodiscard]] double loss(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b,
                            const at::Tensor& y0, const at::Tensor& r) const {
    Operands o{
        .reads = {t(x, a)}, .writes = {}, .updates = {y0.clone()}, .weights = {b}, .gradients = {}};
    run(out, Phase::kF, o);
    return (o.updates[0] * r).sum().item<double>();
  }
};

void expect_gradient(const std::function<double(const at::Tensor&)>& value, const at::Tensor& point,
                     const at::Tensor& gradient) {
  constexpr double kStep = 1e-2;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor v = at::randn(point.sizes());
    const double numeric = (value(point + v * kStep) - value(point - v * kStep)) / (2 * kStep);
    const double analytic = (gradient * v).sum().item<double>();
    EXPECT_NEAR(numeric, analytic, 3e-3 * (std::abs(analytic) + gradient.norm().item<double>()));
  }
}

TEST(AdapterSegments, GradientsMatchDifferencesAndAddToWhatIsThere) {
  at::manual_seed(5);
  const Adapter adapter;
  const at::Tensor x = at::randn({2, 3, kIn}), a = at::randn({kRank, kIn}),
                   b = at::randn({kOut, kRank}), y0 = at::randn({2, 3, kOut}),
                   r = at::randn({2, 3, kOut}), dx0 = at::randn({2, 3, kIn});
  Operands second{.reads = {r, adapter.t(x, a)},
                  .writes = {Adapter::declared(kRank)},
                  .updates = {},
                  .weights = {b},
                  .gradients = {at::zeros({kOut, kRank})}};
  Adapter::run(adapter.out, Phase::kBG, second);
  Operands first{.reads = {second.writes[0].tensor, x},
                 .writes = {},
                 .updates = {dx0.clone()},
                 .weights = {a},
                 .gradients = {at::zeros({kRank, kIn})}};
  Adapter::run(adapter.in, Phase::kBG, first);
  const auto loss = [&](const at::Tensor& x1, const at::Tensor& a1, const at::Tensor& b1) {
    return adapter.loss(x1, a1, b1, y0, r);
  };
  expect_gradient([&](const at::Tensor& v) { return loss(v, a, b); }, x, first.updates[0] - dx0);
  expect_gradient([&](const at::Tensor& v) { return loss(x, v, b); }, a, first.gradients[0]);
  expect_gradient([&](const at::Tensor& v) { return loss(x, a, v); }, b, second.gradients[0]);
}

}  // namespace
}  // namespace orrery::executor

// The weights of scans: a tensor rank holds those of its heads and groups, and all together those
// that the model counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "model/scan.h"
#include "plan/lowering/lower.h"

namespace orrery::plan {
namespace {

std::int64_t product_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
}

/// Weights of a scan among a block's: neither of its products nor of norms of the block.
bool of_scan(const Parameter& p) {
  for (const char* name : {".taps.", ".decay", ".skip", ".steps.bias", ".gain."})
    if (p.name.find(name) != std::string::npos) return true;
  return false;
}

class LowerScans : public ::testing::TestWithParam<const char*> {};

TEST_P(LowerScans, ARankHoldsTheWeightsOfItsHeads) {
  const model::ModelSpec m = model::find_model(GetParam()).value();
  const std::int64_t shared = m.mixer == model::Mixer::kDeltaNet ? m.scan.head_dim : 0;
  for (const int tp : {1, 2, 4}) {
    const UniformOptions o{.tp = tp, .global_batch = 2, .precision = model::Precision::kFloat32};
    const Program program = lower(uniform_plan(m, "local", 1, o).value(), m).value();
    int scans = 0;
    for (const Template& t : program.templates) {
      for (const Op& op : t.ops) {
        if (op.kind != OpKind::kCompute) continue;
        const model::SegmentShape& s = program.segments[op.segment];
        if (s.kind != model::SegmentKind::kScan) continue;
        ++scans;
        EXPECT_EQ(s.heads * tp, m.scan.heads);
        EXPECT_EQ((s.weights - shared) * tp, m.scan_parameters() - shared);
        const std::vector<std::int64_t> stated = model::scan_weights(s);
        ASSERT_EQ(op.views.size(), stated.size());
        for (std::size_t i = 0; i < stated.size(); ++i)
          EXPECT_EQ(product_of(op.views[i].shape), stated[i]) << "tensor " << i;
      }
    }
    EXPECT_GE(scans, 2);
    std::int64_t held = 0;
    const auto unit = std::ranges::find_if(program.units, [](const ParameterUnit& u) {
      return std::ranges::any_of(u.parameters, of_scan);
    });
    ASSERT_NE(unit, program.units.end());
    for (const Parameter& p : unit->parameters) {
      if (!of_scan(p)) continue;
      held += product_of(p.shape);
      EXPECT_EQ(p.partial, p.shard_dim < 0) << p.name;
      EXPECT_EQ(product_of(p.local_shape) * (p.shard_dim < 0 ? 1 : tp), product_of(p.shape));
    }
    EXPECT_EQ(held, m.scan_parameters());
  }
}
INSTANTIATE_TEST_SUITE_P(Models, LowerScans,
                         ::testing::Values("mamba2-tiny", "nemotron-h-tiny", "qwen3-next-tiny",
                                           "minimax-tiny"));

}  // namespace
}  // namespace orrery::plan

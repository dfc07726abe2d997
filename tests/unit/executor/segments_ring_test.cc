// A ring in one process: attention by blocks, merged, is the attention core over the whole
// sequence, forward and backward.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "executor/segments/segments.h"

namespace orrery::executor {
namespace {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

constexpr std::int64_t kBatch = 2, kHeadDim = 8, kShare = 4;
constexpr int kRanks = 3, kTensorRanks = 2;  // rank r holds token share r / 2 of 3

struct RingCase {
  std::int64_t heads, kv_heads;
  bool rotary, causal;
  int chunks;  // of the zig-zag order
};

class Ring : public ::testing::TestWithParam<RingCase> {
 protected:
  [[nodiscard]] SegmentShape shape(SegmentKind kind, std::int64_t tokens) const {
    SegmentShape s{.kind = kind, .sequences = kBatch, .tokens = tokens};
    s.heads = GetParam().heads;
    s.kv_heads = GetParam().kv_heads;
    s.head_dim = kHeadDim;
    s.rotary = GetParam().rotary && kind != SegmentKind::kAttentionBlock;
    s.causal = GetParam().causal;
    s.token_chunks = GetParam().chunks;
    if (kind == SegmentKind::kAttention) return s;
    s.token_parts = kRanks;
    s.token_stride = kTensorRanks;
    if (kind == SegmentKind::kAttentionBlock) s.kv_tokens = tokens;
    return s;
  }
  std::vector<at::Tensor> run(const SegmentShape& s, Phase phase, int part,
                              std::vector<at::Tensor> reads,
                              const std::vector<std::vector<std::int64_t>>& writes,
                              std::vector<at::Tensor> updates = {}) {
    Operands o{.reads = std::move(reads),
               .writes = {},
               .updates = std::move(updates),
               .weights = {},
               .gradients = {}};
    for (const auto& w : writes)
      o.writes.push_back(
          {.shape = w, .dtype = model::DType::kFloat32, .device = at::kCPU, .tensor = {}});
    SegmentContext context;
    context.local_rank = part * kTensorRanks + 1;
    context.rotary = &rotary_;
    const auto done = run_segment(s, phase, o, context);
    EXPECT_TRUE(done) << base::to_string(done.error());
    std::vector<at::Tensor> made;
    for (const Output& w : o.writes) made.push_back(w.tensor);
    return made;
  }
  static at::Tensor share(const at::Tensor& x, int part) {
    return x.narrow(1, part * kShare, kShare).contiguous();
  }

  RotaryTables rotary_;
};

TEST_P(Ring, BlocksMergedAreTheWholeAttention) {
  const std::int64_t n = GetParam().heads, k = GetParam().kv_heads, s = kRanks * kShare,
                     q_width = n * kHeadDim, kv_width = 2 * k * kHeadDim;
  const at::Tensor qkv = at::randn({kBatch, s, q_width + kv_width}),
                   d = at::randn({kBatch, s, q_width});
  const SegmentShape core = shape(SegmentKind::kAttention, s),
                     split = shape(SegmentKind::kAttentionSplit, kShare);
  const auto whole = run(core, Phase::kF, 0, {qkv}, {{kBatch, s, q_width}, {kBatch, n, s}});
  const auto whole_back =
      run(core, Phase::kB, 0, {d, qkv, whole[0], whole[1]}, {{kBatch, s, q_width + kv_width}});
  const std::vector<std::int64_t> q_shape{kBatch, kShare, q_width},
      kv_shape{kBatch, kShare, kv_width}, lse_shape{kBatch, n, kShare};

  std::vector<at::Tensor> q, kv, dq, dkv;
  for (int p = 0; p < kRanks; ++p) {
    const auto parts = run(split, Phase::kF, p, {share(qkv, p)}, {q_shape, kv_shape});
    q.push_back(parts[0]), kv.push_back(parts[1]);
    dq.push_back(at::zeros_like(parts[0])), dkv.push_back(at::zeros_like(parts[1]));
  }
  const auto block = [&](int step) {
    SegmentShape b = shape(SegmentKind::kAttentionBlock, kShare);
    b.ring_step = step;
    return b;
  };
  const auto source = [](int p, int step) {
    return static_cast<std::size_t>((p - step + kRanks) % kRanks);
  };
  for (int p = 0; p < kRanks; ++p) {
    const auto i = static_cast<std::size_t>(p);
    std::vector<at::Tensor> sum;
    for (int step = 0; step < kRanks; ++step) {
      const auto part =
          run(block(step), Phase::kF, p, {q[i], kv[source(p, step)]}, {q_shape, lse_shape});
      if (step == 0)
        sum = part;
      else
        run(shape(SegmentKind::kAttentionMerge, kShare), Phase::kF, p, part, {}, sum);
    }
    EXPECT_TRUE(at::allclose(sum[0], share(whole[0], p), 1e-5, 1e-6)) << "share " << p;
    for (int step = 0; step < kRanks; ++step) {
      const auto back =
          run(block(step), Phase::kB, p, {share(d, p), q[i], kv[source(p, step)], sum[0], sum[1]},
              {q_shape, kv_shape});
      dq[i].add_(back[0]), dkv[source(p, step)].add_(back[1]);
    }
  }
  for (int p = 0; p < kRanks; ++p) {
    const auto i = static_cast<std::size_t>(p);
    const auto joined =
        run(split, Phase::kB, p, {dq[i], dkv[i]}, {{kBatch, kShare, q_width + kv_width}});
    EXPECT_TRUE(at::allclose(joined[0], share(whole_back[0], p), 1e-4, 1e-5)) << "share " << p;
  }
}

TEST_P(Ring, ZigZagOrderMovesTokensAndNothingElse) {
  const std::int64_t n = GetParam().heads, k = GetParam().kv_heads, s = kRanks * kShare,
                     q_width = n * kHeadDim, kv_width = 2 * k * kHeadDim;
  SegmentShape zig_zag = shape(SegmentKind::kAttention, s), plain = zig_zag;
  plain.token_chunks = 1;
  const at::Tensor order = at::empty({s}, at::kLong);
  for (std::int64_t place = 0; place < s; ++place)
    order.data_ptr<std::int64_t>()[place] =
        model::position_of(place, zig_zag.token_chunks, zig_zag.chunk_tokens());
  EXPECT_TRUE(std::get<0>(order.sort()).equal(at::arange(s)));  // each position once
  const auto placed = [&](const at::Tensor& x, std::int64_t dim) {
    return x.index_select(dim, order);
  };
  const at::Tensor qkv = at::randn({kBatch, s, q_width + kv_width}),
                   d = at::randn({kBatch, s, q_width});
  const std::vector<std::vector<std::int64_t>> made{{kBatch, s, q_width}, {kBatch, n, s}};
  const auto whole = run(plain, Phase::kF, 0, {qkv}, made),
             moved = run(zig_zag, Phase::kF, 0, {placed(qkv, 1)}, made);
  EXPECT_TRUE(at::allclose(moved[0], placed(whole[0], 1), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(moved[1], placed(whole[1], 2), 1e-5, 1e-6));
  const std::vector<std::vector<std::int64_t>> gradient{{kBatch, s, q_width + kv_width}};
  const auto back = run(plain, Phase::kB, 0, {d, qkv, whole[0], whole[1]}, gradient),
             moved_back = run(zig_zag, Phase::kB, 0,
                              {placed(d, 1), placed(qkv, 1), moved[0], moved[1]}, gradient);
  EXPECT_TRUE(at::allclose(moved_back[0], placed(back[0], 1), 1e-4, 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Ring,
                         ::testing::Values(RingCase{4, 4, false, true, 6},
                                           RingCase{4, 2, true, true, 6},
                                           RingCase{4, 2, true, true, 12},
                                           RingCase{2, 2, false, false, 1}));

// Eight ranks of a token each, four chunks of two: 0 1 | 6 7 | 2 3 | 4 5.
TEST(PositionAdd, TakesTheRowsOfItsTokensHoweverFineTheyAreSplit) {
  const at::Tensor table = at::arange(8, at::kFloat).view({8, 1});
  std::vector<float> rows;
  for (int rank = 0; rank < 8; ++rank) {
    SegmentShape s{.kind = SegmentKind::kPositionAdd, .sequences = 1, .tokens = 1, .in = 1};
    s.out = s.token_parts = 8;
    s.token_chunks = 4;
    Operands o{.reads = {at::zeros({1, 1, 1})},
               .writes = {},
               .updates = {},
               .weights = {table},
               .gradients = {}};
    o.writes.push_back({.shape = {1, 1, 1}, .tensor = {}});
    SegmentContext context;
    context.local_rank = rank;
    ASSERT_TRUE(run_segment(s, Phase::kF, o, context));
    rows.push_back(o.writes[0].tensor.item<float>());
  }
  EXPECT_EQ(rows, (std::vector<float>{0, 1, 6, 7, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace orrery::executor

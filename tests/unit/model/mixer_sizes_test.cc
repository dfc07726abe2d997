// What the chain of kernels of a scan moves, by hand: 2 sequences of 4 tokens in bf16, 4 heads of 2
// values, 2 groups of 4 keys, chunks of 2 tokens. Of a token D = 8, K = 8, E = 16, S / Q = 16,
// Q G = 4, Q n = 8.

#include "model/mixer_sizes.h"

#include <gtest/gtest.h>

namespace orrery::model {
namespace {

SegmentShape scan() {
  SegmentShape s;
  s.kind = SegmentKind::kScan;
  s.dtype = DType::kBFloat16;
  s.sequences = 2;
  s.tokens = 4;
  s.in = 36;
  s.out = 8;
  s.heads = 4;
  s.head_dim = 2;
  s.kv_heads = 2;
  s.state = 4;
  s.chunk = 2;
  s.kernel = 4;
  s.weights = 10;
  return s;
}

double bytes(const SegmentShape& s, Phase phase) { return mixer_work(s, phase).bytes.raw(); }

TEST(ScanWork, Mamba2IsSevenKernelsForward) {
  EXPECT_EQ(bytes(scan(), Phase::kF), 8 * (2 * 8 * 16 + 12 * 16 + 8 * 4) + 2 * 10);
  EXPECT_EQ(bytes(scan(), Phase::kB), 8 * (42 * 16 + 16 * 8 + 34 * 16 + 24 * 4));
  EXPECT_EQ(bytes(scan(), Phase::kG), 8 * 10);
  EXPECT_EQ(bytes(scan(), Phase::kBG), bytes(scan(), Phase::kB) + bytes(scan(), Phase::kG));
}

TEST(ScanWork, TheDeltaRuleWritesKeysForEveryHead) {
  SegmentShape s = scan();
  s.delta = true;
  EXPECT_EQ(bytes(s, Phase::kF),
            8 * (2 * (11 * 8 + 6 * 8 + 13 * 16 + 2 * 16 + 2 * 8) + 8 * 8) + 20);
  EXPECT_EQ(bytes(s, Phase::kB), 8 * 2 * (23 * 8 + 8 * 8 + 29 * 16 + 4 * 16 + 2 * 8));
}

TEST(ScanWork, WithoutAConvolutionIsOneKernel) {
  SegmentShape s = scan();
  s.kernel = 0;
  EXPECT_EQ(bytes(s, Phase::kF), 8 * (2 * (36 + 16) + 4 * 16) + 20);
  EXPECT_EQ(bytes(s, Phase::kB), 8 * (2 * (72 + 24) + 8 * 16));
}

// The least that any kernels could move: what the scan reads and writes, once.
TEST(ScanWork, AChainMovesNoLessThanOneKernel) {
  for (const bool delta : {false, true})
    for (const std::int64_t chunk : {1, 2, 4}) {
      SegmentShape chain = scan(), one = scan();
      chain.delta = one.delta = delta;
      chain.chunk = chunk;
      one.kernel = 0;
      one.chunk = 4;
      EXPECT_GT(bytes(chain, Phase::kF), bytes(one, Phase::kF));
      EXPECT_GT(bytes(chain, Phase::kB), bytes(one, Phase::kB));
    }
}

// Chunks of twice the tokens leave half the states and squares of twice the sides.
TEST(ScanWork, LongerChunksTradeStatesForSquares) {
  SegmentShape longer = scan();
  longer.chunk = 4;
  EXPECT_EQ(bytes(scan(), Phase::kF) - bytes(longer, Phase::kF), 8 * (12 * 8 - 8 * 4));
  longer.tokens = longer.chunk = 6;  // one chunk a sequence, two states in all
  SegmentShape same = longer;
  same.chunk = 5;  // a whole chunk and one of a token
  EXPECT_EQ(bytes(same, Phase::kF) - bytes(longer, Phase::kF), 12 * 2 * 32 - 12 * 8 * 2);
}

// By hand: 2 sequences of 8 tokens in fp32, 4 heads of 20 numbers, 8 of them rotated, values of 10,
// a latent of 16; 3 index heads of 9 numbers. All keys cost 2 x 16 x 8 x 4 x 30 FLOPs of the
// square, two chosen ones as the latent has them 2 x 16 x 4 x 40 times 2 (2 - 2 / 8); seven such
// more.
TEST(LatentWork, AnIndexerScoresEveryKeyAndLeavesTheCheaperCore) {
  SegmentShape s{.kind = SegmentKind::kLatentAttention, .sequences = 2, .tokens = 8};
  s.heads = 4;
  s.head_dim = 20;
  s.rope_dim = 8;
  s.value_dim = 10;
  const double plain = mixer_work(s, Phase::kF).flops.raw(),
               plain_bytes = mixer_work(s, Phase::kF).bytes.raw();
  EXPECT_EQ(plain, 2 * 16 * 8 * 4 * 30);
  s.in = 16;
  s.index_heads = 3;
  s.index_dim = 9;
  s.top_k = 2;
  const double scores = 2 * 16 * 8 * 27;
  EXPECT_EQ(mixer_work(s, Phase::kF).flops.raw(), 2 * 16 * 3.5 * 4 * 40 + scores);
  EXPECT_EQ(mixer_work(s, Phase::kB).flops.raw(), 2 * 16 * 3.5 * 4 * (5 * 16 + 3 * 8) + 3 * scores);
  EXPECT_EQ(mixer_work(s, Phase::kF).bytes.raw() - plain_bytes, 4 * 16 * (27 + 9 + 3 + 1));
  s.top_k = 7;
  EXPECT_EQ(mixer_work(s, Phase::kF).flops.raw(), plain + scores);
  s.top_k = 8;  // all
  EXPECT_EQ(mixer_work(s, Phase::kF).flops.raw(), plain + scores);
}

}  // namespace
}  // namespace orrery::model

// Work of every segment at small sizes, computed by hand from the operand table of model/segment.h.
#include <gtest/gtest.h>

#include "model/segment.h"

namespace orrery::model {
namespace {

/// 2 sequences of 3 tokens: T = 6.
SegmentShape shape(SegmentKind kind, std::int64_t in = 0, std::int64_t out = 0,
                   DType dtype = DType::kFloat32) {
  return {.kind = kind, .dtype = dtype, .sequences = 2, .tokens = 3, .in = in, .out = out};
}
SegmentShape flat(SegmentKind kind, std::int64_t elements, DType dtype = DType::kFloat32) {
  return {.kind = kind, .dtype = dtype, .elements = elements};
}

void expect_work(const SegmentShape& s, Phase phase, double flops, double bytes,
                 std::int64_t transient) {
  const PhaseWork w = work(s, phase);
  EXPECT_EQ(w.flops.raw(), flops) << to_string(s.kind) << " " << to_string(phase);
  EXPECT_EQ(w.bytes.raw(), bytes) << to_string(s.kind) << " " << to_string(phase);
  EXPECT_EQ(w.transient_bytes, transient) << to_string(s.kind) << " " << to_string(phase);
}

// x [6,4] = 24, W [5,4] = 20, y [6,5] = 30 numbers; one product 2*6*4*5 = 240.
TEST(Work, LinearsCountTheirProducts) {
  for (const SegmentKind kind : {SegmentKind::kQkv, SegmentKind::kProjection, SegmentKind::kMlpIn,
                                 SegmentKind::kMlpOut, SegmentKind::kLogits}) {
    const SegmentShape s = shape(kind, 4, 5);
    expect_work(s, Phase::kF, 240, 4 * (24 + 20 + 30), 0);
    expect_work(s, Phase::kB, 240, 4 * (30 + 20 + 24), 0);
    expect_work(s, Phase::kG, 240, 4 * (30 + 24) + 8 * 20, 0);
    expect_work(s, Phase::kBG, 480, 4 * (30 + 20 + 24 + 24) + 8 * 20, 0);
  }
}

TEST(Work, LinearsInBf16AccumulateThroughAProduct) {
  const SegmentShape s = shape(SegmentKind::kMlpIn, 4, 5, DType::kBFloat16);
  expect_work(s, Phase::kF, 240, 2 * (24 + 20 + 30), 0);
  expect_work(s, Phase::kB, 240, 2 * (30 + 20 + 24), 0);
  expect_work(s, Phase::kBG, 480, 2 * (30 + 20 + 24 + 24) + 8 * 20, 2 * 20);
}

TEST(Work, RoundedProductsAreMadeSomeRowsAtATime) {
  SegmentShape s = shape(SegmentKind::kLogits, 4096, 128256, DType::kBFloat16);
  EXPECT_EQ(work(s, Phase::kG).transient_bytes, 2 << 20);
  s.in = 3 << 20;  // a row at a time
  EXPECT_EQ(work(s, Phase::kG).transient_bytes, 2 * s.in);
}

// Per tensor: q = 1 byte, 2 read for the maximum. A copy of n numbers takes (2 + 2 + 1) n, two of
// the incoming gradient (2 + 2 + 2) 30.
TEST(Work, LinearsQuantiseTheirOperands) {
  SegmentShape s = shape(SegmentKind::kQkv, 4, 5, DType::kBFloat16);
  s.format = Format::kFp8Current;
  expect_work(s, Phase::kF, 240, 24 + 20 + 2 * 30, 0);
  expect_work(s, Phase::kBG, 480, 30 + 6 * 30 + (20 + 2 * 24) + (24 + 8 * 20), 2 * 30 + 2 * 20);
  s.quantises_input = s.quantises_weights = true;
  expect_work(s, Phase::kF, 240, 24 + 20 + 2 * 30 + 5 * 24 + 5 * 20, 24 + 20);
  EXPECT_EQ(quantising_bytes(s, Phase::kF).raw(), 5 * 24 + 5 * 20);
  EXPECT_EQ(quantising_bytes(s, Phase::kB).raw(), 5 * 30 + 5 * 20);
  EXPECT_EQ(quantising_bytes(s, Phase::kG).raw(), 5 * 30 + 5 * 24);
  EXPECT_EQ(quantising_bytes(s, Phase::kBG).raw(), 6 * 30 + 5 * 24 + 5 * 20);
  s.format = Format::kNone;
  EXPECT_EQ(quantising_bytes(s, Phase::kBG).raw(), 0);
}

// Blocks: 33/32 bytes. Fused: two copies instead of the result; else beside it, read again.
TEST(Work, NormsAndActivationsQuantiseWhatTheyMake) {
  SegmentShape norm = shape(SegmentKind::kNorm, 32, 32, DType::kBFloat16);
  norm.norm = NormKind::kRmsNorm;
  const double x = 6 * 32, rest = 2 * 32 + 4 * 6;
  const std::int64_t one = 4 * 6 * 32, copy = 6 * 33;
  norm.format = Format::kMxFp8;
  expect_work(norm, Phase::kF, 4 * x, 2 * x + 2 * copy + rest, one + copy);
  norm.format = Format::kFp8Block;
  expect_work(norm, Phase::kF, 4 * x, 2 * x + (2 + 2) * x + 2 * copy + rest, one + copy);
  SegmentShape activation = shape(SegmentKind::kActivation, 32, 32, DType::kBFloat16);
  activation.activation = Activation::kRelu;
  activation.format = Format::kNvFp4;  // 9/16 of a byte; 2 more for the maximum
  expect_work(activation, Phase::kF, x, 2 * x + (2 + 2 + 2) * x + 2 * 6 * 18, 6 * 18);
}

TEST(Work, AdamWQuantisesWeightsOnce) {
  SegmentShape s = flat(SegmentKind::kAdamW, 64, DType::kBFloat16);
  s.format = Format::kFp8Delayed;
  expect_work(s, Phase::kF, 14 * 64, (30 + 2 + 2) * 64, 0);
}

TEST(Formats, BytesWithScales) {
  EXPECT_EQ(bytes_of(DType::kBFloat16, 5), 10);
  EXPECT_EQ(bytes_of(DType::kFloat8, 5), 5);
  EXPECT_EQ(bytes_of(DType::kFloat8Blocks, 256), 256 + 8);
  EXPECT_EQ(bytes_of(DType::kFloat4Blocks, 16), 8 + 1);
  EXPECT_EQ(bytes_of(DType::kFloat4Blocks, 1), 1);
  EXPECT_EQ(format_of(Precision::kBFloat16), Format::kNone);
  EXPECT_EQ(to_string(format_of(Precision::kMxFp8)), "mxfp8");
}

TEST(Work, BiasAddsItsOwn) {
  SegmentShape s = shape(SegmentKind::kQkv, 4, 5);
  s.bias = true;
  expect_work(s, Phase::kF, 240 + 30, 4 * (24 + 20 + 30 + 5), 0);
  expect_work(s, Phase::kBG, 480 + 30, 4 * (30 + 20 + 24 + 24) + 8 * (20 + 5), 0);
}

// 2 query heads of 4, T s n d = 6*3*2*4 = 144; qkv [6, 24], o [6, 8], lse [2,2,3] = 12.
TEST(Work, AttentionCountsFullSquares) {
  SegmentShape s = shape(SegmentKind::kAttention);
  s.heads = s.kv_heads = 2;
  s.head_dim = 4;
  expect_work(s, Phase::kF, 4 * 144, 4 * (144 + 48) + 4 * 12, 0);
  expect_work(s, Phase::kB, 10 * 144, 4 * (48 + 144 + 48 + 144) + 4 * 12, 4 * 3 * 48);
  expect_work(s, Phase::kBG, 10 * 144, 4 * (48 + 144 + 48 + 144) + 4 * 12, 4 * 3 * 48);
  expect_work(s, Phase::kG, 0, 0, 0);
  s.causal = false;
  expect_work(s, Phase::kF, 4 * 144, 4 * (144 + 48) + 4 * 12, 0);
}

// One kv head: qkv [6, 16]; rotated q [6,8] and k [6,4]; k and v repeated to [6,8] each.
TEST(Work, GroupedRotaryAttentionCopies) {
  SegmentShape s = shape(SegmentKind::kAttention, 0, 0, DType::kBFloat16);
  s.heads = 2;
  s.kv_heads = 1;
  s.head_dim = 4;
  s.rotary = true;
  const std::int64_t copies = 2 * (48 + 24) + 2 * (48 + 48);
  expect_work(s, Phase::kF, 4 * 144, 2 * (96 + 48) + 4 * 12, copies);
  expect_work(s, Phase::kBG, 10 * 144, 2 * (48 + 96 + 48 + 96) + 4 * 12, 2 * 3 * 48 + copies);
}

// 2 query heads and 1 key head of 4: q [6,8], 5 keys in each of 2 sequences: kv [10,8] = 80; T r n
// d = 6*5*2*4 = 240; lse [2,2,3] = 12.
TEST(Work, AttentionBlockCountsItsOwnKeys) {
  SegmentShape s = shape(SegmentKind::kAttentionBlock);
  s.heads = 2;
  s.kv_heads = 1;
  s.head_dim = 4;
  s.kv_tokens = 5;
  s.token_parts = 2;
  const std::int64_t repeated = 4 * 2 * (10 * 8);  // k and v, to two heads each
  expect_work(s, Phase::kF, 4 * 240, 4 * (48 + 80 + 48) + 4 * 12, repeated);
  expect_work(s, Phase::kB, 10 * 240, 4 * (48 + 48 + 80 + 48 + 48 + 80) + 4 * 12,
              4 * (48 + 2 * 80) + repeated);
  expect_work(s, Phase::kG, 0, 0, 0);
}

// As many keys as tokens: the products and the traffic of the whole core.
TEST(Work, AttentionBlockOverAllKeysIsTheAttentionCore) {
  SegmentShape core = shape(SegmentKind::kAttention), block = shape(SegmentKind::kAttentionBlock);
  core.heads = core.kv_heads = block.heads = block.kv_heads = 2;
  core.head_dim = block.head_dim = 4;
  block.kv_tokens = block.tokens;
  for (const Phase phase : {Phase::kF, Phase::kB}) {
    const PhaseWork w = work(core, phase);
    expect_work(block, phase, w.flops.raw(), w.bytes.raw(), w.transient_bytes);
  }
}

// qkv [6,24] = 144 there and back; o [6,8] = 48 read twice and written, three log-sum-exps of 12.
TEST(Work, AttentionSplitAndMergeMoveTheirOperands) {
  SegmentShape split = shape(SegmentKind::kAttentionSplit),
               merge = shape(SegmentKind::kAttentionMerge);
  split.heads = split.kv_heads = merge.heads = merge.kv_heads = 2;
  split.head_dim = merge.head_dim = 4;
  expect_work(split, Phase::kF, 0, 4 * 2 * 144, 0);
  expect_work(split, Phase::kB, 0, 4 * 2 * 144, 0);
  expect_work(merge, Phase::kF, 3 * 48, 4 * 3 * 48 + 4 * 3 * 12, 4 * 3 * 12);
  expect_work(merge, Phase::kB, 0, 0, 0);
}

// x [6,4] = 24; mean and rstd 12 numbers, gain and bias 8.
TEST(Work, LayerNorm) {
  SegmentShape s = shape(SegmentKind::kNorm, 4);
  expect_work(s, Phase::kF, 8 * 24, 4 * (24 + 24 + 8 + 12), 0);
  expect_work(s, Phase::kB, 11 * 24, 4 * (24 + 24 + 24 + 4 + 12), 0);
  expect_work(s, Phase::kG, 3 * 24, 4 * (24 + 24 + 12) + 8 * 8, 0);
  s.residual = true;
  expect_work(s, Phase::kBG, 14 * 24, 4 * (24 + 24 + 24 + 24 + 4 + 12) + 8 * 8, 0);
}

TEST(Work, RmsNorm) {
  SegmentShape s = shape(SegmentKind::kNorm, 4);
  s.norm = NormKind::kRmsNorm;
  expect_work(s, Phase::kF, 4 * 24, 4 * (24 + 24 + 4 + 6), 0);
  expect_work(s, Phase::kBG, 10 * 24, 4 * (24 + 24 + 24 + 4 + 6) + 8 * 4, 4 * 24);
  s.dtype = DType::kBFloat16;
  expect_work(s, Phase::kF, 4 * 24, 2 * (24 + 24 + 4) + 4 * 6, 4 * 24);
  expect_work(s, Phase::kBG, 10 * 24, 2 * (24 + 24 + 24 + 4) + 4 * 6 + 8 * 4, 12 * 24);
}

TEST(Work, ResidualHasAGradientOnlyForItsBias) {
  SegmentShape s = shape(SegmentKind::kResidual, 4);
  expect_work(s, Phase::kF, 24, 4 * 72, 0);
  expect_work(s, Phase::kBG, 0, 0, 0);
  s.bias = true;
  expect_work(s, Phase::kF, 48, 4 * (72 + 4), 0);
  expect_work(s, Phase::kBG, 24, 4 * 24 + 8 * 4, 0);
  expect_work(s, Phase::kB, 0, 0, 0);
}

// f = 5: g [6,5] = 30.
TEST(Work, PlainAndGatedActivation) {
  SegmentShape s = shape(SegmentKind::kActivation, 5, 5);
  expect_work(s, Phase::kF, 8 * 30, 4 * 60, 0);
  expect_work(s, Phase::kB, 16 * 30, 4 * 90, 0);
  s.gated = true;
  s.activation = Activation::kSilu;
  expect_work(s, Phase::kF, 5 * 30, 4 * 90, 0);
  expect_work(s, Phase::kBG, 11 * 30, 4 * 150, 0);
  expect_work(s, Phase::kG, 0, 0, 0);
}

// h = 4, whole vocabulary of 10, then a shard of 5 that masks ids (6 * 8 + 6 bytes) and gradient
// rows.
TEST(Work, EmbeddingGathersRows) {
  SegmentShape s = shape(SegmentKind::kEmbedding, 4, 10);
  s.vocab = 10;
  expect_work(s, Phase::kF, 0, 48 + 4 * 48, 0);
  expect_work(s, Phase::kB, 0, 0, 0);
  expect_work(s, Phase::kG, 24, 48 + 4 * 24 + 8 * 24, 0);
  s.out = 5;
  s.parts = 2;
  expect_work(s, Phase::kF, 0, 48 + 4 * 48, 54);
  expect_work(s, Phase::kBG, 24, 48 + 4 * 24 + 8 * 24, 54 + 4 * 24);
  s.dtype = DType::kBFloat16;
  expect_work(s, Phase::kBG, 24, 48 + 2 * 24 + 8 * 24, 54 + 2 * 24 + 4 * 24);
}

TEST(Work, PositionsAreSummedOverSequences) {
  const SegmentShape s = shape(SegmentKind::kPositionAdd, 4);
  expect_work(s, Phase::kF, 24, 4 * (48 + 12), 0);
  expect_work(s, Phase::kG, 24, 4 * 24 + 8 * 12, 4 * 12);
  expect_work(s, Phase::kB, 0, 0, 0);
}

// 10 columns: logits [6,10] = 60.
TEST(Work, LossReadsLogitsThrice) {
  expect_work(shape(SegmentKind::kLossMax, 0, 10), Phase::kF, 60, 4 * 60 + 4 * 6, 0);
  expect_work(shape(SegmentKind::kLossSum, 0, 10), Phase::kF, 180, 4 * 60 + 4 * 6 + 8 * 6 + 8 * 6,
              4 * 60);
  expect_work(shape(SegmentKind::kLoss, 0, 10), Phase::kF, 18, 8 * 6 + 8, 0);
  expect_work(shape(SegmentKind::kLoss, 0, 10), Phase::kB, 240, 8 * 60 + (4 + 8 + 8) * 6, 0);
  expect_work(shape(SegmentKind::kLoss, 0, 10, DType::kBFloat16), Phase::kB, 240, 4 * 60 + 20 * 6,
              4 * 60);
  expect_work(shape(SegmentKind::kLossMax, 0, 10), Phase::kB, 0, 0, 0);
}

/// h = 4; 3 experts, 2 per token, 2 rows of each per sequence: R = 2 * 3 * 2 = 12 rows; 6 tokens
/// with 2 choices.
SegmentShape routed(SegmentKind kind, bool shared, DType dtype = DType::kFloat32) {
  SegmentShape s = shape(kind, 4, 4, dtype);
  s.experts = 3;
  s.top_k = 2;
  s.capacity = 2;
  s.shared = shared;
  return s;
}

// a [6,4] = 24, W [3,4] = 12, gates [6,2] = 12, choice 12 ids, scores [6,3] = 18; product 2*6*4*3 =
// 144.
TEST(Work, RouterIsAProductASoftmaxAndASearch) {
  const double routes = 4 * (12 + 18) + 8 * 12;
  const SegmentShape s = routed(SegmentKind::kRouter, false);
  expect_work(s, Phase::kF, 144 + 5 * 18, 4 * (24 + 12) + routes, 4 * 18);
  expect_work(s, Phase::kB, 144 + 4 * 18, 4 * (24 + 12) + routes + 4 * 12, 4 * 18);
  expect_work(s, Phase::kG, 144, 4 * 24 + 8 * 12 + routes + 4 * 12, 4 * 18);
  expect_work(s, Phase::kBG, 288 + 4 * 18, 4 * (24 + 12 + 24) + 8 * 12 + routes + 4 * 12, 4 * 18);
}

// One column and one gate more: W 16, gates [6,3] = 18, logits [6,4] = 24, product 192.
TEST(Work, RouterGatesASharedExpertToo) {
  const double routes = 4 * (18 + 18) + 8 * 12;
  const SegmentShape s = routed(SegmentKind::kRouter, true, DType::kBFloat16);
  expect_work(s, Phase::kF, 192 + 5 * 18, 2 * (24 + 16) + routes, 2 * 24);
  expect_work(s, Phase::kBG, 384 + 4 * 18, 2 * (24 + 16 + 24) + 8 * 16 + routes + 4 * 18,
              4 * 24 + 2 * 24 + 2 * 16);
}

// rows [12,4] = 48.
TEST(Work, DispatchMovesRowsAndSortsChoices) {
  const SegmentShape s = routed(SegmentKind::kDispatch, false);
  expect_work(s, Phase::kF, 0, 4 * (24 + 48) + 16 * 12, 16 * 12);
  expect_work(s, Phase::kB, 2 * 24, 4 * (24 + 48) + 8 * 12, 0);
  expect_work(s, Phase::kG, 0, 0, 0);
  expect_work(routed(SegmentKind::kDispatch, false, DType::kBFloat16), Phase::kB, 48,
              2 * (24 + 48) + 8 * 12, 4 * 24);
}

TEST(Work, CombineIsAWeightedSum) {
  const SegmentShape s = routed(SegmentKind::kCombine, false);
  expect_work(s, Phase::kF, 2 * 2 * 24, 4 * (48 + 24 + 12) + 8 * 12, 0);
  expect_work(s, Phase::kB, 3 * 2 * 24, 4 * (48 + 48 + 24 + 12 + 12) + 8 * 12, 0);
  expect_work(s, Phase::kG, 0, 0, 0);
  const SegmentShape z = routed(SegmentKind::kCombine, true, DType::kBFloat16);
  expect_work(z, Phase::kF, 2 * 3 * 24, 2 * (48 + 24 + 24) + 4 * 18 + 8 * 12, 4 * 24);
  expect_work(z, Phase::kB, 3 * 3 * 24, 2 * (48 + 48 + 24 + 24 + 24) + 4 * 36 + 8 * 12, 4 * 24);
}

// Gates of inputs: rows are products on their way out, sums on their way back.
TEST(Work, GatesOfInputsMoveFromCombineToDispatch) {
  SegmentShape out = routed(SegmentKind::kDispatch, false);
  out.routing.of_inputs = true;
  expect_work(out, Phase::kF, 2 * 24, 4 * (24 + 48 + 12) + 16 * 12, 16 * 12);
  expect_work(out, Phase::kB, 4 * 2 * 24, 4 * (24 + 48 + 12 + 12 + 24) + 8 * 12, 0);
  SegmentShape back = routed(SegmentKind::kCombine, false, DType::kBFloat16);
  back.routing.of_inputs = true;
  expect_work(back, Phase::kF, 2 * 24, 2 * (48 + 24) + 8 * 12, 4 * 24);
  expect_work(back, Phase::kB, 0, 2 * (48 + 24) + 8 * 12, 0);
}

// Slices of a contraction of 4: in = 2 each, the second one reads what is there.
TEST(Work, SlicesOfAProductAddUp) {
  SegmentShape s = shape(SegmentKind::kMlpIn, 2, 5);
  s.slices = 2;
  expect_work(s, Phase::kF, 120, 4 * (12 + 10 + 30), 0);
  s.slice = 1;
  expect_work(s, Phase::kF, 120, 4 * (12 + 10 + 30 + 30), 0);
  expect_work(s, Phase::kBG, 240, 4 * (30 + 10 + 12 + 12) + 8 * 10, 0);
}

// Two experts: 6 rows in all, W [2,5,4] = 40.
TEST(Work, ExpertsAreProductsWithAMatrixEach) {
  for (const SegmentKind kind : {SegmentKind::kExpertIn, SegmentKind::kExpertOut}) {
    SegmentShape s = shape(kind, 4, 5, DType::kBFloat16);
    s.experts = 2;
    expect_work(s, Phase::kF, 240, 2 * (24 + 40 + 30), 0);
    expect_work(s, Phase::kBG, 480, 2 * (30 + 40 + 24 + 24) + 8 * 40, 2 * 40);
  }
}

TEST(Work, FlatSegments) {
  expect_work(flat(SegmentKind::kSlice, 100, DType::kBFloat16), Phase::kF, 0, 400, 0);
  expect_work(flat(SegmentKind::kZeroGradient, 100), Phase::kF, 0, 400, 0);
  expect_work(flat(SegmentKind::kAccumulate, 100), Phase::kF, 100, 1200, 0);
  expect_work(flat(SegmentKind::kAdamW, 100), Phase::kF, 1400, 2800, 0);
  expect_work(flat(SegmentKind::kAdamW, 100, DType::kBFloat16), Phase::kF, 1400, 3000, 0);
  expect_work(flat(SegmentKind::kAdamW, 100), Phase::kBG, 0, 0, 0);
}

TEST(Work, LoadersWriteIds) {
  SegmentShape ids = shape(SegmentKind::kLoadTokens);
  ids.dtype = DType::kInt64;
  expect_work(ids, Phase::kF, 0, 48, 0);
  ids.kind = SegmentKind::kLoadTargets;
  expect_work(ids, Phase::kF, 0, 48, 0);
}

// 2 x 3 tokens of 4: pixels are of the compute type.
TEST(Work, LoadersWritePixels) {
  expect_work(shape(SegmentKind::kLoadTokens), Phase::kF, 0, 24, 0);
}

// 2 images of 3 tokens of 4 features, of which 3 are averaged: 24 additions; reads 24 numbers,
// writes 8; back the other way round.
TEST(Work, PoolReadsTheTokensThatItAverages) {
  SegmentShape s = shape(SegmentKind::kPool, 4, 4);
  s.kv_tokens = 3;
  expect_work(s, Phase::kF, 24, 4 * (24 + 8), 0);
  expect_work(s, Phase::kB, 24, 4 * (24 + 8), 0);
  s.kv_tokens = 1;  // the class token
  expect_work(s, Phase::kF, 8, 4 * (8 + 8), 0);
  expect_work(s, Phase::kB, 8, 4 * (24 + 8), 0);
}

TEST(WorkDeathTest, ALinearWithoutSizesIsOurBug) {
  EXPECT_DEATH(static_cast<void>(work(shape(SegmentKind::kQkv, 4, 0), Phase::kF)), "check failed");
}

}  // namespace
}  // namespace orrery::model

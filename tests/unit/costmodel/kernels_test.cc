/// Kernels that a host issues, counted by hand.

#include "costmodel/compute/kernels.h"

#include <gtest/gtest.h>

namespace orrery::costmodel {
namespace {

using enum model::SegmentKind;
using enum model::Phase;
using model::Format;
using model::SegmentShape;

SegmentShape shape(model::SegmentKind kind, Format format = Format::kNone) {
  SegmentShape s;
  s.kind = kind;
  s.dtype = model::DType::kBFloat16;
  s.format = format;
  s.sequences = 1;
  s.tokens = 64;
  s.in = s.out = 128;
  s.heads = s.kv_heads = 4;
  s.head_dim = 32;
  s.experts = 8;
  s.top_k = 2;
  s.capacity = 16;
  return s;
}

TEST(IssuedKernels, OfAProductAreItsProductsAndThoseThatQuantise) {
  EXPECT_EQ(issued_kernels(shape(kQkv), kF), 1);
  EXPECT_EQ(issued_kernels(shape(kQkv), kBG), 2);
  EXPECT_EQ(issued_kernels(shape(kQkv, Format::kFp8Delayed), kF), 1 + 1);
  EXPECT_EQ(issued_kernels(shape(kQkv, Format::kFp8Current), kBG), 2 + 3);
  EXPECT_EQ(issued_kernels(shape(kQkv, Format::kMxFp8), kB), 1 + 2);
  SegmentShape biased = shape(kQkv);
  biased.bias = true;
  EXPECT_EQ(issued_kernels(biased, kF), 1);
  EXPECT_EQ(issued_kernels(biased, kBG), 3);
}

// Eight experts are eight products, each with operands of its own.
TEST(IssuedKernels, OfExpertsAreThoseOfEach) {
  EXPECT_EQ(issued_kernels(shape(kExpertIn), kF), 8);
  EXPECT_EQ(issued_kernels(shape(kExpertOut), kBG), 8 * 2);
  EXPECT_EQ(issued_kernels(shape(kExpertIn, Format::kFp8Current), kF), 8 * (1 + 3));
  EXPECT_EQ(issued_kernels(shape(kExpertOut, Format::kMxFp8), kBG), 8 * (2 + 2));
  SegmentShape one = shape(kExpertIn, Format::kMxFp8);
  one.experts = 1;
  EXPECT_EQ(issued_kernels(one, kF), issued_kernels(shape(kQkv, Format::kMxFp8), kF));
}

// Weighted by the gate and added expert by expert, where other biases are part of the product.
TEST(IssuedKernels, OfABiasedOutputOfExpertsAreThoseOfItsParts) {
  SegmentShape out = shape(kExpertOut);
  out.bias = true;
  EXPECT_EQ(issued_kernels(out, kF), 8 + 8 * 2 + 2);
  EXPECT_EQ(issued_kernels(out, kB), 8);
  EXPECT_EQ(issued_kernels(out, kBG), 8 * 2 + 8 * 5 + 2);
  SegmentShape in = shape(kExpertIn);
  in.bias = true;
  EXPECT_EQ(issued_kernels(in, kBG), 8 * 3);
}

// Two clamps and a join; two masks, their product, two choices, a join and a mask of one bound.
TEST(IssuedKernels, OfClampsAreThoseInFrontOfTheActivation) {
  SegmentShape glu = shape(kActivation);
  glu.gated = true;
  glu.activation = model::Activation::kClampedSwiglu;
  const model::Framework apart{.clamp_bytes = 16};
  EXPECT_EQ(issued_kernels(glu, kF), 1);
  EXPECT_EQ(issued_kernels(glu, kF, apart), 1 + 3);
  EXPECT_EQ(issued_kernels(glu, kB, apart), 2 + 7);
  glu.activation = model::Activation::kSilu;
  EXPECT_EQ(issued_kernels(glu, kB, apart), 2);
}

// As the code of state-spaces/mamba and flash-linear-attention calls them.
TEST(IssuedKernels, OfAScanAreAChain) {
  SegmentShape scan = shape(kScan);
  scan.state = 4;
  scan.chunk = 2;
  scan.weights = 1;
  EXPECT_EQ(issued_kernels(scan, kF), 3);  // no convolution: one kernel and its copies
  scan.kernel = 4;
  EXPECT_EQ(issued_kernels(scan, kF), 7);
  EXPECT_EQ(issued_kernels(scan, kBG), 22);
  scan.delta = true;
  EXPECT_EQ(issued_kernels(scan, kF), 18);
  EXPECT_EQ(issued_kernels(scan, kBG), 22);
}

TEST(IssuedKernels, OfOtherSegmentsAreAFew) {
  EXPECT_EQ(issued_kernels(shape(kNorm), kF), 1);
  EXPECT_EQ(issued_kernels(shape(kNorm), kBG), 2);
  EXPECT_EQ(issued_kernels(shape(kDispatch), kF), 3);
  EXPECT_EQ(issued_kernels(shape(kDispatch), kG), 0);  // nothing to do
  SegmentShape attention = shape(kAttention);
  EXPECT_EQ(issued_kernels(attention, kF), 2);
  attention.rotary = true;
  EXPECT_EQ(issued_kernels(attention, kB), 5);
}

// arXiv 1909.08053's: two products, a softmax, copies of q, k and v or of what comes out.
TEST(IssuedKernels, OfAttentionWrittenOutAreMore) {
  const model::Framework written{.attention = model::AttentionKernel::kExplicit},
      dropped{.attention = model::AttentionKernel::kExplicit, .dropout = true};
  EXPECT_EQ(issued_kernels(shape(kAttention), kF, written), 2 + 1 + 3);
  EXPECT_EQ(issued_kernels(shape(kAttention), kB, written), 4 + 1 + 3);
  EXPECT_EQ(issued_kernels(shape(kAttention), kF, dropped), 7);
  EXPECT_EQ(issued_kernels(shape(kAttention), kB, dropped), 9);
}

}  // namespace
}  // namespace orrery::costmodel

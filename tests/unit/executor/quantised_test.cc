// Codes and scales of quantised operands: against values by hand, and for many numbers against a
// search through all codes, which knows nothing of how they are found. Products against fp32.
#include "executor/quantised/quantised.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "executor/segments/segments.h"

namespace orrery::executor {
namespace {

using model::Format;
using model::Phase;
using enum ProductOperand;

/// The number of a code, from the formats' definitions: sign, exponent, fraction.
float number_of(Code code, unsigned byte) {
  const int exponent_bits = code == Code::kE4M3 ? 4 : code == Code::kE5M2 ? 5 : 2;
  const int fraction_bits = code == Code::kE4M3 ? 3 : code == Code::kE5M2 ? 2 : 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned fraction = byte & ((1U << fraction_bits) - 1),
                 exponent = (byte >> fraction_bits) & ((1U << exponent_bits) - 1);
  const double m = static_cast<double>(fraction) / (1 << fraction_bits);
  const double a = exponent == 0 ? std::ldexp(m, 1 - bias)
                                 : std::ldexp(1 + m, static_cast<int>(exponent) - bias);
  const bool negative = (byte >> (fraction_bits + exponent_bits)) & 1U;
  return static_cast<float>(negative ? -a : a);
}
/// Positive codes in ascending order end here.
unsigned last_code(Code code) {
  return code == Code::kE4M3 ? 0x7e : code == Code::kE5M2 ? 0x7b : 7;
}
unsigned nearest(Code code, float x) {
  const double a = std::abs(static_cast<double>(x));
  unsigned best = 0;
  for (unsigned c = 1; c <= last_code(code); ++c) {
    const double now = std::abs(number_of(code, c) - a),
                 before = std::abs(number_of(code, best) - a);
    if (now < before || (now == before && c % 2 == 0)) best = c;
  }
  const unsigned sign = code == Code::kE2M1 ? 8 : 0x80;
  return std::signbit(x) ? best | sign : best;
}

TEST(Codes, AreTheNearestNumbersTiesToEvenAndSaturate) {
  at::manual_seed(5);
  for (const Code code : {Code::kE4M3, Code::kE5M2, Code::kE2M1}) {
    const float largest = number_of(code, last_code(code));
    EXPECT_EQ(largest, largest_of(code));
    EXPECT_EQ(encode(code, std::numeric_limits<float>::infinity()), last_code(code));
    std::vector<float> numbers{0.0F, -0.0F, 2 * largest, -3 * largest, 1e-30F};
    // every number of the format, every tie between two, and both sides of it
    for (unsigned c = 0; c < last_code(code); ++c) {
      const float tie = (number_of(code, c) + number_of(code, c + 1)) / 2;
      for (const float x : {number_of(code, c), tie, std::nextafter(tie, 0.0F),
                            std::nextafter(tie, 2 * largest), -tie})
        numbers.push_back(x);
    }
    const at::Tensor random = at::randn({2000}).mul_(at::randn({2000}).mul_(4).exp_());
    numbers.insert(numbers.end(), random.const_data_ptr<float>(),
                   random.const_data_ptr<float>() + 2000);
    for (const float x : numbers) {
      ASSERT_EQ(encode(code, x), nearest(code, x)) << x << " in code " << as_int(code);
      EXPECT_EQ(decode(code, encode(code, x)), number_of(code, nearest(code, x)));
    }
  }
}

TEST(Codes, ByHand) {
  EXPECT_EQ(encode(Code::kE4M3, 448), 0x7e);
  EXPECT_EQ(encode(Code::kE4M3, 1e9F), 0x7e);
  EXPECT_EQ(encode(Code::kE4M3, 1), 0x38);
  EXPECT_EQ(encode(Code::kE4M3, 1.0625F), 0x38);   // a tie: 1 and 1.125
  EXPECT_EQ(encode(Code::kE4M3, 1.1875F), 0x3a);   // a tie: 1.125 and 1.25
  EXPECT_EQ(encode(Code::kE4M3, 0x1p-9F), 0x01);   // the smallest
  EXPECT_EQ(encode(Code::kE4M3, 0x1p-10F), 0x00);  // a tie: 0 and the smallest
  EXPECT_EQ(encode(Code::kE5M2, 57344), 0x7b);
  EXPECT_EQ(encode(Code::kE5M2, 0x1p-16F), 0x01);
  EXPECT_EQ(encode(Code::kE2M1, 5), 6);           // a tie: 4 and 6
  EXPECT_EQ(encode(Code::kE2M1, 2.5F), 4);        // a tie: 2 and 3
  EXPECT_EQ(encode(Code::kE2M1, -0.75F), 8 | 2);  // a tie: 1/2 and 1
}

at::Tensor bytes_for(const Coding& c, const at::Tensor& x) {
  return at::zeros({x.size(0), c.row_bytes(x.size(1))}, at::kByte);
}
std::vector<int> row_of(const at::Tensor& bytes, std::int64_t row) {
  std::vector<int> all;
  for (std::int64_t i = 0; i < bytes.size(1); ++i)
    all.push_back(bytes.const_data_ptr<std::uint8_t>()[row * bytes.size(1) + i]);
  return all;
}
float number_at(const at::Tensor& bytes, std::int64_t row, std::int64_t at) {
  float x = 0;
  std::memcpy(&x, bytes.const_data_ptr<std::uint8_t>() + row * bytes.size(1) + at, 4);
  return x;
}

TEST(Quantise, ATensorHasOneScale) {
  at::Tensor x = at::zeros({1, 4});
  float* v = x.mutable_data_ptr<float>();
  v[0] = 7;
  v[1] = -3.5F;
  v[2] = 0.1F;
  const Coding c = coding_of(Format::kFp8Current, kInput);
  const at::Tensor bytes = bytes_for(c, x);
  EXPECT_EQ(largest_magnitude(x), 7);
  EXPECT_EQ(quantise(c, x, 7, bytes), 1.0F / 64);  // 448 / 7 = 64
  // 448, -224, 6.4 -> 6.5
  EXPECT_THAT(row_of(bytes, 0), ::testing::ElementsAre(0x7e, 0xf6, 0x4d, 0));
  at::Tensor back = at::empty({1, 4});
  dequantise(c, bytes, 1.0F / 64, back);
  EXPECT_EQ(back.const_data_ptr<float>()[2], 6.5F / 64);
  // Gradients are E5M2: 57344 / 7 = 8192
  EXPECT_EQ(quantise(coding_of(Format::kFp8Current, kGradient), x, 7, bytes), 1.0F / 8192);
  EXPECT_EQ(row_of(bytes, 0)[0], 0x7b);
  EXPECT_EQ(quantise(c, at::zeros({1, 4}), 0, bytes), 1);
}

TEST(Quantise, MicroscalingBlocksHavePowersOfTwo) {
  at::Tensor x = at::zeros({1, 96});
  float* v = x.mutable_data_ptr<float>();
  v[0] = 500;  // 500 / 448 > 1: 2^1
  v[31] = 1;
  v[32] = 448;     // 2^0
  v[64] = 0.875F;  // 448 / 2^9
  const Coding c = coding_of(Format::kMxFp8, kInput);
  const at::Tensor bytes = bytes_for(c, x);
  ASSERT_EQ(bytes.size(1), 96 + 3);
  EXPECT_EQ(quantise(c, x, 0, bytes), 1);
  const std::vector<int> row = row_of(bytes, 0);
  EXPECT_EQ(row[0], 0x78);   // 250 -> 256
  EXPECT_EQ(row[31], 0x30);  // 1/2
  EXPECT_EQ(row[32], 0x7e);
  EXPECT_EQ(row[64], 0x7e);
  EXPECT_EQ(std::vector<int>(row.begin() + 96, row.end()), (std::vector<int>{128, 127, 118}));
}

TEST(Quantise, BlocksOfWeightsAreSquare) {
  at::Tensor x = at::zeros({130, 256});
  float* v = x.mutable_data_ptr<float>();
  v[127 * 256 + 3] = 896;           // block (0, 0): 2
  v[0 * 256 + 200] = -448 * 0.25F;  // block (0, 1): 1/4
  v[129 * 256 + 255] = 449;         // block (1, 1), of two rows: 2
  const Coding c = coding_of(Format::kFp8Block, kWeight);
  const at::Tensor bytes = bytes_for(c, x);
  ASSERT_EQ(bytes.size(1), 256 + 2 * 4);
  quantise(c, x, 0, bytes);
  EXPECT_EQ(number_at(bytes, 0, 256), 2);
  EXPECT_EQ(number_at(bytes, 127, 256), 2);
  EXPECT_EQ(number_at(bytes, 5, 260), 0.25F);
  EXPECT_EQ(number_at(bytes, 128, 256), 1);  // nothing but zeros
  EXPECT_EQ(number_at(bytes, 128, 260), 2);
  EXPECT_EQ(row_of(bytes, 0)[200], 0xfe);
  // both ways the same numbers
  const at::Tensor t = at::zeros({256, c.row_bytes(130)}, at::kByte);
  quantise(c, x.t(), 0, t);
  at::Tensor rows = at::empty({130, 256}), columns = at::empty({256, 130});
  dequantise(c, bytes, 1, rows);
  dequantise(c, t, 1, columns);
  EXPECT_TRUE(at::equal(rows, columns.t()));
}

TEST(Quantise, FourBitsHaveTwoScales) {
  at::Tensor x = at::zeros({1, 32});
  float* v = x.mutable_data_ptr<float>();
  v[0] = 6;  // the tensor's largest: 448 * 6 / 6 = 448, block 6 / 6 * 448 = 448
  v[1] = -1.4F;
  v[16] = 3;  // block 3 / 6 * 448 = 224
  v[17] = 1.2F;
  const Coding c = coding_of(Format::kNvFp4, kInput);
  const at::Tensor bytes = bytes_for(c, x);
  ASSERT_EQ(bytes.size(1), 16 + 2);
  EXPECT_EQ(quantise(c, x, 6, bytes), 1.0F / 448);
  const std::vector<int> row = row_of(bytes, 0);
  EXPECT_EQ(row[0], 0x07 | (8 | 3) << 4);  // 6, -1.4 -> -1.5
  EXPECT_EQ(row[8], 0x07 | 0x4 << 4);      // 3 -> 6, 1.2 -> 2.4 -> 2
  EXPECT_EQ(row[16], 0x7e);
  EXPECT_EQ(row[17], 0x76);
  at::Tensor back = at::empty({1, 32});
  dequantise(c, bytes, 1.0F / 448, back);
  EXPECT_FLOAT_EQ(back.const_data_ptr<float>()[0], 6);
  EXPECT_FLOAT_EQ(back.const_data_ptr<float>()[17], 1);
}

TEST(Quantise, EqualInputsGiveEqualBytes) {
  at::manual_seed(11);
  const at::Tensor x = at::randn({64, 256}), narrow = x.to(at::kBFloat16);
  for (const Format f : {Format::kFp8Current, Format::kFp8Block, Format::kMxFp8, Format::kNvFp4}) {
    const Coding c = coding_of(f, kInput);
    const at::Tensor one = bytes_for(c, x), two = bytes_for(c, x), wide = bytes_for(c, x);
    const float largest = largest_magnitude(narrow);
    const float scale = quantise(c, narrow, largest, one);
    EXPECT_EQ(quantise(c, narrow.t().contiguous().t(), largest, two), scale);
    EXPECT_EQ(quantise(c, narrow.to(at::kFloat), largest, wide), scale);
    EXPECT_TRUE(at::equal(one, two));
    EXPECT_TRUE(at::equal(one, wide));
    // half an ulp of E4M3 is a 16th, of E2M1 a quarter; a scale beside it at most a 16th more
    at::Tensor back = at::empty(x.sizes());
    dequantise(c, one, scale, back);
    const double error = ((back - narrow.to(at::kFloat)).norm() / narrow.norm()).item<double>();
    EXPECT_LT(error, f == Format::kNvFp4 ? 0.12 : 0.03);
    EXPECT_GT(error, 0.01);
  }
}

/// y, dx and dW of numbers that every format has: what fp32 gives, exactly.
TEST(QuantisedProducts, OfNumbersThatTheFormatHasAreExact) {
  at::manual_seed(2);
  constexpr std::int64_t kRows = 128;
  const auto numbers = [](at::IntArrayRef shape) {
    at::Tensor x = at::randn(shape).sign_();  // -1 and 1
    return x.to(at::kBFloat16);
  };
  for (const Format f : {Format::kFp8Current, Format::kFp8Block, Format::kMxFp8, Format::kNvFp4}) {
    model::SegmentShape s;
    s.kind = model::SegmentKind::kQkv;
    s.dtype = model::DType::kBFloat16;
    s.sequences = 1;
    s.tokens = kRows;
    s.in = 128;
    s.out = 256;
    s.format = f;
    s.quantises_input = s.quantises_weights = true;
    const at::Tensor x = numbers({1, kRows, 128}), w = numbers({256, 128}),
                     dy = numbers({1, kRows, 256});
    Quantisation quantisation;
    SegmentContext context;
    context.quantisation = &quantisation;
    const auto output = [](std::vector<std::int64_t> shape) {
      Output o;
      o.shape = std::move(shape);
      o.dtype = model::DType::kBFloat16;
      return o;
    };
    const auto wide = [](const at::Tensor& t) { return t.view({-1, t.size(-1)}).to(at::kFloat); };
    Operands forward;
    forward.reads = {x};
    forward.writes = {output({1, kRows, 256})};
    forward.weights = {w};
    ASSERT_TRUE(run_segment(s, Phase::kF, forward, context));
    EXPECT_TRUE(at::equal(wide(forward.writes[0].tensor), at::mm(wide(x), wide(w).t())));
    Operands backward;
    backward.reads = {dy, x};
    backward.writes = {output({1, kRows, 128})};
    backward.weights = {w};
    backward.gradients = {at::full({256, 128}, 3.0F)};
    ASSERT_TRUE(run_segment(s, Phase::kBG, backward, context));
    EXPECT_TRUE(at::equal(wide(backward.writes[0].tensor), at::mm(wide(dy), wide(w))));
    EXPECT_TRUE(at::equal(backward.gradients[0], at::mm(wide(dy).t(), wide(x)) + 3));
  }
}

}  // namespace
}  // namespace orrery::executor

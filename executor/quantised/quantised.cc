#include "executor/quantised/quantised.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::executor {
namespace {

constexpr float kLargestE4M3 = 448, kLargestE5M2 = 57344, kLargestE2M1 = 6;

/// How many of the midpoints of neighbouring numbers lie below: a tie goes to the even code.
std::uint8_t encode_e2m1(float x) {
  const float a = std::abs(x) < kLargestE2M1 ? std::abs(x) : kLargestE2M1;  // NaN: there is none
  const int steps = int{a > 0.25F} + int{a >= 0.75F} + int{a > 1.25F} + int{a >= 1.75F} +
                    int{a > 2.5F} + int{a >= 3.5F} + int{a > 5};
  return static_cast<std::uint8_t>(static_cast<unsigned>(steps) | (std::signbit(x) ? 8U : 0U));
}
float decode_e2m1(std::uint8_t code) {
  constexpr float kNumbers[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, kLargestE2M1};
  const float a = kNumbers[code & 7U];
  return (code & 8U) != 0 ? -a : a;
}

/// Saturates.
std::uint8_t encode_e4m3(float x) {
  return c10::Float8_e4m3fn(std::clamp(x, -kLargestE4M3, kLargestE4M3)).x;
}
std::uint8_t encode_e5m2(float x) {
  return c10::Float8_e5m2(std::clamp(x, -kLargestE5M2, kLargestE5M2)).x;
}

float decode_power(std::uint8_t biased) { return std::ldexp(1.0F, int{biased} - 127); }

/// A scale of a block: what its codes are multiplied by, and its bytes.
struct BlockScale {
  float value = 1;
  std::array<std::byte, 4> bytes{};
};

/// 2^e, the smallest with largest / 2^e <= 448 = 0.875 * 2^9.
BlockScale power_of_two(float largest, std::int64_t bytes) {
  int exponent = 0;
  const float fraction = std::frexp(largest, &exponent);  // in [1/2, 1)
  int e = exponent - 9 + (fraction > 0.875F ? 1 : 0);
  if (bytes == 4) {
    e = largest == 0 ? 0 : std::max(e, -126);  // fp32 without subnormal numbers
    BlockScale scale{.value = std::ldexp(1.0F, e)};
    std::memcpy(scale.bytes.data(), &scale.value, 4);
    return scale;
  }
  const auto biased = static_cast<std::uint8_t>(largest == 0 ? 0 : std::clamp(e + 127, 0, 254));
  return {.value = decode_power(biased), .bytes = {std::byte{biased}}};
}
BlockScale e4m3_scale(float largest, float encoding) {
  const std::uint8_t code = encode(Code::kE4M3, largest / kLargestE2M1 * encoding);
  return {.value = decode(Code::kE4M3, code), .bytes = {std::byte{code}}};
}

float read_scale(const Coding& c, const std::byte* at) {
  if (c.scale_bytes == 4) {
    float value = 0;
    std::memcpy(&value, at, 4);
    return value;
  }
  const auto byte = static_cast<std::uint8_t>(*at);
  return c.code == Code::kE2M1 ? decode(Code::kE4M3, byte) : decode_power(byte);
}

/// Rows [row, row + n) of a matrix, which may lie by columns, as dense fp32.
template <class T>
void fetch(const at::Tensor& x, std::int64_t row, std::int64_t n, float* to) {
  const std::int64_t columns = x.size(1), down = x.stride(0), along = x.stride(1);
  const T* const from = x.const_data_ptr<T>() + row * down;
  if (along == 1) {
    for (std::int64_t r = 0; r < n; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        to[r * columns + c] = static_cast<float>(from[r * down + c]);
    return;
  }
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = 0; r < n; ++r)
      to[r * columns + c] = static_cast<float>(from[r * down + c * along]);
}
void fetch(const at::Tensor& x, std::int64_t row, std::int64_t n, float* to) {
  if (x.scalar_type() == at::kFloat) return fetch<float>(x, row, n, to);
  return fetch<at::BFloat16>(x, row, n, to);
}

/// max |x| but for NaN. Of floats without a sign the larger has the larger bits: compilers know how
/// to compare several of those at once.
float largest_among(const float* x, std::int64_t n) {
  constexpr std::int32_t kInfinity = 0x7f800000;
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t bits = std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff,
                       number = bits > kInfinity ? 0 : bits;
    largest = number > largest ? number : largest;
  }
  return std::bit_cast<float>(largest);
}

void encode_all(Code code, const float* x, std::int64_t n, float factor, std::uint8_t* to) {
  switch (code) {
    case Code::kE4M3:
      for (std::int64_t i = 0; i < n; ++i) to[i] = encode_e4m3(x[i] * factor);
      return;
    case Code::kE5M2:
      for (std::int64_t i = 0; i < n; ++i) to[i] = encode_e5m2(x[i] * factor);
      return;
    case Code::kE2M1:  // two a byte
      for (std::int64_t i = 0; i + 1 < n; i += 2) {
        const unsigned low = encode_e2m1(x[i] * factor), high = encode_e2m1(x[i + 1] * factor);
        to[i / 2] = static_cast<std::uint8_t>(low | high << 4U);
      }
      if (n % 2 != 0) to[n / 2] = encode_e2m1(x[n - 1] * factor);
      return;
  }
}

/// Rows of one height of blocks: x [n, columns] dense. `encoding`: what the tensor's scale
/// multiplies by.
void quantise_blocks(const Coding& coding, const float* x, std::int64_t n, std::int64_t columns,
                     float encoding, std::uint8_t* bytes) {
  const std::int64_t stride = coding.row_bytes(columns);
  std::uint8_t* const scales = bytes + coding.code_bytes(columns);
  for (std::int64_t c = 0; c < columns; c += coding.block) {
    const std::int64_t width = std::min(coding.block, columns - c);
    float largest = 0;
    for (std::int64_t r = 0; r < n; ++r)
      largest = std::max(largest, largest_among(x + r * columns + c, width));
    const BlockScale scale = coding.of_tensor ? e4m3_scale(largest, encoding)
                                              : power_of_two(largest, coding.scale_bytes);
    // a block that is nothing beside its tensor has no codes
    const float factor = scale.value == 0 ? 0 : encoding / scale.value;
    for (std::int64_t r = 0; r < n; ++r) {
      encode_all(coding.code, x + r * columns + c, width, factor,
                 bytes + r * stride + coding.code_bytes(c));
      std::memcpy(scales + r * stride + c / coding.block * coding.scale_bytes, scale.bytes.data(),
                  as_index(coding.scale_bytes));
    }
  }
}

float encoding_of(const Coding& c, float largest) {
  if (!c.of_tensor || largest == 0) return 1;
  return std::min(c.reach() / largest, std::numeric_limits<float>::max());
}

}  // namespace

float Coding::reach() const {
  return block == 0 ? largest_of(code) : largest_of(Code::kE4M3) * largest_of(code);
}

float largest_of(Code code) {
  constexpr float kLargest[] = {kLargestE4M3, kLargestE5M2, kLargestE2M1};
  return kLargest[as_int(code)];
}

std::uint8_t encode(Code code, float x) {
  switch (code) {
    case Code::kE4M3: return encode_e4m3(x);
    case Code::kE5M2: return encode_e5m2(x);
    case Code::kE2M1: return encode_e2m1(x);
  }
  ORRERY_CHECK(false, "code out of range");
}

float decode(Code code, std::uint8_t byte) {
  if (code == Code::kE2M1) return decode_e2m1(byte);
  if (code == Code::kE4M3) return c10::Float8_e4m3fn(byte, c10::Float8_e4m3fn::from_bits());
  return c10::Float8_e5m2(byte, c10::Float8_e5m2::from_bits());
}

Coding coding_of(model::Format format, ProductOperand operand) {
  const bool weight = operand == ProductOperand::kWeight;
  switch (format) {
    case model::Format::kFp8Delayed:
    case model::Format::kFp8Current:
      return {.code = operand == ProductOperand::kGradient ? Code::kE5M2 : Code::kE4M3,
              .of_tensor = true};
    case model::Format::kFp8Block:
      return {.block = 128, .rows = weight ? 128 : 1, .scale_bytes = 4};
    case model::Format::kMxFp8: return {.block = 32, .scale_bytes = 1};
    case model::Format::kNvFp4:
      return {.code = Code::kE2M1,
              .of_tensor = true,
              .block = 16,
              .rows = weight ? 16 : 1,
              .scale_bytes = 1};
    case model::Format::kNone: break;
  }
  ORRERY_CHECK(false, "no format {}", as_int(format));
}

float largest_magnitude(const at::Tensor& x) {
  const at::Tensor rows = x.dim() == 2 ? x : x.view({1, -1});
  std::vector<float> row(as_index(rows.size(1)));
  float largest = 0;
  for (std::int64_t r = 0; r < rows.size(0); ++r) {
    fetch(rows, r, 1, row.data());
    largest = std::max(largest, largest_among(row.data(), rows.size(1)));
  }
  return largest;
}

float quantise(const Coding& coding, const at::Tensor& x, float largest, const at::Tensor& bytes) {
  const std::int64_t rows = x.size(0), columns = x.size(1), stride = coding.row_bytes(columns);
  ORRERY_CHECK(bytes.is_contiguous() && bytes.numel() == rows * stride);
  const float encoding = encoding_of(coding, largest);
  constexpr std::int64_t kFetched = 16;  // at least: numbers that lie by columns share cache lines
  const std::int64_t most = ceil_div(kFetched, coding.rows) * coding.rows;
  std::vector<float> fetched(as_index(std::min(most, rows) * columns));
  for (std::int64_t row = 0; row < rows; row += most) {
    const std::int64_t n = std::min(most, rows - row);
    fetch(x, row, n, fetched.data());
    std::uint8_t* const to = bytes.mutable_data_ptr<std::uint8_t>() + row * stride;
    if (coding.block == 0) {
      encode_all(coding.code, fetched.data(), n * columns, encoding, to);
      continue;
    }
    for (std::int64_t r = 0; r < n; r += coding.rows)
      quantise_blocks(coding, fetched.data() + r * columns, std::min(coding.rows, n - r), columns,
                      encoding, to + r * stride);
  }
  return 1 / encoding;
}

void dequantise(const Coding& coding, const at::Tensor& bytes, float tensor_scale,
                const at::Tensor& x) {
  ORRERY_CHECK(bytes.is_contiguous() && x.is_contiguous());
  const std::int64_t rows = x.size(0), columns = x.size(1), stride = coding.row_bytes(columns),
                     block = coding.block == 0 ? columns : coding.block;
  ORRERY_CHECK(bytes.numel() == rows * stride);
  std::array<float, 256> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = decode(coding.code, static_cast<std::uint8_t>(i));
  const bool halves = coding.code == Code::kE2M1;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint8_t* const row = bytes.const_data_ptr<std::uint8_t>() + r * stride;
    const auto* const scales = reinterpret_cast<const std::byte*>(row) + coding.code_bytes(columns);
    float* const to = x.mutable_data_ptr<float>() + r * columns;
    for (std::int64_t first = 0; first < columns; first += block) {
      float scale = tensor_scale;
      if (coding.block > 0)
        scale *= read_scale(coding, scales + first / block * coding.scale_bytes);
      const std::int64_t end = std::min(first + block, columns);
      for (std::int64_t c = first; c < end && !halves; ++c) to[c] = numbers[row[c]] * scale;
      for (std::int64_t c = first; c < end && halves; c += 2) {  // a block begins with a byte
        const std::uint8_t pair = row[c / 2];
        to[c] = numbers[pair & 15U] * scale;
        if (c + 1 < end) to[c + 1] = numbers[pair >> 4U] * scale;
      }
    }
  }
}

at::Tensor Quantisation::floats(std::size_t place, at::IntArrayRef shape) {
  std::vector<float>& numbers = scratch_[place];
  numbers.resize(std::max(numbers.size(), as_index(c10::multiply_integers(shape))));
  return at::from_blob(numbers.data(), shape, at::TensorOptions().dtype(at::kFloat));
}

}  // namespace orrery::executor

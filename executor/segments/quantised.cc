#include "executor/segments/quantised.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::executor {
namespace {

constexpr float kLargestE2M1 = 6;

/// Steps of 1/2 up to 2, of 1 up to 4, of 2 up to 6: codes count them, so that ties go to even.
std::uint8_t encode_e2m1(float x) {
  const float a = std::abs(x) < kLargestE2M1 ? std::abs(x) : kLargestE2M1;  // NaN: there is none
  float steps = std::nearbyint(2 * a);
  if (a > 4)
    steps = 6 + std::nearbyint((a - 4) / 2);
  else if (a > 2)
    steps = 2 + std::nearbyint(a);
  return static_cast<std::uint8_t>(static_cast<unsigned>(steps) | (std::signbit(x) ? 8U : 0U));
}
float decode_e2m1(std::uint8_t code) {
  constexpr float kNumbers[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, kLargestE2M1};
  const float a = kNumbers[code & 7U];
  return (code & 8U) != 0 ? -a : a;
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

/// Numbers of a matrix, which may lie by columns.
template <class T>
struct Matrix {
  const T* data;
  std::int64_t rows, columns, row_stride, column_stride;
  explicit Matrix(const at::Tensor& x)
      : data(x.const_data_ptr<T>()),
        rows(x.size(0)),
        columns(x.size(1)),
        row_stride(x.stride(0)),
        column_stride(x.stride(1)) {}
  float at(std::int64_t r, std::int64_t c) const {
    return static_cast<float>(data[r * row_stride + c * column_stride]);
  }
};

/// Rows and columns under one scale.
struct Part {
  std::int64_t row, end_row, column, end_column;
};

template <class T>
float largest_in(const Matrix<T>& x, const Part& p) {
  float largest = 0;
  for (std::int64_t r = p.row; r < p.end_row; ++r)
    for (std::int64_t c = p.column; c < p.end_column; ++c)
      largest = std::max(largest, std::abs(x.at(r, c)));
  return largest;
}

template <class T>
void encode_part(const Coding& coding, const Matrix<T>& x, const Part& p, float factor,
                 std::uint8_t* bytes, std::int64_t stride) {
  for (std::int64_t r = p.row; r < p.end_row; ++r) {
    std::uint8_t* const row = bytes + r * stride;
    for (std::int64_t c = p.column; c < p.end_column; ++c) {
      const std::uint8_t code = encode(coding.code, x.at(r, c) * factor);
      if (coding.code != Code::kE2M1)
        row[c] = code;
      else if (c % 2 == 0)
        row[c / 2] = code;
      else
        row[c / 2] = static_cast<std::uint8_t>(row[c / 2] | code << 4U);
    }
  }
}

/// `encoding`: what the tensor's scale multiplies by.
template <class T>
void quantise_matrix(const Coding& coding, const Matrix<T>& x, float encoding,
                     std::uint8_t* bytes) {
  const std::int64_t stride = coding.row_bytes(x.columns);
  if (coding.block == 0)
    return encode_part(coding, x, {0, x.rows, 0, x.columns}, encoding, bytes, stride);
  for (std::int64_t r = 0; r < x.rows; r += coding.rows) {
    for (std::int64_t c = 0; c < x.columns; c += coding.block) {
      const Part part{r, std::min(r + coding.rows, x.rows), c,
                      std::min(c + coding.block, x.columns)};
      const float largest = largest_in(x, part);
      const BlockScale scale = coding.of_tensor ? e4m3_scale(largest, encoding)
                                                : power_of_two(largest, coding.scale_bytes);
      // a block that is nothing beside its tensor has no codes
      const float factor = scale.value == 0 ? 0 : encoding / scale.value;
      encode_part(coding, x, part, factor, bytes, stride);
      for (std::int64_t row = r; row < part.end_row; ++row)
        std::memcpy(bytes + row * stride + coding.code_bytes(x.columns) +
                        c / coding.block * coding.scale_bytes,
                    scale.bytes.data(), as_index(coding.scale_bytes));
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
  constexpr float kLargest[] = {448, 57344, kLargestE2M1};
  return kLargest[as_int(code)];
}

std::uint8_t encode(Code code, float x) {
  if (code == Code::kE2M1) return encode_e2m1(x);
  const float largest = largest_of(code), within = std::clamp(x, -largest, largest);
  return code == Code::kE4M3 ? c10::Float8_e4m3fn(within).x : c10::Float8_e5m2(within).x;
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
  const Part all{0, rows.size(0), 0, rows.size(1)};
  if (x.scalar_type() == at::kFloat) return largest_in(Matrix<float>(rows), all);
  return largest_in(Matrix<at::BFloat16>(rows), all);
}

float quantise(const Coding& coding, const at::Tensor& x, float largest, const at::Tensor& bytes) {
  ORRERY_CHECK(bytes.is_contiguous() && bytes.numel() == x.size(0) * coding.row_bytes(x.size(1)));
  const float encoding = encoding_of(coding, largest);
  auto* const to = bytes.mutable_data_ptr<std::uint8_t>();
  if (x.scalar_type() == at::kFloat)
    quantise_matrix(coding, Matrix<float>(x), encoding, to);
  else
    quantise_matrix(coding, Matrix<at::BFloat16>(x), encoding, to);
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
      for (std::int64_t c = first; c < std::min(first + block, columns); ++c) {
        const unsigned code = !halves ? row[c] : c % 2 == 0 ? row[c / 2] & 15U : row[c / 2] >> 4U;
        to[c] = numbers[code] * scale;
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

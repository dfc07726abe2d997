#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/numbers.h"

namespace orrery::model {

/// Element types of tensors that a Program moves. Blocks have a scale of their own: of 128 elements
/// in fp32 or of 32 in 8 bits (fp8), of 16 in 8 bits (fp4).
enum class DType : std::uint8_t {
  kFloat32,
  kBFloat16,
  kInt64,
  kFloat8,
  kFloat8Blocks,
  kFloat4Blocks
};

/// Bytes of one element times 32.
constexpr std::int64_t element_bytes_32(DType t) {
  constexpr std::int64_t kBytes[] = {128, 64, 256, 32, 33, 18};
  return kBytes[as_int(t)];
}
/// Of a type without blocks.
constexpr std::int64_t element_bytes(DType t) { return element_bytes_32(t) / 32; }
/// Of `elements` with their scales.
constexpr std::int64_t bytes_of(DType t, std::int64_t elements) {
  return ceil_div(elements * element_bytes_32(t), std::int64_t{32});
}

constexpr std::string_view to_string(DType t) {
  constexpr std::string_view kNames[] = {"fp32", "bf16",       "int64",
                                         "fp8",  "fp8 blocks", "fp4 blocks"};
  return kNames[as_int(t)];
}

/// What products are multiplied in; below the compute type, operands are quantised first. Recipes
/// of Transformer Engine and torchao (docs/models/precision.md): E4M3 or E2M1 with a scale for each
///
///   kFp8Delayed   tensor, from the maxima of steps before
///   kFp8Current   tensor, from its own maximum
///   kFp8Block     1 x 128 of activations, 128 x 128 of weights (DeepSeek-V3, arXiv 2412.19437)
///   kMxFp8        1 x 32 (OCP microscaling)
///   kNvFp4        1 x 16, and one for the tensor (arXiv 2509.25149)
enum class Format : std::uint8_t { kNone, kFp8Delayed, kFp8Current, kFp8Block, kMxFp8, kNvFp4 };
inline constexpr std::size_t kFormats = 6;

struct FormatTerms {
  DType element;  // of a quantised operand
  // a whole tensor is read for its maximum before any of it can be quantised
  bool scans = false;
  // norms and activations write quantised what they make
  bool fused = false;
};
constexpr FormatTerms terms_of(Format f) {
  constexpr FormatTerms kTerms[] = {
      {DType::kBFloat16, false, false},    {DType::kFloat8, false, true},
      {DType::kFloat8, true, false},       {DType::kFloat8Blocks, false, false},
      {DType::kFloat8Blocks, false, true}, {DType::kFloat4Blocks, true, false}};
  return kTerms[as_int(f)];
}

/// Training precision. Model states per parameter:
/// fp32: 4 parameter + 4 gradient + 8 Adam moments = 16 B;
/// bf16: 2 parameter + 4 fp32 gradient + 4 fp32 master + 8 Adam moments = 18 B;
/// below, bf16 with products of blocks in that format, and two quantised copies of their weights.
enum class Precision : std::uint8_t {
  kFloat32,
  kBFloat16,
  kFp8Delayed,
  kFp8Current,
  kFp8Block,
  kMxFp8,
  kNvFp4
};
inline constexpr Precision kLastPrecision = Precision::kNvFp4;

/// Type that parameters are stored and activations are computed in.
constexpr DType compute_dtype(Precision p) {
  return p == Precision::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}
/// Of products between norms and activations.
constexpr Format format_of(Precision p) {
  return p <= Precision::kBFloat16 ? Format::kNone
                                   : static_cast<Format>(as_int(p) - as_int(Precision::kBFloat16));
}
constexpr std::string_view to_string(Precision p) {
  constexpr std::string_view kNames[] = {"fp32",      "bf16",  "fp8-delayed", "fp8-current",
                                         "fp8-block", "mxfp8", "nvfp4"};
  return kNames[as_int(p)];
}
/// The name of the precision that has it; bf16's for none.
constexpr std::string_view to_string(Format f) {
  return to_string(static_cast<Precision>(as_int(f) + as_int(Precision::kBFloat16)));
}

}  // namespace orrery::model

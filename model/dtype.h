#pragma once
#include <cstdint>
#include <string_view>

#include "base/numbers.h"

namespace orrery::model {

/// Element types of tensors that a Program moves.
enum class DType : std::uint8_t { kFloat32, kBFloat16, kInt64 };

/// Bytes of one element.
constexpr std::int64_t element_bytes(DType t) {
  constexpr std::int64_t kBytes[] = {4, 2, 8};
  return kBytes[as_int(t)];
}

constexpr std::string_view to_string(DType t) {
  constexpr std::string_view kNames[] = {"fp32", "bf16", "int64"};
  return kNames[as_int(t)];
}

/// Training precision. Model states per parameter:
/// fp32: 4 parameter + 4 gradient + 8 Adam moments = 16 B;
/// bf16: 2 parameter + 4 fp32 gradient + 4 fp32 master + 8 Adam moments = 18 B.
enum class Precision : std::uint8_t { kFloat32, kBFloat16 };

/// Type that parameters are stored and activations are computed in.
constexpr DType compute_dtype(Precision p) {
  return p == Precision::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}
constexpr std::string_view to_string(Precision p) { return to_string(compute_dtype(p)); }

}  // namespace orrery::model

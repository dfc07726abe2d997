#pragma once
/// Weight gradients in bf16 whose product is rounded before it is added: in parts of so many rows,
/// which bounds the temporary.
#include <algorithm>
#include <cstdint>

namespace orrery::model {

/// Of a matrix [out, in].
constexpr std::int64_t rows_of_rounded_product(std::int64_t out, std::int64_t in) {
  constexpr std::int64_t kElements = 1 << 20;
  return std::clamp<std::int64_t>(kElements / in, 1, out);
}

}  // namespace orrery::model

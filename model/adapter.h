#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace orrery::model {

struct ModelSpec;

/// Low-rank adapters (Hu et al., LoRA, arXiv 2106.09685): beside each adapted product
///
///   y = x W + scale (x A) B,   A [in, rank], B [rank, out], B = 0 at first
///
/// and all weights but A and B are frozen (docs/models/adapters.md). The product of a fused matrix
/// (q, k and v; gate and up) has one A.
struct Adapter {
  std::int64_t rank = 0;  // 0: no adapters, and all weights are trained
  bool qkv = true, projection = true, mlp_in = true, mlp_out = true;
  bool operator==(const Adapter&) const = default;
  /// alpha / rank, of Megatron-Bridge's default alpha.
  [[nodiscard]] double scale() const { return 32.0 / static_cast<double>(rank); }
};

inline constexpr std::int64_t kLargestAdapter = 1 << 14;

/// "qkv,mlp-out": what is adapted, in order.
std::string targets_of(const Adapter& adapter);
/// Adapters of some products, by a list of names or "attention", "mlp", "all-linear". Error:
/// kNotFound for an unknown name.
base::Result<Adapter> adapter_of(std::int64_t rank, std::string_view targets);

/// The model with these adapters, all else frozen. Error: kUnsupported, naming what of its blocks
/// has no adapters here.
base::Result<ModelSpec> with_adapter(ModelSpec model, const Adapter& adapter);

}  // namespace orrery::model

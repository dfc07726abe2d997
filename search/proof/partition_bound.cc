#include "search/proof/partition_bound.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "base/numbers.h"
#include "search/partition/partition_prices.h"

namespace orrery::search {
namespace {

using plan::Dimension;
using plan::Operator;
using plan::Partition;
using plan::Sequence;

/// Every way to give an operator's dimensions and primitives so many bits.
class Extents {
 public:
  Extents(PartitionPrices& prices, const Operator& op, int bits)
      : prices_(prices), op_(op), bits_(bits) {}
  /// None: there is no way.
  std::optional<std::int64_t> least_ps(bool fused = false) {
    fused_ = fused;
    least_ps_.reset();
    for (int side = 0; 2 * side <= bits_; ++side)
      if (side == 0 || op_.space.primitives) split(0, side, bits_ - 2 * side);
    return least_ps_;
  }

 private:
  /// A primitive of 2^side x 2^side splits tokens, input and output features too.
  [[nodiscard]] int most(std::size_t i, int side) const {
    const Dimension d = op_.space.dimensions[i];
    const bool of_primitive =
        d == Dimension::kTokens || d == Dimension::kIn || d == Dimension::kOut;
    const int limit = i < op_.space.limits.size() ? op_.space.limits[i] : bits_;
    return limit - (of_primitive ? side : 0);
  }
  void split(std::size_t i, int side, int left) {
    if (i == op_.space.dimensions.size()) {
      if (left == 0) price(side);
      return;
    }
    const std::size_t before = sequence_.size();
    for (int count = 0; count <= std::min(left, most(i, side)); ++count) {
      split(i + 1, side, left - count);
      sequence_.push_back({.split = op_.space.dimensions[i]});
    }
    sequence_.resize(before);
  }
  void price(int side) {
    Sequence whole = sequence_;
    if (side > 0) whole.push_back({.k = side});
    const Partition p(std::move(whole));
    if (fused_ && !plan::can_fuse(p)) return;
    const OperatorPrice price = fused_ ? prices_.fused_attention(p) : prices_.price(op_, p);
    const std::int64_t ps = price.compute_ps();
    least_ps_ = std::min(least_ps_.value_or(ps), ps);
  }

  PartitionPrices& prices_;
  const Operator& op_;
  int bits_;
  Sequence sequence_;
  bool fused_ = false;  // attention in one operation
  std::optional<std::int64_t> least_ps_;
};

bool has_stages(const Space& space, std::int64_t layers, int p) {
  return space.fix_pp.value_or(p) == p && (p == 1 ? space.single_stage : space.pipeline) &&
         p <= layers && (!space.even_stages || layers % p == 0);
}

}  // namespace

std::optional<std::int64_t> least_layer_compute_ps(const costmodel::CostModel& cost, int bits,
                                                   std::int64_t sequences) {
  const std::int64_t tokens = cost.options().sequence;
  if (!check_partitionable(cost, bits, sequences, tokens)) return std::nullopt;
  PartitionPrices prices(cost, plan::layer_graph(cost.model(), sequences, tokens, /*skews=*/0),
                         bits);
  std::array<std::int64_t, plan::kStreamOut> least{};
  std::optional<std::int64_t> fused;
  for (int i = 0; i < plan::kStreamOut; ++i) {
    Extents extents(prices, prices.graph().operators[as_index(i)], bits);
    const auto ps = extents.least_ps();
    if (!ps) return std::nullopt;
    least[as_index(i)] = *ps;
    if (i == plan::kValueProduct) fused = extents.least_ps(true);
  }
  using enum plan::LayerOperator;
  const std::int64_t attention = least[kScoreProduct] + least[kSoftmaxOf] + least[kValueProduct],
                     all = std::accumulate(least.begin(), least.end(), std::int64_t{0});
  return all - attention + std::min(attention, fused.value_or(attention));
}

std::optional<std::int64_t> partition_bound_ps(const costmodel::CostModel& cost, const Space& space,
                                               std::int64_t global_batch) {
  const auto world = as_int(cost.topology().device_count());
  const std::int64_t layers = cost.model().layers;
  std::optional<std::int64_t> bound;
  if (!allows_partitions(space)) return bound;
  for (int bits = 1; bits <= plan::kMostBits; ++bits) {
    const int devices = 1 << bits, p = world / devices;
    if (p * devices != world || !has_stages(space, layers, p)) continue;
    for (std::int64_t m = 1; m <= global_batch; ++m) {
      if (global_batch % m != 0 || space.fix_micro_batches.value_or(m) != m) continue;
      const auto layer = least_layer_compute_ps(cost, bits, global_batch / m);
      if (!layer) continue;
      const std::int64_t stage = m % p == 0 ? layers / (p * kMostChunks) : layers / p,
                         way = std::max(0, p - 2) * std::max<std::int64_t>(1, stage),
                         step = (m * ((layers + p - 1) / p) + way) * *layer;
      bound = std::min(bound.value_or(step), step);
    }
  }
  return bound;
}

}  // namespace orrery::search

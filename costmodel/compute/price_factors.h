#pragma once
/// \file
/// A draw of what prices err by: each kind of work takes so many times its price. Where the factors
/// come from: costmodel/uncertainty/uncertainty.h. What they multiply:
///
///   products, attention   kernels of matrix products; of fused attention cores
///   streams               every other kernel: norms, activations, the loss, the optimizer,
///                         attention that is written out beside its products
///   launches              what a kernel costs the host, and what the host adds to a collective
///   in_hosts, fabric      communication of groups inside a host, of groups that span hosts:
///                         measured times, latencies, and the rates of links
///   operators             exp(operators · z), z ~ N(0, 1) for each shape and phase of a product
///                         or attention core by itself: a function of (seed, shape, phase)
///
/// A layer whose kernels the host cannot issue as fast as the device runs them takes
/// max(device · their factors, host · launches).
#include <cstdint>

#include "model/segment.h"

namespace orrery::costmodel {

enum class WorkKind : std::uint8_t { kProduct, kAttention, kStream };
WorkKind work_kind(model::SegmentKind kind);

struct PriceFactors {
  double products = 1, attention = 1, streams = 1, launches = 1, in_hosts = 1, fabric = 1;
  double operators = 0;  // of either sign: two draws that differ in it alone mirror each other
  std::uint64_t seed = 0;

  double of_kind(model::SegmentKind kind) const;
  double of_shape(const model::SegmentShape& shape, model::Phase phase) const;
  bool operator==(const PriceFactors&) const = default;
};

}  // namespace orrery::costmodel

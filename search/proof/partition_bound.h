#pragma once
/// \file
/// A lower bound of every plan of a space whose layers are partitioned in space and time
/// (loop/partitioned_plans.h), without the search: of p stages of d devices, m micro-batches and L
/// layers
///
///     step >= (m ⌈L/p⌉ + (p - 2) w) sum over operators of min over (c, s) of what it computes
///
/// with w = ⌊L/p⌋, where p divides m a kMostChunks-th of that, or 1. c_i id bits split its ith
/// dimension and primitives take 2 s of them, sum c + 2 s = log2 d: local extents and steps depend
/// on these numbers alone, in whatever order a sequence has them. Scores, softmax and values count
/// as one where that is less. The prices are those of search/partition, the enumeration is not.
#include <cstdint>
#include <optional>

#include "costmodel/cost_model.h"
#include "search/space/space.h"

namespace orrery::search {

/// Of one layer on 2^bits devices; none: an operator cannot be split so often.
std::optional<std::int64_t> least_layer_compute_ps(const costmodel::CostModel& cost, int bits,
                                                   std::int64_t sequences);
/// Over all families of the space; none: it has no such plan.
std::optional<std::int64_t> partition_bound_ps(const costmodel::CostModel& cost, const Space& space,
                                               std::int64_t global_batch);

}  // namespace orrery::search

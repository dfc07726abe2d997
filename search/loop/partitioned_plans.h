#pragma once
/// \file
/// Plans whose layers are partitioned operator by operator in space and time (`--space
/// ...,spatial-temporal`; plan/partition/partition.h), all alike, spread evenly over the pipeline.
///
/// Of p stages of d devices, m micro-batches and L layers, whatever the partition:
///
///     step >= (m ⌈L/p⌉ + (p - 2) w) c
///
/// with c what a layer computes at least on d devices (PartitionSearch::least_compute_ps), and w
/// layers of a stage: of one of up to kMostChunks virtual stages where p divides m. Families whose
/// bound cannot win are cut; of the others, least bound first, the fastest partition of a layer is
/// found (search/partition), with a weight of memory where the plan does not fit without, then what
/// ZeRO shards and the vocabulary's strategy, and the simulator decides (candidates.h). Where no
/// plan fits without that weight, layers that run again are looked at, too. What a layer takes
/// beside others is partition_prices.h's word: that of all partitions the one given is the fastest
/// in simulation is not proved.
#include <cstdint>
#include <optional>
#include <vector>

#include "search/costs/stage_model.h"
#include "search/loop/candidates.h"

namespace orrery::search {

/// Effort of a request, about milliseconds: one search on 64 devices, or twenty on 32.
inline constexpr std::int64_t kPartitionTicks = 6'000;

struct PartitionedPlans {
  std::vector<Finalist> found;           // those that fit and may win
  std::vector<Pruned> pruned;            // families that were not searched, or have nothing
  std::optional<std::int64_t> bound_ps;  // least bound of all families; none: there are none
};
/// @pre as uniform_plans(), and the space has partitions.
PartitionedPlans partitioned_plans(StageModel& stages, const PlanRequest& request,
                                   const Contest& known);

}  // namespace orrery::search

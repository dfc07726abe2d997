#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "topologies/topology.h"

namespace orrery::costmodel {

/// Neighbouring ranks on devices of one kind. `kind`: the first of the topology's device models
/// that says the same, for a type of host may be listed twice.
struct KindRun {
  int end = 0;  // rank behind the last
  std::size_t kind = 0;
};
std::vector<KindRun> kind_runs(const topologies::Topology& topology);

/// The run of a rank. @pre it is one of the topology's.
inline const KindRun* run_of(std::span<const KindRun> runs, int rank) {
  return &*std::ranges::upper_bound(runs, rank, {}, &KindRun::end);
}

}  // namespace orrery::costmodel

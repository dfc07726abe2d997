#pragma once
/// \file
/// Stages that see the same links, so that layers are priced once for all of them.
///
/// A window is the ranks [first, first + count). Two windows are alike when a one-to-one map of
/// links, keeping latency, rate and level (in a host, of the fabric), takes the route between ranks
/// i and j of the one to that between i and j of the other, for all i, j, and devices at equal
/// places are of one model. Loads and latencies of collectives inside a window depend on nothing
/// else (collectives.h), so their times are equal. Example: on a host of eight devices on one
/// switch the four pairs are alike; on two PCIe bridges of four so are {0..3} and {4..7}.
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "costmodel/closed_form/price_table.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

/// Not thread-safe.
class RankWindows {
 public:
  /// `topology` must outlive this object.
  explicit RankWindows(const topologies::Topology& topology) : topology_(topology) {}

  /// First rank of the first window like [first, first + count), among windows of whole equal hosts
  /// and those at multiples of `count` inside a host. Others stand for themselves. O(count² ·
  /// route) a window the first time.
  int canonical(int first, int count);

 private:
  using Picture = std::vector<std::int64_t>;
  int find(int first, int count);
  Picture picture(int first, int count) const;

  const topologies::Topology& topology_;
  PriceTable<1, int> windows_;                       // of (first, count)
  std::map<std::pair<int, int>, int> known_;         // (place in the host, count)
  std::map<std::pair<int, Picture>, int> first_of_;  // (count, what it looks like)
};

}  // namespace orrery::costmodel

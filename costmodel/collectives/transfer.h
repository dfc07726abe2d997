#pragma once
#include <cstdint>
#include <vector>

#include "topologies/topology.h"

namespace orrery::costmodel {

/// Load of one transfer on a link: how many of its unit flows cross it at once.
struct LinkLoad {
  topologies::LinkId link;
  std::int64_t flows = 0;
};

/// A communication operation of a whole rank class, as one weighted flow: on each of u ways that a
/// rank's bytes are split over (rings, peers) it sends `wire_bytes` at a common rate r; link l
/// carries flows(l) * r. Alone it takes latency + wire_bytes / bytes_per_second, rounded up to a
/// picosecond once.
///
/// Ring all-reduce of S bytes over n ranks on u rings: 2(n-1) steps of S/n bytes: wire_bytes =
/// 2(n-1)S/nu, latency = 2(n-1)α. All-gather, reduce-scatter: n-1 steps, S = the whole tensor.
/// All-to-all: S/n direct to each of n-1. Broadcast: S, pipelined, (n-1)α. wire_bytes is whole;
/// the time of the rest of a byte is part of the latency.
struct Transfer {
  std::int64_t latency_ps = 0;
  std::int64_t wire_bytes = 0;
  std::int64_t units = 1;  // u
  // alone on the fabric: min(measured cap, min over links capacity / flows)
  std::int64_t bytes_per_second = 0;
  std::int64_t rate_cap = 0;  // measured cap (profile), 0: none
  std::vector<LinkLoad> links = {};
  std::int64_t duration_ps() const;
};

}  // namespace orrery::costmodel

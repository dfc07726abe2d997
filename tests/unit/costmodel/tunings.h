#pragma once
/// A record of communication with round numbers, for tests.
#include "base/check.h"
#include "costmodel/collectives/collective_tuning.h"

namespace orrery::costmodel::tunings {

/// Base 10, 20, 40 us for LL, LL128, Simple; hops 1, 2, 4 us in a host, 10, 20, 40 us between
/// hosts; shares 1/2, 0.8, 1. Links of kind "nvlink" give half their rate. One NVLS channel with
/// chunks of 1 MB, at most four heads, half the rate beyond two hosts.
inline CollectiveTuning round_numbers() {
  auto t = parse_tuning(
      R"({"schema": "orrery.collective_tuning/1", "name": "round", "description": "for tests",
 "source": "none", "devices": [],
 "link_efficiency": {"nvlink": 0.5}, "network_overhead": "0 us", "channels": 1,
  "local_copy": "1000 GB/s",
 "ring": {"base": ["10 us", "20 us", "40 us"], "device_hop": ["1 us", "2 us", "4 us"],
  "pcie_hop": ["1 us", "2 us", "4 us"],
          "network_hop": ["10 us", "20 us", "40 us"], "rate": [0.5, 0.8, 1.0]},
 "tree": {"base": ["10 us", "20 us", "40 us"], "device_hop": ["1 us", "2 us", "4 us"],
  "pcie_hop": ["1 us", "2 us", "4 us"],
          "network_hop": ["10 us", "20 us", "40 us"], "rate": [0.5, 0.8, 1.0]},
 "nvls": {"efficiency": 0.5, "latency": "100 us", "network_hop": "20 us", "channels": 1,
  "tree_channels": 1, "chunk_bytes": 1000000, "min_ranks": 3,
          "max_heads": 4, "beyond_two_hosts": 0.5},
 "direct": {"base": ["5 us", "15 us", "30 us"], "rate": [0.5, 0.8, 1.0],
  "local_copy": "1000 GB/s"}})",
      "round.json");
  ORRERY_CHECK(t.has_value(), "{}", base::to_string(t.error()));
  return *std::move(t);
}

inline std::shared_ptr<const CollectiveTuning> library() {
  return std::make_shared<const CollectiveTuning>(round_numbers());
}

}  // namespace orrery::costmodel::tunings

#pragma once
/// What a topology is made of: vertices, directed links and the devices behind them. Units:
/// topology.h.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/numbers.h"
#include "base/units.h"
#include "topologies/fabric/fabric.h"

namespace orrery::topologies {

using LinkId = base::Id<struct LinkTag>;
using VertexId = base::Id<struct VertexTag>;

/// `Vertex::host` of a vertex that belongs to the fabric.
inline constexpr uint32_t kNoHost = std::numeric_limits<uint32_t>::max();

/// Peaks are dense (no structured sparsity). `peak_bf16` is the tensor peak with 16-bit inputs,
/// equal for fp16 and bf16 where a device has both; of a device that has fp16 only (TITAN RTX) it
/// is the fp16 peak, and `source` says so.
struct DeviceModel {
  std::string name;  ///< "A100-SXM4-80GB"
  base::FlopsPerSecond peak_fp32;
  base::FlopsPerSecond peak_bf16;
  base::BytesPerSecond memory_bandwidth;
  int64_t memory_bytes = 0;
  base::Seconds launch_overhead;
  base::Watts power = {};  ///< what it may draw under load; zero: not stated
  std::string source = {};
  base::FlopsPerSecond peak_fp8 = {}, peak_fp4 = {};  ///< zero: no such products
  base::Watts idle_power = {};  ///< what it draws with nothing to do; zero: not stated
  bool operator==(const DeviceModel&) const = default;
};

enum class VertexKind { kDevice, kSwitch, kNic, kHostBridge };
std::string_view to_string(VertexKind kind);

struct Vertex {
  VertexKind kind;
  std::string name;         ///< within its host: "gpu[3]"
  uint32_t host = kNoHost;  ///< kNoHost for fabric
};

/// Directed.
struct Link {
  VertexId from;
  VertexId to;
  int64_t bytes_per_second = 0;
  base::Seconds latency;
  std::string kind;  ///< "nvlink", "pcie", "ib", ...
};

/// A cluster of equal hosts under a regular tree of switches. Level 0 is the host with its cables;
/// blocks of a level hold whole blocks of the one below. A shift of all hosts by the hosts of a
/// block takes links of that level and those below to links of equal latency and rate, and routes
/// to routes as far as these links go.
struct HostCopies {
  std::vector<CopyLevel> levels;  ///< ascending in hosts and in links; one where a switch joins all

  uint32_t level_of(LinkId link) const {
    uint32_t level = count_of(levels) - 1;
    while (level > 0 && link.raw() < levels[level].first_link) --level;
    return level;
  }
  /// The link at the same place of another block.
  LinkId at_block(LinkId link, uint32_t block) const {
    const CopyLevel& level = levels[level_of(link)];
    return LinkId(level.first_link + block * level.links +
                  (link.raw() - level.first_link) % level.links);
  }
};

/// A link at another rate; 0: failed.
struct LinkRate {
  LinkId link;
  int64_t bytes_per_second = 0;
};

}  // namespace orrery::topologies

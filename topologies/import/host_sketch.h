#pragma once
/// Parts and links of one host in any order, for importers; `finish` puts them into the order of a
/// topology file.

#include <map>
#include <string>
#include <vector>

#include "topologies/import/topology_file.h"

namespace orrery::topologies {

// Latencies of links, as in the catalog.
inline constexpr base::Seconds kPcieHop(0.5 / 1e6), kNvlinkHop(0.3 / 1e6), kSocketHop(0.1 / 1e6);

/// A core that joins cards of this rate and never blocks.
FabricSpec core_fabric(int64_t bytes_per_second);

class HostSketch {
 public:
  /// A new part of the group `name`; the answer is a handle for join.
  uint32_t add(VertexKind kind, const std::string& name);
  /// A duplex link.
  void join(uint32_t a, uint32_t b, const std::string& kind, int64_t bytes_per_second,
            base::Seconds latency, const std::string& source);
  HostKind finish() const;
  uint32_t count(const std::string& name) const;

 private:
  struct HostPart {
    VertexKind kind;
    std::string name;
    uint32_t index;  // within its group
  };
  struct Join {
    uint32_t a, b;
    LinkGroup group;  // without ends
  };
  std::vector<HostPart> parts_;
  std::vector<Join> joins_;
  std::map<std::string, uint32_t> counts_;
};

}  // namespace orrery::topologies

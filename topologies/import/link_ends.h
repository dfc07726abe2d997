#pragma once
/// The ends of a link group in a topology file: "gpu" (the whole group), "gpu[3]", "gpu[0-3]".

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"
#include "topologies/import/topology_file.h"

namespace orrery::topologies {

/// "gpu", "gpu[3]" or "gpu[0-3]".
struct PartSelector {
  std::string_view name;
  std::optional<std::pair<long long, long long>> range;  // inclusive
  /// Whether it selects the vertex of this name; without a range all of the group.
  bool matches(std::string_view vertex_name) const;
};
/// Nothing for malformed text.
std::optional<PartSelector> parse_part_selector(std::string_view text);

/// Vertex indices within the host that the text under `key` selects, ascending; empty after a
/// fault. Errors: kNotFound (no such part), kOutOfRange (index beyond the group), kBadValue
/// (malformed).
std::vector<uint32_t> read_end(base::Reader& reader, std::string_view key,
                               const std::vector<PartGroup>& parts);

using Ends = std::vector<std::pair<uint32_t, uint32_t>>;

/// Neighbours of the longer list share one of the shorter: of 8 and 2, the first four go to the
/// first, the others to the second; of equally many {a0-b0, a1-b1, ...}. A part is not joined to
/// itself.
/// @pre one size divides the other.
Ends pair_grouped(const std::vector<uint32_t>& from, const std::vector<uint32_t>& to);

/// Every a with every b, by a then b; each unordered pair once, no part with itself: `from: gpu,
/// to: gpu` is a mesh.
Ends pair_all(const std::vector<uint32_t>& from, const std::vector<uint32_t>& to);

}  // namespace orrery::topologies

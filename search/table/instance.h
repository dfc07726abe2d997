#pragma once
/// \file
/// A user's own cost table: layers in order, options of each, transitions between neighbours, a
/// memory budget. Schema `orrery.instance/1` (docs/schemas.md), solved by instance_program.h,
/// checked by certificate_check.h.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/json_fwd.h"
#include "base/result.h"

namespace orrery::search {

struct InstanceOption {
  std::string name;
  std::int64_t time_ps = 0;
  std::int64_t memory_bytes = 0;
};

/// minimise Σ_i time_i(s_i) + Σ_i R_i(s_i, s_{i+1}) subject to Σ_i memory_i(s_i) <= budget, one
/// option s_i a layer.
struct Instance {
  std::int64_t budget_bytes = 0;
  std::vector<std::vector<InstanceOption>> layers;  // [layer][option], none empty
  // [boundary][from * options of the next layer + to]; one table: of every boundary; empty:
  // transitions are free
  std::vector<std::vector<std::int64_t>> transition_ps;
  [[nodiscard]] std::int64_t transition(std::size_t boundary, std::size_t from,
                                        std::size_t to) const {
    if (transition_ps.empty()) return 0;
    const auto& table = transition_ps[transition_ps.size() == 1 ? 0 : boundary];
    return table[from * layers[boundary + 1].size() + to];
  }
};

/// Option of each layer.
using OptionPath = std::vector<std::int32_t>;

/// Sums of the largest values over all layers stay below: 2^57 ps are 40 hours, 2^57 bytes 144 PB.
/// A product of two sums and a small factor then fits 128 bits.
inline constexpr std::int64_t kMaxInstanceTotal = std::int64_t{1} << 57;
/// Options over all layers.
inline constexpr std::int64_t kMaxInstanceSize = 1 << 20;
inline constexpr std::int64_t kMaxInstanceOptions = 1 << 10;

/// Reads the schema strictly. Errors: all faults of the file, each at line:column; totals at or
/// above kMaxInstanceTotal.
base::Result<Instance> read_instance(const base::Node& root);
base::Result<Instance> load_instance(const std::string& path);

}  // namespace orrery::search

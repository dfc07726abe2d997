#pragma once
/// Numbers of a topology file that take other values (`--set`), as if the file had been edited.
///
///     PART              FIELD
///     device            peak_fp32, peak_bf16, peak_fp8, peak_fp4, memory_bandwidth, memory,
///                       launch_overhead, power: of every device model
///     its name          the same of one: H100-SXM5-80GB.memory
///     a kind of link    bandwidth (one direction, all lanes of a link), latency: nvlink, pcie, ib;
///                       where the fabric's cables are of that kind, theirs too
///     fabric            bandwidth, latency (of a card's cable), switch_latency, oversubscription,
///     queue_pairs
///                       (of hashed paths), local_bandwidth, global_bandwidth
///
/// VALUE is a quantity with its unit as in the file, or a factor: `2x`.

#include <span>

#include "base/options.h"
#include "base/result.h"
#include "topologies/import/topology_file.h"

namespace orrery::topologies {

/// All faults at once: kNotFound (no such part or field, with what there is), kBadUnit,
/// kOutOfRange.
[[nodiscard]] base::Result<void> apply_settings(TopologyFile& file,
                                                std::span<const base::Setting> settings);

}  // namespace orrery::topologies

#pragma once
/// Values that several sections of a topology file have, with their bounds.

#include <cstdint>
#include <string_view>

#include "base/config.h"

namespace orrery::topologies {

/// Whole bytes per second of `lanes` lanes; one fault below 1 B/s or beyond what int64 and a double
/// hold exactly.
int64_t read_capacity(base::Reader& reader, std::string_view key, int64_t lanes);

/// Latencies and overheads: at most a second, far inside the simulator's range of time.
base::Seconds read_delay(base::Reader& reader, std::string_view key);

}  // namespace orrery::topologies

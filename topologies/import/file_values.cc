#include "topologies/import/file_values.h"

#include <cmath>

#include "base/numbers.h"

namespace orrery::topologies {

using base::ErrorCode;

int64_t read_capacity(base::Reader& reader, std::string_view key, int64_t lanes) {
  const base::BytesPerSecond bandwidth = reader.required_bandwidth(key);
  if (bandwidth.raw() == 0) return 1;  // already a fault
  const double total = bandwidth.raw() * real(lanes);
  if (total < 1 || total > 9e15) {
    reader.error(key, ErrorCode::kOutOfRange, "capacity of {} B/s is outside 1 B/s .. 9000 TB/s",
                 total);
    return 1;
  }
  // A datasheet's decimal fraction is exact to far better than half a byte.
  return std::llround(bandwidth.raw()) * lanes;
}

base::Seconds read_delay(base::Reader& reader, std::string_view key) {
  const base::Seconds delay = reader.required_seconds(key);
  if (delay.raw() <= 1) return delay;
  reader.error(key, ErrorCode::kOutOfRange, "{} of {} is more than one second", key, delay);
  return base::Seconds(0);
}

}  // namespace orrery::topologies

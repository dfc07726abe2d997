// Quantities from arbitrary text: refused, or finite and not negative.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/units.h"

namespace {

template <class Q>
void check(const orrery::base::Result<Q>& value) {
  if (!value) return;
  ORRERY_CHECK(std::isfinite(value->raw()) && value->raw() >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(orrery::base::parse_seconds(text));
  check(orrery::base::parse_bytes(text));
  check(orrery::base::parse_bandwidth(text));
  check(orrery::base::parse_flops_rate(text));
  return 0;
}

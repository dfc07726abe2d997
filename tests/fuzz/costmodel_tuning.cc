// The reader of communication records over arbitrary bytes: a record that prices a collective, or
// diagnostics.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "costmodel/collectives/collective_forms.h"
#include "topologies/topology.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const auto tuning =
      costmodel::parse_tuning({reinterpret_cast<const char*>(data), size}, "tuning.json");
  if (!tuning) {
    ORRERY_CHECK(!tuning.error().empty());
    return 0;
  }
  static const auto cluster = topologies::catalog_topology("dgx-h100", 2);
  ORRERY_CHECK(cluster.has_value());
  constexpr std::array kRanks{0, 1, 8, 9};
  const auto usable = costmodel::usable_rates(*cluster, *tuning);
  const costmodel::CollectiveForms forms(usable, *tuning, costmodel::layout_of(usable, kRanks));
  const auto price = forms.choose(model::Collective::kAllReduce, 1 << 20);
  ORRERY_CHECK(price.has_value() && price->time_ps > 0);
  return 0;
}

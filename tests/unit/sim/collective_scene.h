#pragma once
/// Forms and requests of collectives on one machine, for tests.
#include <numeric>
#include <utility>
#include <vector>

#include "sim/network/collective_run.h"

namespace orrery::sim::testing {

struct CollectiveScene {
  topologies::Topology usable;
  costmodel::CollectiveTuning tuning;
  costmodel::CollectiveForms forms;
  CollectiveScene(const topologies::Topology& machine, costmodel::CollectiveTuning with, int ranks)
      : usable(costmodel::usable_rates(machine, with)),
        tuning(std::move(with)),
        forms(usable, tuning, costmodel::layout_of(usable, first(ranks))) {}
  CollectiveScene(const CollectiveScene&) = delete;
  CollectiveScene& operator=(const CollectiveScene&) = delete;
  static std::vector<int> first(int n) {
    std::vector<int> ranks(static_cast<std::size_t>(n));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  CollectiveRequest request(model::Collective op, std::int64_t bytes, costmodel::Algorithm a,
                            costmodel::Protocol p = costmodel::Protocol::kSimple) const {
    return {op, bytes, forms.terms(op, bytes, a, p)};
  }
  std::int64_t closed(const CollectiveRequest& r) const { return forms.time_ps(r.op, r.terms); }
};

}  // namespace orrery::sim::testing

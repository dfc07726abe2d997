/// Collectives in a step against `orrery collective`: one engine, so that the same call alone takes
/// the same time to the picosecond.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "costmodel/collectives/collective_forms.h"
#include "costmodel/collectives/collectives.h"
#include "topologies/topology.h"

namespace orrery::costmodel {
namespace {

using plan::Collective;

constexpr std::array kOperations{Collective::kAllReduce,     Collective::kAllGather,
                                 Collective::kReduceScatter, Collective::kAllToAll,
                                 Collective::kBroadcast,     Collective::kPointToPoint};

struct Scene {
  topologies::Topology usable;
  std::shared_ptr<const CollectiveTuning> library;
};

Scene random_scene() {
  const auto catalog = topologies::list_catalog();
  const auto& entry = catalog[*rc::gen::inRange<std::size_t>(0, catalog.size())];
  auto machine = topologies::catalog_topology(entry.name, *rc::gen::element(1U, 2U, 3U, 4U, 8U));
  RC_PRE(machine.has_value());  // some have one host, or a number of them
  std::set<std::string> devices;
  for (const auto& model : machine->device_models()) devices.insert(model.name);
  auto tuning = find_tuning(*rc::gen::element<std::string>("auto", "published"), devices);
  RC_ASSERT(tuning.has_value());
  auto usable = usable_rates(*std::move(machine), *tuning);
  return {std::move(usable), std::make_shared<const CollectiveTuning>(*std::move(tuning))};
}

RC_GTEST_PROP(Library, ACollectiveAloneInAStepTakesWhatOrreryCollectiveSays, ()) {
  const Scene s = random_scene();
  const auto devices = static_cast<int>(s.usable.device_count());
  RC_PRE(devices > 1);
  const int size = *rc::gen::inRange(2, std::min(64, devices) + 1),
            stride = *rc::gen::inRange(1, devices / size + 1);
  const std::int64_t bytes = std::int64_t{1} << *rc::gen::inRange(4, 33);
  const plan::Group group{"g", size, stride};
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(i * stride);
  const CollectivePrices prices(s.usable, {}, {}, {}, {}, s.library);
  const CollectiveForms forms(s.usable, *s.library, layout_of(s.usable, ranks));
  for (const Collective op : kOperations) {
    const auto alone = forms.choose(op, bytes);
    RC_ASSERT(alone.has_value());
    const Transfer step = prices.collective(op, group, bytes, 0, 1, Senders::kWholeGroups);
    RC_ASSERT(step.duration_ps() == alone->time_ps);
    // Whatever NCCL chooses: every algorithm that it has.
    for (const Algorithm algorithm : kAlgorithms) {
      if (algorithm == Algorithm::kHalvingDoubling || algorithm == Algorithm::kHierarchical)
        continue;
      const auto forced = forms.choose(op, bytes, algorithm);
      if (!forced) continue;
      const RunsAs how{.library = true,
                       .choice = {forced->algorithm, forced->protocol},
                       .pattern = GroupForms::pattern_of(op, forced->algorithm)};
      const PathLoads loads = prices.paths().loads(how.pattern, group, 0, 1, Senders::kWholeGroups);
      RC_ASSERT(prices.collective(op, group, bytes, how, loads).duration_ps() == forced->time_ps);
      RC_ASSERT(prices.duration_ps(op, group, bytes, how, loads) == forced->time_ps);
    }
  }
}

}  // namespace
}  // namespace orrery::costmodel

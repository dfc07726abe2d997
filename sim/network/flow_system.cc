#include "sim/network/flow_system.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"
#include "sim/kernel/remaining_work.h"

namespace orrery::sim {
namespace {

using Int128 = kernel::Int128;

/// Lanes on a link, ascending by lane.
struct OnLink {
  std::uint32_t lane = 0;
  std::int64_t flows = 0;
  auto operator<=>(const OnLink&) const = default;
};

class Maker {
 public:
  Maker(const TransferGraph& graph, const TransferRunOptions& options)
      : graph_(graph), options_(options) {}

  FlowSystem make() {
    for (std::uint32_t i = 0; i < graph_.transfers().size(); ++i) {
      const TransferGraph::Transfer& t = graph_.transfers()[i];
      system_.lanes.push_back({t.spec.bytes, t.spec.latency_ps, t.rate, t.spec.repeats, false});
    }
    for (const BackgroundFlow& flow : options_.background) {
      std::int64_t rate = flow.bytes_per_second;
      for (const auto& load : flow.loads)
        rate = std::min(rate, graph_.capacities()[load.link.raw()] / load.flows);
      system_.lanes.push_back({0, 0, rate, 1, true});
    }
    lift_rates();
    add_waits();
    group_by_link();
    add_constraints();
    return std::move(system_);
  }

 private:
  [[nodiscard]] std::span<const costmodel::LinkLoad> loads(std::uint32_t lane) const {
    const auto transfers = static_cast<std::uint32_t>(graph_.transfers().size());
    if (lane < transfers) return graph_.loads(TransferId(lane));
    return options_.background[lane - transfers].loads;
  }

  /// A link whose capacity rises later bounds nobody's rate by what it has at first.
  void lift_rates() {
    std::vector<std::int64_t> most(graph_.capacities().begin(), graph_.capacities().end());
    bool lifted = false;
    for (const LinkChange& change : options_.changes) {
      std::int64_t& capacity = most[change.link.raw()];
      lifted = lifted || change.bytes_per_second > capacity;
      capacity = std::max(capacity, change.bytes_per_second);
    }
    if (!lifted) return;
    for (std::uint32_t lane = 0; lane < system_.lanes.size(); ++lane) {
      const auto links = loads(lane);
      if (links.empty()) continue;
      const auto transfers = static_cast<std::uint32_t>(graph_.transfers().size());
      const std::int64_t cap = lane < transfers
                                   ? graph_.transfers()[lane].spec.rate_cap
                                   : options_.background[lane - transfers].bytes_per_second;
      std::int64_t rate = cap > 0 ? cap : most[links.front().link.raw()];
      for (const auto& load : links) rate = std::min(rate, most[load.link.raw()] / load.flows);
      system_.lanes[lane].rate = std::max<std::int64_t>(rate, system_.lanes[lane].endless ? 0 : 1);
    }
  }

  void add_waits() {
    std::vector<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>> sorted;
    for (const TransferGraph::Dependency& d : graph_.dependencies())
      sorted.emplace_back(d.after.raw(), d.before.raw(), d.distance);
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    std::size_t next = 0;
    for (std::uint32_t lane = 0; lane < system_.lanes.size(); ++lane) {
      for (; next < sorted.size() && std::get<0>(sorted[next]) == lane; ++next) {
        system_.waits.entries.push_back({std::get<1>(sorted[next]), std::get<2>(sorted[next])});
      }
      system_.waits.close();
    }
  }

  void group_by_link() {
    const std::size_t links = graph_.capacities().size();
    std::vector<std::uint32_t> count(links + 1, 0);
    const auto lanes = static_cast<std::uint32_t>(system_.lanes.size());
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      for (const auto& load : loads(lane)) ++count[load.link.raw() + 1];
    }
    for (std::size_t l = 0; l < links; ++l) count[l + 1] += count[l];
    on_link_.begin = count;
    on_link_.entries.resize(count[links]);
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      for (const auto& load : loads(lane))
        on_link_.entries[count[load.link.raw()]++] = {lane, load.flows};
    }
  }

  void add_constraints() {
    const auto links = static_cast<std::uint32_t>(graph_.capacities().size());
    std::vector<std::vector<FlowSystem::Change>> changes(links);
    for (const LinkChange& c : options_.changes)
      changes[c.link.raw()].push_back({c.at_ps, 0, c.bytes_per_second});
    std::vector<std::vector<FlowSystem::Load>> uses(system_.lanes.size());
    std::map<std::vector<OnLink>, std::uint32_t> alike;
    for (std::uint32_t l = 0; l < links; ++l) {
      if (!can_be_full(l, changes[l])) continue;
      const std::span<const OnLink> here = on_link_[l];
      const auto fresh = static_cast<std::uint32_t>(system_.capacities.size());
      if (changes[l].empty()) {
        const auto [at, added] =
            alike.try_emplace(std::vector<OnLink>(here.begin(), here.end()), fresh);
        if (!added) {
          std::int64_t& capacity = system_.capacities[at->second];
          capacity = std::min(capacity, graph_.capacities()[l]);
          continue;
        }
      }
      system_.capacities.push_back(graph_.capacities()[l]);
      for (FlowSystem::Change c : changes[l]) {
        c.constraint = fresh;
        system_.changes.push_back(c);
      }
      for (const OnLink& use : here) uses[use.lane].push_back({fresh, use.flows});
    }
    for (const auto& of_lane : uses) {
      system_.loads.entries.insert(system_.loads.entries.end(), of_lane.begin(), of_lane.end());
      system_.loads.close();
    }
    std::stable_sort(system_.changes.begin(), system_.changes.end(),
                     [](const auto& a, const auto& b) {
                       return std::tie(a.at_ps, a.constraint) < std::tie(b.at_ps, b.constraint);
                     });
  }

  [[nodiscard]] bool can_be_full(std::uint32_t link,
                                 const std::vector<FlowSystem::Change>& changes) const {
    std::int64_t least = graph_.capacities()[link];
    for (const auto& c : changes) least = std::min(least, c.capacity);
    Int128 most = 0;
    for (const OnLink& use : on_link_[link])
      most += static_cast<Int128>(use.flows) * system_.lanes[use.lane].rate;
    return most > least;
  }

  const TransferGraph& graph_;
  const TransferRunOptions& options_;
  FlowSystem system_;
  Runs<OnLink> on_link_;
};

}  // namespace

FlowSystem make_system(const TransferGraph& graph, const TransferRunOptions& options) {
  return Maker(graph, options).make();
}

}  // namespace orrery::sim

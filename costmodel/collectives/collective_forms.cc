#include "costmodel/collectives/collective_forms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "base/sim_time.h"

namespace orrery::costmodel {
namespace {

using enum Protocol;
using enum Algorithm;
using enum model::Collective;
using Op = model::Collective;

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::int64_t wire_ps(std::int64_t bytes, std::int64_t rate) {
  return mul_div_up(bytes, base::kPicosecondsPerSecond, rate);
}

std::int64_t limited(std::int64_t rate, std::int64_t limit) {
  return limit > 0 ? std::min(rate, limit) : rate;
}

std::int64_t at_least_one(std::int64_t n) { return std::max<std::int64_t>(n, 1); }

/// The layout with what its members meet over.
GroupLayout on_machine(const topologies::Topology& topology, const CollectiveTuning& tuning,
                       GroupLayout group) {
  Neighbours members;
  const auto local = std::ranges::find_if(group.hosts, [](const auto& h) { return h.size() > 1; });
  if (local != group.hosts.end()) members.in_host = {(*local)[0], (*local)[1]};
  if (group.host_count() > 1) members.across = {group.hosts[0][0], group.hosts[1][0]};
  find_links(topology, tuning, members, group.spread.shape);
  return group;
}

}  // namespace

topologies::Topology usable_rates(topologies::Topology topology, const CollectiveTuning& tuning) {
  std::vector<std::pair<std::string, std::int64_t>> ppm_of_kind;
  for (const auto& [kind, share] : tuning.link_efficiency)
    ppm_of_kind.emplace_back(kind, std::llround(share * 1e6));
  return std::move(topology).with_kind_rates(ppm_of_kind);
}

void find_links(const topologies::Topology& topology, const CollectiveTuning& tuning,
                const Neighbours& members, GroupShape& shape) {
  const auto route = [&](const std::pair<int, int>& ends) {
    return topology.route(as_u32(ends.first), as_u32(ends.second));
  };
  if (members.in_host) {
    const auto links = route(*members.in_host);
    shape.pcie = std::ranges::any_of(
        links, [&](topologies::LinkId link) { return topology.link(link).kind == "pcie"; });
    if (links.size() == 2) shape.switch_rate = topology.link(links[0]).bytes_per_second;
  }
  if (members.across)
    for (const topologies::LinkId link : route(*members.across))
      shape.network_extra =
          std::max(shape.network_extra, tuning.network_extra(topology.link(link).kind));
  if (!shape.uniform()) return;
  shape.heads = as_int(std::min<std::int64_t>(shape.per_host, tuning.nvls.max_heads));
  // Rounded up: the pace of a head (GroupForms::nvls_terms) is the limit inside a host, not this.
  shape.switch_permille = static_cast<std::int64_t>(std::ceil(
      1e3 * tuning.nvls.efficiency * (shape.hosts > 2 ? tuning.nvls.beyond_two_hosts : 1.0)));
}

CollectiveForms::CollectiveForms(const topologies::Topology& usable, const CollectiveTuning& tuning,
                                 GroupLayout group)
    : topology_(&usable),
      group_(on_machine(usable, tuning, std::move(group))),
      forms_(tuning, group_.shape()) {}

std::int64_t CollectiveForms::narrowest(const std::vector<std::int64_t>& flows) const {
  std::int64_t rate = kUnlimited;
  for (std::uint32_t l = 0; l < flows.size(); ++l)
    if (flows[l] > 0)
      rate = std::min(rate, at_least_one(topology_->links()[l].bytes_per_second / flows[l]));
  return rate;
}

std::int64_t CollectiveForms::narrowest(const std::vector<Send>& sends) const {
  std::vector<std::int64_t> flows(topology_->links().size(), 0);
  for (const Send& s : sends)
    for (const auto link : topology_->route(as_u32(s.from), as_u32(s.to))) ++flows[link.raw()];
  return narrowest(flows);
}

std::int64_t CollectiveForms::all_to_all_rate() const {
  std::vector<std::int64_t> flows(topology_->links().size(), 0);
  for (const int rank : group_.hosts[0])
    for (const LinkLoad& load : all_to_all_links(*topology_, group_, 0, rank))
      flows[load.link.raw()] += load.flows;
  return narrowest(flows);
}

FlowRates CollectiveForms::rates(Pattern pattern) const {
  std::int64_t& rate = rates_[as_index(pattern)];
  if (rate == 0 && pattern == Pattern::kEveryone && all_to_all_by_rank(*topology_, group_))
    rate = all_to_all_rate();
  if (rate == 0) {
    // Between hosts a tree of switches passes on whole data, in the host it has a share of links.
    const bool across = pattern == Pattern::kSwitchTrees;
    std::vector<std::int64_t> flows(topology_->links().size(), 0);
    std::vector<MemberFlows> sends;
    for (int i = 0; i < group_.size(); ++i) {
      const auto from = as_u32(group_.ranks[as_index(i)]);
      sends.clear();
      append_sends(pattern, group_.spread, i, sends);
      for (const auto& [member, count] : sends) {
        const auto to = as_u32(group_.ranks[as_index(member)]);
        if (across && topology_->same_host(from, to)) continue;
        for (const auto link : topology_->route(from, to))
          flows[link.raw()] += across ? tree_flows(group_.host_count()) : count;
      }
    }
    rate = narrowest(flows);
  }
  return {rate, group_.shape().switch_rate};
}

std::int64_t CollectiveForms::halving_ps(const CollectiveTerms& t) const {
  std::int64_t total = t.base_ps;
  for (const ExchangeStep& step : halving_doubling(group_)) {
    bool network = false;
    for (const Send& s : step.sends)
      network = network || !topology_->same_host(as_u32(s.from), as_u32(s.to));
    total += network ? t.network_hop_ps : t.device_hop_ps;
    total += wire_ps(t.wire_bytes(t.piece_bytes * step.sends.front().pieces),
                     limited(narrowest(step.sends), t.flow_limit));
  }
  return total;
}

std::int64_t CollectiveForms::hierarchical_ps(const CollectiveTerms& t) const {
  const std::int64_t m = group_.per_host(), hosts = group_.host_count();
  std::vector<Send> inside, across;
  for (std::size_t h = 0; h < group_.hosts.size(); ++h)
    for (std::size_t j = 0; j < group_.hosts[h].size(); ++j) {
      inside.push_back({group_.hosts[h][j], group_.hosts[h][(j + 1) % group_.hosts[h].size()]});
      across.push_back({group_.hosts[h][j], group_.hosts[(h + 1) % group_.hosts.size()][j]});
    }
  const std::int64_t local = t.device_hop_ps + wire_ps(t.wire_bytes(t.piece_bytes * hosts),
                                                       limited(narrowest(inside), t.flow_limit));
  const std::int64_t far = t.network_hop_ps + wire_ps(t.wire_bytes(t.piece_bytes),
                                                      limited(narrowest(across), t.flow_limit));
  return t.base_ps + 2 * (m - 1) * local + t.repeats * far;
}

std::int64_t CollectiveForms::time_ps(Op op, const CollectiveTerms& t) const {
  if (t.algorithm == kHalvingDoubling) return halving_ps(t);
  if (t.algorithm == kHierarchical) return hierarchical_ps(t);
  return forms_.duration(op, t, rates(GroupForms::pattern_of(op, t.algorithm))).time_ps;
}

std::optional<CollectivePrice> CollectiveForms::choose(Op op, std::int64_t bytes,
                                                       std::optional<Algorithm> wanted) const {
  std::optional<CollectivePrice> best;
  if (wanted == kHalvingDoubling || wanted == kHierarchical) {
    for (const Protocol protocol : kProtocols) {
      if (!available(op, *wanted, protocol)) continue;
      const std::int64_t time = time_ps(op, terms(op, bytes, *wanted, protocol));
      if (!best || time < best->time_ps) best = CollectivePrice{*wanted, protocol, time};
    }
    return best;
  }
  const bool exchange = op == kAllToAll || op == kPointToPoint;
  const auto choice = forms_.choose(
      op, bytes, rates(GroupForms::pattern_of(op, exchange ? kDirect : kRing)), wanted);
  if (choice)
    best = CollectivePrice{choice->algorithm, choice->protocol,
                           time_ps(op, terms(op, bytes, choice->algorithm, choice->protocol))};
  return best;
}

}  // namespace orrery::costmodel

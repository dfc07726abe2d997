#include "topologies/fabric/cluster.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/ids.h"
#include "base/numbers.h"

namespace orrery::topologies {

namespace {

/// A host or switch as a whole, a neighbour of it, and what joins them.
struct Tie {
  uint32_t node = 0, to = 0;
  uint64_t label = 0;
};

/// Hosts and switches as wholes, by node.
struct Wholes {
  std::vector<Tie> ties;
  base::Csr of_node;
};

/// Label of a card's cable: the card's position within its host. Label of a fabric link: beyond all
/// cards, its rate.
Wholes wholes_of(const ClusterShape& shape, uint32_t hosts) {
  const auto links = shape.fabric->links();
  const auto switch_of_nic = shape.fabric->switch_of_nic();
  std::map<int64_t, uint64_t> rates;
  for (const FabricLink& link : links)
    rates.try_emplace(link.bytes_per_second, (uint64_t{1} << 32) + rates.size());
  Wholes wholes;
  for (const HostRun& run : shape.runs) {
    for (uint32_t h = 0; h < run.hosts; ++h) {
      for (uint32_t j = 0; j < run.nics.size(); ++j) {
        const uint32_t host = run.first_host + h, leaf = hosts + switch_of_nic[run.nic(host, j)];
        wholes.ties.push_back({host, leaf, j});
        wholes.ties.push_back({leaf, host, j});
      }
    }
  }
  // Both directions of a fabric cable have one capacity, so one tie at each end tells all.
  for (const FabricLink& link : links)
    wholes.ties.push_back({hosts + link.from, hosts + link.to, rates.at(link.bytes_per_second)});
  wholes.of_node = base::group_by(count_of(wholes.ties), hosts + count_of(shape.fabric->switches()),
                                  [&](uint32_t i) { return wholes.ties[i].node; });
  return wholes;
}

/// Splits classes by the multiset of (label, class of the neighbour) until nothing splits. New
/// classes are numbered in the order of their first node, so the numbering depends on ids only.
std::vector<uint32_t> refine(const Wholes& wholes, std::vector<uint32_t> colours) {
  const auto nodes = count_of(colours);
  size_t classes = 0;
  // label, class, how many
  using Signature = std::vector<std::tuple<uint64_t, uint32_t, uint32_t>>;
  while (true) {
    std::map<std::pair<uint32_t, Signature>, uint32_t> numbers;
    std::vector<uint32_t> refined(nodes);
    std::vector<std::pair<uint64_t, uint32_t>> near;
    for (uint32_t node = 0; node < nodes; ++node) {
      near.clear();
      for (const uint32_t i : wholes.of_node.of(node))
        near.emplace_back(wholes.ties[i].label, colours[wholes.ties[i].to]);
      std::ranges::sort(near);
      Signature signature;
      for (const auto& [label, colour] : near) {
        if (signature.empty() || std::get<0>(signature.back()) != label ||
            std::get<1>(signature.back()) != colour) {
          signature.emplace_back(label, colour, 0);
        }
        ++std::get<2>(signature.back());
      }
      const auto number = count_of(numbers);
      refined[node] =
          numbers.try_emplace({colours[node], std::move(signature)}, number).first->second;
    }
    colours = std::move(refined);
    if (numbers.size() == classes) return colours;
    classes = numbers.size();
  }
}

}  // namespace

const HostRun& ClusterShape::run_of_host(uint32_t host) const {
  ORRERY_CHECK(host < hosts);
  return *(std::ranges::upper_bound(runs, host, {}, &HostRun::first_host) - 1);
}

const HostRun& ClusterShape::run_of_link(uint32_t link) const {
  ORRERY_CHECK(link < fabric_link);
  return *(std::ranges::upper_bound(runs, link, {}, &HostRun::first_link) - 1);
}

ClusterClasses ClusterShape::classes() const {
  ClusterClasses out;
  std::vector<uint32_t> colours;
  for (uint32_t r = 0; r < runs.size(); ++r) colours.insert(colours.end(), runs[r].hosts, r);
  if (fabric) {
    const auto kinds = count_of(runs);
    for (const FabricSwitch& s : fabric->switches()) colours.push_back(kinds + s.tier);
    colours = refine(wholes_of(*this, hosts), std::move(colours));
  }
  out.of_host.assign(colours.begin(), colours.begin() + hosts);
  for (uint32_t host = 0; host < hosts; ++host) {
    // numbered in order of first appearance
    if (out.of_host[host] != out.host_vertex.size()) continue;
    out.host_vertex.push_back(out.vertex_classes);
    out.host_link.push_back(out.link_classes);
    out.vertex_classes += run_of_host(host).vertices;
    out.link_classes += run_of_host(host).links;
  }
  if (!fabric) return out;
  const auto first_switch = count_of(out.host_vertex);
  for (size_t s = hosts; s < colours.size(); ++s) {
    out.of_switch.push_back(out.vertex_classes + colours[s] - first_switch);
  }
  if (!out.of_switch.empty()) out.vertex_classes = *std::ranges::max_element(out.of_switch) + 1;
  std::map<std::tuple<uint32_t, uint32_t, int64_t>, uint32_t> numbers;
  for (const FabricLink& link : fabric->links()) {
    const auto number = as_u32(out.link_classes + numbers.size());
    out.of_link.push_back(
        numbers
            .try_emplace({out.of_switch[link.from], out.of_switch[link.to], link.bytes_per_second},
                         number)
            .first->second);
  }
  out.link_classes += count_of(numbers);
  return out;
}

}  // namespace orrery::topologies

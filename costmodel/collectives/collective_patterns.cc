#include "costmodel/collectives/collective_patterns.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::costmodel {
namespace {

/// Parent in the first tree.
int first_parent(int index, int count) {
  if (index == 0) return -1;
  const int bit = index & -index;
  const int up = (index ^ bit) | (bit << 1);
  return up < count ? up : index ^ bit;
}

/// Order of the members of a host on a cycle; as they are where there is none.
Places cycle_of(const GroupSpread& group, int channel, std::size_t members) {
  if (group.cycles && group.shape.uniform())
    return (*group.cycles)[as_index(channel) % group.cycles->size()];
  Places order(members);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Members of a host in the order of channel `channel`, from its member on.
std::vector<int> in_channel(const GroupLayout& group, const std::vector<int>& host, int channel) {
  if (!group.uniform()) return host;
  std::vector<int> order;
  for (const std::size_t place : cycle_of(group.spread, channel, host.size()))
    order.push_back(host[place]);
  const int first = host[as_index(channel) % host.size()];
  std::rotate(order.begin(), std::ranges::find(order, first), order.end());
  return order;
}

/// What a member sends where every host has `k` of them, on the cycles of the hosts.
class UniformSends {
 public:
  UniformSends(const GroupSpread& group, int index, std::vector<MemberFlows>& sends)
      : group_(group),
        k_(group.shape.per_host),
        host_(index / k_),
        place_(index % k_),
        sends_(sends) {
    if (!group.cycles) {
      next_ = {(place_ + 1) % k_};
      before_ = {(place_ + k_ - 1) % k_};
      return;
    }
    for (const Places& order : *group.cycles) {
      const auto at = as_index(std::ranges::find(order, as_index(place_)) - order.begin());
      next_.push_back(as_int(order[(at + 1) % order.size()]));
      before_.push_back(as_int(order[(at + order.size() - 1) % order.size()]));
    }
  }

  void rings() {
    if (group_.shape.hosts == 1) {
      for (const int next : next_) send(host_, next, 1);
      return;
    }
    const bool odd = host_ % 2 == 1;
    const int behind = (host_ + 1) % group_.shape.hosts;
    const bool to_next_place = !odd && behind % 2 == 0;
    const int rings = group_.shape.rings();
    for (int c = 0; c < rings; ++c) {
      const auto y = as_index(c) % next_.size();
      // The member at c % k leaves an even host, the one behind it on the cycle an odd one.
      const int ends = odd ? before_[y] : place_;
      if (ends != c % k_)
        send(host_, odd ? before_[y] : next_[y], 1);
      else
        send(behind, to_next_place ? next_[y] : place_, 1);
    }
  }

  void trees() {
    const GroupShape& shape = group_.shape;
    const std::int64_t each = shape.hosts > 1 || k_ == 1 ? 2 : 1;
    for (int lead = 0; lead < k_; ++lead) {
      const auto y = as_index(lead) % next_.size();
      if (next_[y] != lead) send(host_, next_[y], each);
      if (place_ != lead) send(host_, before_[y], each);
    }
    if (shape.hosts > 1) send((host_ + 1) % shape.hosts, place_, tree_flows(shape.hosts));
  }

  void in_switch(std::int64_t parts, std::int64_t across) {
    const GroupShape& shape = group_.shape;
    send(host_, next_.front(), parts * (shape.heads + 1));
    if (across > 0 && place_ < shape.heads)
      send((host_ + 1) % shape.hosts, place_, across * tree_flows(shape.hosts));
  }

 private:
  void send(int host, int place, std::int64_t flows) {
    const int to = host * k_ + place;
    const auto known = std::ranges::find(sends_, to, &MemberFlows::to);
    if (known != sends_.end())
      known->flows += flows;
    else
      sends_.push_back({to, flows});
  }

  const GroupSpread& group_;
  int k_, host_, place_;
  std::vector<int> next_, before_;  // [cycle] places
  std::vector<MemberFlows>& sends_;
};

/// One chain through each host, its first member the lead.
void append_chain(const GroupSpread& group, int index, std::vector<MemberFlows>& sends) {
  const auto& first = group.first_of_host;
  const auto behind = std::ranges::upper_bound(first, index);
  if (index + 1 < *behind) sends.push_back({index + 1, 2});
  if (const int lead = *std::prev(behind); index != lead) {
    sends.push_back({index - 1, 2});
  } else if (group.shape.hosts > 1) {
    sends.push_back({*behind % group.shape.size, tree_flows(group.shape.hosts)});
  }
}

/// One exchange of the power of two members `active`, `d` apart: each sends the pieces that the
/// partner keeps (halving), or all that it has (doubling).
ExchangeStep exchange(const std::vector<int>& active, int d, bool halving) {
  ExchangeStep step{.sends = {}, .reduces = halving};
  for (int i = 0; i < as_int(active.size()); ++i) {
    const int partner = i ^ d;
    step.sends.push_back(
        {active[as_index(i)], active[as_index(partner)], (halving ? partner : i) & ~(d - 1), d});
  }
  return step;
}

}  // namespace

GroupSpread spread_of(std::vector<int> first_of_host,
                      std::shared_ptr<const std::vector<Places>> cycles) {
  GroupShape shape{.size = first_of_host.back(),
                   .hosts = as_int(first_of_host.size()) - 1,
                   .per_host = first_of_host[1]};
  for (std::size_t h = 0; h + 1 < first_of_host.size(); ++h) {
    const int members = first_of_host[h + 1] - first_of_host[h];
    shape.largest_host = std::max(shape.largest_host, members);
    if (members != first_of_host[1]) shape.per_host = 0;
  }
  if (!shape.uniform() || (cycles && cycles->empty())) cycles.reset();
  if (cycles) shape.cycles = as_int(cycles->size());
  if (shape.uniform()) first_of_host.clear();
  return {shape, std::move(first_of_host), std::move(cycles)};
}

int GroupShape::rings() const {
  if (!uniform()) return 1;
  // Inside one host every rotation of a cycle crosses the same links: one channel stands for all.
  return hosts == 1 ? cycles : std::max(per_host, cycles);
}

int GroupShape::trees() const {
  const int places = uniform() ? per_host : 1;
  return places * (hosts > 1 || places == 1 ? 2 : 1);
}

int GroupShape::tree_depth() const { return as_int(std::bit_width(as_u32(hosts - 1))); }

int tree_flows(int hosts) { return std::clamp(hosts, 2, 4); }

std::int64_t units_of(Pattern pattern, const GroupShape& shape) {
  switch (pattern) {
    case Pattern::kRings: return shape.rings();
    case Pattern::kTrees: return shape.trees();
    case Pattern::kSwitch: return shape.heads;
    case Pattern::kSwitchTrees: return std::int64_t{2'000} * shape.heads;
    case Pattern::kEveryone: return shape.size - 1;
    case Pattern::kShift: return 1;
  }
  ORRERY_CHECK(false, "pattern out of range");
}

void append_sends(Pattern pattern, const GroupSpread& group, int index,
                  std::vector<MemberFlows>& sends) {
  const GroupShape& shape = group.shape;
  const bool alike = shape.uniform();
  switch (pattern) {
    case Pattern::kRings:
      if (alike) return UniformSends(group, index, sends).rings();
      [[fallthrough]];
    case Pattern::kShift: sends.push_back({(index + 1) % shape.size, 1}); return;
    case Pattern::kTrees:
      return alike ? UniformSends(group, index, sends).trees() : append_chain(group, index, sends);
    case Pattern::kSwitch: return UniformSends(group, index, sends).in_switch(1, 0);
    case Pattern::kSwitchTrees:
      return UniformSends(group, index, sends).in_switch(2'000, shape.switch_permille);
    case Pattern::kEveryone:
      for (int other = 0; other < shape.size; ++other)
        if (other != index) sends.push_back({other, 1});
      return;
  }
}

GroupLayout layout_of(const topologies::Topology& topology, std::span<const int> ranks) {
  ORRERY_CHECK(!ranks.empty());
  GroupLayout group;
  std::vector<int> place(topology.hosts(), -1);
  for (const int rank : ranks) {
    int& at = place[topology.host_of(as_u32(rank))];
    if (at < 0) {
      at = as_int(group.hosts.size());
      group.hosts.emplace_back();
    }
    group.hosts[as_index(at)].push_back(rank);
  }
  for (const auto& host : group.hosts)
    group.ranks.insert(group.ranks.end(), host.begin(), host.end());
  std::vector<int> first_of_host{0};
  for (const auto& host : group.hosts)
    first_of_host.push_back(first_of_host.back() + as_int(host.size()));
  group.spread =
      spread_of(std::move(first_of_host),
                std::make_shared<const std::vector<Places>>(host_cycles(topology, group.hosts[0])));
  return group;
}

std::vector<std::vector<int>> ring_channels(const GroupLayout& group) {
  std::vector<std::vector<int>> channels(as_index(group.ring_count()));
  for (int c = 0; c < group.ring_count(); ++c)
    for (std::size_t h = 0; h < group.hosts.size(); ++h) {
      auto order = in_channel(group, group.hosts[h], c);
      if (group.uniform() && group.host_count() > 1) {
        if (h % 2 == 0)  // from the member behind c to c
          std::rotate(order.begin(), order.begin() + 1, order.end());
        else
          std::reverse(order.begin() + 1, order.end());  // from c back to the one behind it
      }
      auto& channel = channels[as_index(c)];
      channel.insert(channel.end(), order.begin(), order.end());
    }
  return channels;
}

int tree_parent(int index, int count, bool second) {
  if (!second) return first_parent(index, count);
  if (count % 2 == 0) {
    const int up = first_parent(count - 1 - index, count);
    return up < 0 ? -1 : count - 1 - up;
  }
  const int up = first_parent((index + count - 1) % count, count);
  return up < 0 ? -1 : (up + 1) % count;
}

TreeChannel host_tree(int hosts, bool second) {
  std::vector<std::vector<int>> children(as_index(hosts));
  TreeChannel tree;
  std::vector<int> place(as_index(hosts)), depth(as_index(hosts), 0);
  for (int h = 0; h < hosts; ++h) {
    const int up = tree_parent(h, hosts, second);
    if (up >= 0)
      children[as_index(up)].push_back(h);
    else
      tree.ranks.push_back(h), tree.parent.push_back(-1);
  }
  for (std::size_t i = 0; i < tree.ranks.size(); ++i) {
    for (const int child : children[as_index(tree.ranks[i])]) {
      tree.ranks.push_back(child);
      tree.parent.push_back(as_int(i));
      depth[tree.ranks.size() - 1] = depth[i] + 1;
      tree.network_depth = std::max(tree.network_depth, depth[i] + 1);
    }
  }
  return tree;
}

std::vector<TreeChannel> tree_channels(const GroupLayout& group) {
  const int count = group.tree_count(), places = group.uniform() ? group.per_host() : 1;
  std::vector<TreeChannel> channels;
  for (int t = 0; t < count; ++t) {
    const int c = t % places;
    const TreeChannel leads = host_tree(group.host_count(), t >= places);
    TreeChannel channel{
        .ranks = {}, .parent = {}, .device_depth = 0, .network_depth = leads.network_depth};
    std::vector<int> lead_at;
    for (std::size_t i = 0; i < leads.ranks.size(); ++i) {
      const auto order = in_channel(group, group.hosts[as_index(leads.ranks[i])], c);
      lead_at.push_back(as_int(channel.ranks.size()));
      for (std::size_t j = 0; j < order.size(); ++j) {
        const int lead_parent = leads.parent[i] < 0 ? -1 : lead_at[as_index(leads.parent[i])];
        channel.parent.push_back(j == 0 ? lead_parent : as_int(channel.ranks.size()) - 1);
        channel.ranks.push_back(order[j]);
      }
      channel.device_depth = std::max(channel.device_depth, as_int(order.size()) - 1);
    }
    channels.push_back(std::move(channel));
  }
  return channels;
}

int halving_doubling_pieces(const GroupLayout& group) {
  return as_int(std::bit_floor(static_cast<unsigned>(group.size())));
}

std::vector<ExchangeStep> halving_doubling(const GroupLayout& group) {
  const int pieces = halving_doubling_pieces(group), extra = group.size() - pieces;
  std::vector<int> active;
  ExchangeStep first{.sends = {}, .reduces = true}, last;
  for (int i = 0; i < group.size(); ++i) {
    const int rank = group.ranks[as_index(i)];
    if (i < 2 * extra && i % 2 == 1) {
      first.sends.push_back({rank, active.back(), 0, pieces});
      last.sends.push_back({active.back(), rank, 0, pieces});
    } else {
      active.push_back(rank);
    }
  }
  std::vector<ExchangeStep> steps;
  if (extra > 0) steps.push_back(std::move(first));
  for (int d = pieces / 2; d >= 1; d /= 2) steps.push_back(exchange(active, d, true));
  for (int d = 1; d < pieces; d *= 2) steps.push_back(exchange(active, d, false));
  if (extra > 0) steps.push_back(std::move(last));
  return steps;
}

bool all_to_all_by_rank(const topologies::Topology& topology, const GroupLayout& group) {
  constexpr int kPairwise = 128;  // ranks up to which 16,000 messages cost nothing
  return group.size() > kPairwise && group.uniform() && group.host_count() > 1 &&
         topology.host_copies() && topology.host_copies()->levels.size() == 1;
}

std::vector<LinkLoad> all_to_all_links(const topologies::Topology& topology,
                                       const GroupLayout& group, int host, int rank) {
  const std::uint32_t per_host = topology.host_copies()->levels.front().links;
  const std::uint32_t own = topology.host_of(as_u32(rank));
  std::vector<std::pair<topologies::LinkId, std::int64_t>> crossed;
  const auto add = [&](int from, int to, std::int64_t times) {
    for (const auto link : topology.route(as_u32(from), as_u32(to)))
      if (link.raw() / per_host == own) crossed.emplace_back(link, times);
  };
  for (const int peer : group.hosts[as_index(host)])
    if (peer != rank) add(rank, peer, 1);
  const std::int64_t others = group.host_count() - 1;
  for (const int peer : group.hosts[host == 0 ? 1 : 0]) {
    add(rank, peer, others);
    add(peer, rank, others);
  }
  std::ranges::sort(crossed);
  std::vector<LinkLoad> loads;
  for (const auto& [link, times] : crossed) {
    if (loads.empty() || loads.back().link != link) loads.push_back({link, 0});
    loads.back().flows += times;
  }
  return loads;
}

}  // namespace orrery::costmodel

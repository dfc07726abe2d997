#include "costmodel/collectives/collective_patterns.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "base/rng.h"

namespace orrery::costmodel {
namespace {

/// Parent in the first tree.
int first_parent(int index, int count) {
  if (index == 0) return -1;
  const int bit = index & -index;
  const int up = (index ^ bit) | (bit << 1);
  return up < count ? up : index ^ bit;
}

/// Members of a host in the order of channel `channel`.
std::vector<int> in_channel(const GroupLayout& group, const std::vector<int>& host, int channel) {
  std::vector<int> order;
  const auto& cycle = group.cycles[as_index(channel) % group.cycles.size()];
  if (!group.uniform()) return host;
  for (const std::size_t place : cycle) order.push_back(host[place]);
  const int first = host[as_index(channel) % host.size()];
  std::rotate(order.begin(), std::ranges::find(order, first), order.end());
  return order;
}

using Places = std::vector<std::size_t>;

/// Link-disjoint Hamiltonian cycles through directly linked members, one after the other.
class CycleFinder {
 public:
  CycleFinder(const topologies::Topology& topology, const std::vector<int>& members)
      : n_(members.size()) {
    std::vector<std::int64_t> rates(n_ * n_, 0);
    std::int64_t least = 0;
    for (std::size_t i = 0; i < n_; ++i)
      for (std::size_t j = 0; j < n_; ++j) {
        const auto route = topology.route(as_u32(members[i]), as_u32(members[j]));
        if (route.size() != 1) continue;
        const std::int64_t rate = rates[i * n_ + j] = topology.link(route[0]).bytes_per_second;
        least = least == 0 ? rate : std::min(least, rate);
      }
    Places order(n_);
    std::iota(order.begin(), order.end(), 0);
    order_.assign(n_, order);
    for (const std::int64_t rate : rates) left_.push_back(least == 0 ? 0 : as_int(rate / least));
  }

  /// Greedily, with other orders of the neighbours until nothing is left or the attempts are spent.
  std::vector<Places> find() {
    const std::vector<int> all = left_;
    const auto links = as_index(std::accumulate(all.begin(), all.end(), 0));
    std::vector<Places> best;
    for (int attempt = 0; attempt < kAttempts && best.size() * n_ < links; ++attempt) {
      left_ = all;
      auto cycles = disjoint();
      if (cycles.size() > best.size()) best = std::move(cycles);
      for (Places& order : order_)
        for (std::size_t i = n_; i > 1; --i) std::swap(order[i - 1], order[rng_.below(i)]);
    }
    return best;
  }

 private:
  std::vector<Places> disjoint() {
    std::vector<Places> cycles;
    for (;;) {
      path_.assign(1, 0);
      used_.assign(n_, false);
      used_[0] = true;
      effort_ = 0;
      if (!extend()) return cycles;
      for (std::size_t i = 0; i < n_; ++i) --link(path_[i], path_[(i + 1) % n_]);
      cycles.push_back(path_);
    }
  }
  static constexpr int kEffort = 20'000;  // nodes of the search for one cycle
  static constexpr int kAttempts = 256;
  int& link(std::size_t from, std::size_t to) { return left_[from * n_ + to]; }
  bool extend() {
    const std::size_t at = path_.back();
    if (path_.size() == n_) return link(at, 0) > 0;
    for (const std::size_t next : order_[at]) {
      if (++effort_ > kEffort) return false;
      if (used_[next] || link(at, next) == 0) continue;
      used_[next] = true;
      path_.push_back(next);
      if (extend()) return true;
      path_.pop_back();
      used_[next] = false;
    }
    return false;
  }
  std::size_t n_;
  int effort_ = 0;
  base::Rng rng_{1};
  std::vector<int> left_;
  Places path_;
  std::vector<Places> order_;  // [place] of its neighbours
  std::vector<bool> used_;
};

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

bool GroupLayout::uniform() const {
  return std::ranges::all_of(hosts,
                             [&](const auto& h) { return h.size() == hosts.front().size(); });
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
  if (group.uniform() && group.per_host() > 1)
    group.cycles = CycleFinder(topology, group.hosts.front()).find();
  if (group.cycles.empty()) {
    group.cycles.emplace_back(group.hosts.front().size());
    std::iota(group.cycles[0].begin(), group.cycles[0].end(), 0);
  }
  return group;
}

int GroupLayout::ring_count() const {
  if (!uniform()) return 1;
  // Inside one host every rotation of a cycle crosses the same links: one channel stands for all.
  return host_count() == 1 ? as_int(cycles.size()) : std::max(per_host(), as_int(cycles.size()));
}

std::vector<std::vector<int>> ring_channels(const GroupLayout& group) {
  std::vector<std::vector<int>> channels(as_index(group.ring_count()));
  for (int c = 0; c < group.ring_count(); ++c)
    for (const auto& host : group.hosts) {
      const auto order = in_channel(group, host, c);
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

int GroupLayout::tree_count() const {
  const int places = uniform() ? per_host() : 1;
  return places * (host_count() > 1 || places == 1 ? 2 : 1);
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

#include "sim/network/collective_schedule.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::sim {
namespace {

using costmodel::Algorithm;
using costmodel::CollectiveForms;
using costmodel::CollectiveTerms;
using costmodel::GroupLayout;
using costmodel::kHostTrees;
using costmodel::LinkLoad;
using costmodel::Send;
using costmodel::TreeChannel;
using model::Collective;
using Step = CollectiveSchedule::Step;
using Steps = std::vector<std::uint32_t>;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Makes one schedule; one method for each pattern.
class Maker {
 public:
  Maker(const topologies::Topology& topology, const CollectiveForms& forms,
        const CollectiveRequest& request, std::int64_t repeats)
      : topology_(topology),
        forms_(forms),
        group_(forms.group()),
        request_(request),
        terms_(request.terms),
        repeats_(repeats) {}

  CollectiveSchedule make() {
    last_.assign(topology_.device_count(), kNoStep);
    start_ = s_.add_step({.latency_ps = terms_.base_ps}, {});
    for (const int rank : group_.ranks) last(rank) = start_;
    switch (terms_.algorithm) {
      case Algorithm::kRing: request_.op == Collective::kBroadcast ? chain() : ring(); break;
      case Algorithm::kTree: tree(); break;
      case Algorithm::kNvls:
      case Algorithm::kNvlsTree: nvls(); break;
      case Algorithm::kHalvingDoubling: halving_doubling(); break;
      case Algorithm::kHierarchical: hierarchical(); break;
      case Algorithm::kDirect: direct(); break;
    }
    return std::move(s_);
  }

  CollectiveSchedule make_round() {
    if (terms_.algorithm == Algorithm::kTree) {
      for (const TreeChannel& tree : costmodel::tree_channels(group_))
        tree_ways(tree, terms_.piece_bytes);
    } else {
      for (const auto& order : costmodel::ring_channels(group_))
        for (std::size_t i = 0; i < order.size(); ++i)
          path(order[i], order[(i + 1) % order.size()], terms_.piece_bytes);
    }
    for (std::uint32_t p = 0; p < s_.paths.size(); ++p) s_.add_step({.path = p}, {});
    return std::move(s_);
  }

 private:
  std::uint32_t& last(int rank) { return last_[as_index(rank)]; }

  std::uint32_t path(int from, int to, std::int64_t data) {
    CollectiveSchedule::Path p{.from = from,
                               .to = to,
                               .data_bytes = data,
                               .wire_bytes = terms_.wire_bytes(data),
                               .rate_limit = terms_.flow_limit,
                               .hold_ps = terms_.hold_ps};
    for (const auto link : topology_.route(as_u32(from), as_u32(to))) p.links.push_back({link, 1});
    return s_.add_path(std::move(p));
  }
  std::int64_t hop_ps(int from, int to) const {
    return topology_.same_host(as_u32(from), as_u32(to)) ? terms_.device_hop_ps
                                                         : terms_.network_hop_ps;
  }
  std::uint32_t step(std::uint32_t on, std::int64_t latency, int first_piece, int pieces,
                     bool reduces, std::initializer_list<std::uint32_t> after) {
    return s_.add_step({on, latency, first_piece, pieces, reduces}, {after.begin(), after.size()});
  }

  /// One ring over some ranks. In round t the member at place i sends part (i + shift - t) of the
  /// ring, each of its slices as `width` pieces of the tensor. Parts begin `stride` pieces apart,
  /// from `base` on.
  struct Ring {
    std::int64_t rounds = 0, reduce_rounds = 0;  // the first `reduce_rounds` of them reduce
    std::int64_t shift = 0;
    std::int64_t hop_ps = 0, bytes = 0;  // of every message
    int base = 0, width = 1, stride = 1, slices = 1;
  };
  /// Starts at last(rank) of each member.
  void ring_rounds(const std::vector<int>& order, const Ring& ring) {
    const auto n = static_cast<std::int64_t>(order.size());
    Steps ways;
    std::vector<Steps> received, next(order.size(), Steps(as_index(ring.slices)));
    for (std::size_t i = 0; i < order.size(); ++i) {
      ways.push_back(path(order[i], order[(i + 1) % order.size()], ring.bytes));
      received.emplace_back(as_index(ring.slices), last(order[i]));
    }
    for (std::int64_t t = 0; t < ring.rounds; ++t) {
      for (std::int64_t i = 0; i < n; ++i) {
        const auto part = as_int(((i + ring.shift - t) % n + n) % n);
        for (int slice = 0; slice < ring.slices; ++slice) {
          next[as_index((i + 1) % n)][as_index(slice)] =
              step(ways[as_index(i)], ring.hop_ps, ring.base + part * ring.stride + slice,
                   ring.width, t < ring.reduce_rounds, {received[as_index(i)][as_index(slice)]});
        }
      }
      received = next;
    }
    for (std::size_t i = 0; i < order.size(); ++i)
      last(order[i]) = ring.slices == 1 ? received[i][0] : s_.add_step({}, received[i]);
  }

  void ring() {
    const auto channels = costmodel::ring_channels(group_);
    const int n = group_.size(), slices = as_int(terms_.slices);
    s_.pieces = n * slices * as_int(channels.size());
    std::vector<Steps> ends(as_index(n));
    for (std::size_t c = 0; c < channels.size(); ++c) {
      for (const int rank : group_.ranks) last(rank) = start_;
      const bool all_reduce = request_.op == Collective::kAllReduce,
                 scatter = request_.op == Collective::kReduceScatter;
      const std::int64_t reduces = all_reduce || scatter ? n - 1 : 0;
      ring_rounds(channels[c], {.rounds = repeats_,
                                .reduce_rounds = reduces,
                                .shift = scatter ? -1 : 0,
                                .hop_ps = terms_.device_hop_ps,
                                .bytes = terms_.piece_bytes,
                                .base = as_int(c) * n * slices,
                                .stride = slices,
                                .slices = slices});
      for (std::size_t i = 0; i < ends.size(); ++i) ends[i].push_back(last(group_.ranks[i]));
    }
    for (const auto& after : ends) s_.add_step({.latency_ps = terms_.copy_ps}, after);
  }

  /// Bytes of a piece where every channel takes `repeats_` of them.
  std::int64_t chunk_of(std::size_t channels) {
    const auto n = static_cast<std::int64_t>(channels);
    s_.pieces = as_int(n * repeats_);
    return ceil_div(ceil_div(request_.bytes, n), repeats_);
  }

  /// Broadcast: along each ring from the first rank, in chunks.
  void chain() {
    const auto channels = costmodel::ring_channels(group_);
    const std::int64_t chunk = chunk_of(channels.size());
    int piece = 0;
    for (auto order : channels) {
      std::rotate(order.begin(), std::ranges::find(order, group_.ranks[0]), order.end());
      Steps ways;
      for (std::size_t i = 0; i + 1 < order.size(); ++i)
        ways.push_back(path(order[i], order[i + 1], chunk));
      for (std::int64_t k = 0; k < repeats_; ++k, ++piece) {
        std::uint32_t before = start_;
        for (const std::uint32_t way : ways)
          before = step(way, terms_.device_hop_ps, piece, 1, false, {before});
      }
    }
  }

  /// Paths up and down a tree.
  struct TreeWays {
    Steps up, down;
  };
  TreeWays tree_ways(const TreeChannel& tree, std::int64_t data) {
    TreeWays ways{{kNoStep}, {kNoStep}};
    for (std::size_t i = 1; i < tree.ranks.size(); ++i) {
      const int child = tree.ranks[i], parent = tree.ranks[as_index(tree.parent[i])];
      ways.up.push_back(path(child, parent, data));
      ways.down.push_back(path(parent, child, data));
    }
    return ways;
  }
  /// For one chunk: [i] the step after which node i has the sum.
  Steps up_and_down(const TreeChannel& tree, const TreeWays& ways, const Steps& ready, int piece) {
    const std::size_t n = tree.ranks.size();
    std::vector<Steps> gathered(n);
    for (std::size_t i = 0; i < n; ++i) gathered[i].push_back(ready[i]);
    for (std::size_t i = n; i-- > 1;) {
      const auto& way = s_.paths[ways.up[i]];
      gathered[as_index(tree.parent[i])].push_back(
          s_.add_step({ways.up[i], hop_ps(way.from, way.to), piece, 1, true}, gathered[i]));
    }
    Steps have(n);
    have[0] = s_.add_step({}, gathered[0]);
    for (std::size_t i = 1; i < n; ++i) {
      const auto& way = s_.paths[ways.down[i]];
      have[i] = step(ways.down[i], hop_ps(way.from, way.to), piece, 1, false,
                     {have[as_index(tree.parent[i])]});
    }
    return have;
  }

  void tree() {
    const auto channels = costmodel::tree_channels(group_);
    const std::int64_t chunk = chunk_of(channels.size());
    std::vector<TreeWays> ways;
    for (const TreeChannel& tree : channels) ways.push_back(tree_ways(tree, chunk));
    const Steps ready(group_.ranks.size(), start_);
    int piece = 0;
    for (std::int64_t k = 0; k < repeats_; ++k)
      for (std::size_t c = 0; c < channels.size(); ++c)
        up_and_down(channels[c], ways[c], ready, piece++);
  }

  /// Link from the device to its switch and back, with the parts of a chunk that the switch's two
  /// operations put on them.
  std::uint32_t switch_path(int rank, int peer, std::int64_t unit, std::int64_t towards,
                            std::int64_t back) {
    const auto out = topology_.route(as_u32(rank), as_u32(peer));
    const auto in = topology_.route(as_u32(peer), as_u32(rank));
    return s_.add_path({.from = rank,
                        .to = rank,
                        .data_bytes = unit,
                        .wire_bytes = terms_.wire_bytes(unit),
                        .links = {{out.front(), towards}, {in.back(), back}}});
  }

  void nvls() {
    const std::int64_t heads = forms_.nvls_heads(), chunk = ceil_div(request_.bytes, repeats_),
                       unit = ceil_div(chunk, heads);
    const auto copy_ps = static_cast<std::int64_t>(std::ceil(
        real(terms_.copy_ps) * real(chunk) / real(std::max<std::int64_t>(1, terms_.piece_bytes))));
    std::vector<Steps> reduce, multicast;
    for (const auto& host : group_.hosts) {
      reduce.emplace_back();
      multicast.emplace_back();
      for (std::size_t j = 0; j < host.size(); ++j) {
        const int peer = host[j == 0 ? 1 : 0];
        reduce.back().push_back(switch_path(host[j], peer, unit, heads, 1));
        multicast.back().push_back(switch_path(host[j], peer, unit, 1, heads));
      }
    }
    const bool across = terms_.algorithm == Algorithm::kNvlsTree;
    std::vector<TreeChannel> trees;
    std::vector<TreeWays> ways;
    const CollectiveTerms whole = terms_;
    terms_.rate_share = 1;  // between hosts no efficiency of the switch
    for (int half = 0; across && half < forms_.nvls_heads() * kHostTrees; ++half) {
      trees.push_back(costmodel::host_tree(group_.host_count(), half % kHostTrees == 1));
      TreeChannel devices = trees.back();
      for (int& rank : devices.ranks)
        rank = group_.hosts[as_index(rank)][as_index(half / kHostTrees)];
      ways.push_back(tree_ways(devices, ceil_div(chunk, heads * kHostTrees)));
    }
    terms_ = whole;
    for (std::int64_t k = 0; k < repeats_; ++k) nvls_chunk(reduce, multicast, trees, ways, copy_ps);
  }
  void nvls_chunk(const std::vector<Steps>& reduce, const std::vector<Steps>& multicast,
                  const std::vector<TreeChannel>& trees, const std::vector<TreeWays>& ways,
                  std::int64_t copy_ps) {
    const std::uint32_t copied = s_.add_step({.latency_ps = copy_ps}, {&start_, 1});
    Steps summed;  // by host
    for (const auto& host : reduce) {
      Steps parts;
      for (const std::uint32_t p : host) parts.push_back(step(p, 0, 0, 0, false, {copied}));
      summed.push_back(s_.add_step({}, parts));
    }
    std::vector<Steps> arrived(summed.size());
    if (trees.empty()) arrived[0] = {summed[0]};
    for (std::size_t slot = 0; slot < trees.size(); ++slot) {
      Steps ready;
      for (const int host : trees[slot].ranks) ready.push_back(summed[as_index(host)]);
      const auto have = up_and_down(trees[slot], ways[slot], ready, 0);
      for (std::size_t i = 0; i < have.size(); ++i)
        arrived[as_index(trees[slot].ranks[i])].push_back(have[i]);
    }
    for (std::size_t h = 0; h < multicast.size(); ++h)
      for (const std::uint32_t p : multicast[h]) {
        const std::uint32_t end = s_.add_step({.path = p}, arrived[h]);
        step(CollectiveSchedule::kNoPath, copy_ps, 0, 0, false, {end});
      }
  }

  void halving_doubling() {
    s_.pieces = costmodel::halving_doubling_pieces(group_);
    for (const auto& exchange : costmodel::halving_doubling(group_)) {
      std::int64_t hop = 0;
      for (const Send& send : exchange.sends) hop = std::max(hop, hop_ps(send.from, send.to));
      std::vector<std::pair<int, std::uint32_t>> received;
      for (const Send& send : exchange.sends) {
        // A member may overwrite or add to its part when both it and the partner are there.
        const std::uint32_t way = path(send.from, send.to, terms_.piece_bytes * send.pieces);
        received.emplace_back(send.to, step(way, hop, send.first_piece, send.pieces,
                                            exchange.reduces, {last(send.from), last(send.to)}));
      }
      for (const auto& [rank, end] : received) last(rank) = end;
    }
  }

  void hierarchical() {
    const int m = group_.per_host(), hosts = group_.host_count();
    s_.pieces = m * hosts;
    const Ring gather{.rounds = m - 1,
                      .hop_ps = terms_.device_hop_ps,
                      .bytes = terms_.piece_bytes * hosts,
                      .width = hosts,
                      .stride = hosts};
    Ring scatter = gather;
    scatter.reduce_rounds = scatter.rounds;
    scatter.shift = -1;
    for (const auto& host : group_.hosts) ring_rounds(host, scatter);
    for (int j = 0; j < m; ++j) {
      std::vector<int> slot;
      for (const auto& host : group_.hosts) slot.push_back(host[as_index(j)]);
      ring_rounds(slot, {.rounds = repeats_,
                         .reduce_rounds = hosts - 1,
                         .hop_ps = terms_.network_hop_ps,
                         .bytes = terms_.piece_bytes,
                         .base = j * hosts});
    }
    for (const auto& host : group_.hosts) ring_rounds(host, gather);
  }

  void direct() {
    const std::int64_t hop = group_.host_count() > 1 ? terms_.network_hop_ps : 0;
    const auto n = as_index(group_.size());
    std::vector<Steps> ends(n);
    if (request_.op == Collective::kAllToAll && costmodel::all_to_all_by_rank(topology_, group_)) {
      std::size_t i = 0;
      for (std::size_t h = 0; h < group_.hosts.size(); ++h)
        for (const int rank : group_.hosts[h])
          ends[i++].push_back(step(s_.add_path({.from = rank,
                                                .to = rank,
                                                .data_bytes = terms_.piece_bytes,
                                                .wire_bytes = terms_.wire_bytes(terms_.piece_bytes),
                                                .links = costmodel::all_to_all_links(
                                                    topology_, group_, as_int(h), rank)}),
                                   hop, 0, 0, false, {start_}));
    } else {
      const bool all = request_.op == Collective::kAllToAll;
      s_.pieces = as_int(all ? n * n : n);
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j)
          if (all ? i != j : j == (i + 1) % n)
            ends[j].push_back(step(path(group_.ranks[i], group_.ranks[j], terms_.piece_bytes), hop,
                                   as_int(all ? i * n + j : i), 1, false, {start_}));
    }
    for (const auto& after : ends) s_.add_step({.latency_ps = terms_.copy_ps}, after);
  }

  const topologies::Topology& topology_;
  const CollectiveForms& forms_;
  const GroupLayout& group_;
  const CollectiveRequest& request_;
  CollectiveTerms terms_;
  std::int64_t repeats_;
  CollectiveSchedule s_;
  Steps last_;  // [rank] step after which it has what it needs for the next
  std::uint32_t start_ = 0;
};

}  // namespace

std::uint32_t CollectiveSchedule::add_path(Path path) {
  paths.push_back(std::move(path));
  return as_u32(paths.size() - 1);
}

std::uint32_t CollectiveSchedule::add_step(Step step, std::span<const std::uint32_t> after) {
  const auto id = as_u32(steps.size());
  steps.push_back(step);
  for (const std::uint32_t d : after) {
    if (d == kNoStep) continue;
    ORRERY_CHECK(d < id, "step {} depends on {}", id, d);
    dependencies.push_back(d);
  }
  dependency_begin.push_back(as_u32(dependencies.size()));
  return id;
}

CollectiveSchedule make_schedule(const topologies::Topology& topology, const CollectiveForms& forms,
                                 const CollectiveRequest& request, std::int64_t repeats) {
  ORRERY_CHECK(repeats >= 1, "{} repeats", repeats);
  return Maker(topology, forms, request, repeats).make();
}

CollectiveSchedule make_round(const topologies::Topology& topology, const CollectiveForms& forms,
                              const CollectiveRequest& request) {
  return Maker(topology, forms, request, 1).make_round();
}

std::int64_t schedule_steps(const topologies::Topology& topology, const CollectiveForms& forms,
                            const CollectiveRequest& request, std::int64_t repeats) {
  const GroupLayout& group = forms.group();
  const std::int64_t n = group.size(), hosts = group.host_count(), rings = group.ring_count();
  switch (request.terms.algorithm) {
    case Algorithm::kRing: return (repeats * request.terms.slices + 1) * rings * n + n + 1;
    case Algorithm::kTree: return repeats * group.tree_count() * 2 * n + 1;
    case Algorithm::kNvls:
    case Algorithm::kNvlsTree:
      return repeats *
                 (3 * n + hosts + 1 + 2 * forms.nvls_heads() * costmodel::kHostTrees * hosts) +
             1;
    case Algorithm::kHalvingDoubling: return 2 * n * 16 + 1;
    case Algorithm::kHierarchical: return n * (2 * group.per_host() + repeats) + 1;
    case Algorithm::kDirect:
      return request.op == Collective::kAllToAll && !costmodel::all_to_all_by_rank(topology, group)
                 ? n * n + 1
                 : 2 * n + 1;
  }
  ORRERY_CHECK(false, "algorithm out of range");
}

}  // namespace orrery::sim

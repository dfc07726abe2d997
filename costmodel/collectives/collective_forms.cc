#include "costmodel/collectives/collective_forms.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "base/sim_time.h"

namespace orrery::costmodel {
namespace {

using enum Protocol;
using enum Algorithm;
using enum model::Collective;
using base::Seconds;
using Op = model::Collective;

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
/// Largest chunk of a tree, and how many chunks fill it: NCCL splits until every hop of the way has
/// a few.
constexpr int kSmallChunkHosts = 4, kSmallChunkRanks = 16;
constexpr std::int64_t kTreeChunkBytes = 512 * 1024, kTreeChunkMinimum = 1024,
                       kTreeChunksPerHop = 8;
/// LL and LL128 pass a line on as soon as it is there: nearly nothing is left of a pipeline's
/// filling.
constexpr std::int64_t kLinesMinimum = 128, kLinesPerHop = 64;

std::int64_t wire_ps(std::int64_t bytes, std::int64_t rate) {
  return mul_div_up(bytes, base::kPicosecondsPerSecond, rate);
}

std::int64_t limited(std::int64_t rate, std::int64_t limit) {
  return limit > 0 ? std::min(rate, limit) : rate;
}

std::int64_t at_least_one(std::int64_t n) { return std::max<std::int64_t>(n, 1); }

void add_both_ways(int a, int b, std::vector<Send>& sends) {
  sends.push_back({a, b});
  sends.push_back({b, a});
}

/// Chunks of `part` bytes on a way of so many hops.
void in_chunks(std::int64_t part, std::int64_t hops, std::int64_t per_hop, std::int64_t least,
               CollectiveTerms& t) {
  t.repeats = std::max<std::int64_t>(
      {1, ceil_div(part, kTreeChunkBytes), std::min(per_hop * hops, ceil_div(part, least))});
  t.piece_bytes = ceil_div(part, t.repeats);
}

/// Rate on the wire of one of `flows` flows whose data is limited; 0: not limited.
std::int64_t per_flow(base::BytesPerSecond limit, double flows, double share) {
  return limit.raw() > 0 ? at_least_one(static_cast<std::int64_t>(limit.raw() / flows / share)) : 0;
}

}  // namespace

double bus_factor(Op op, int ranks) {
  const double n = ranks;
  switch (op) {
    case kAllReduce: return 2 * (n - 1) / n;
    case kAllGather:
    case kReduceScatter:
    case kAllToAll: return (n - 1) / n;
    case kBroadcast:
    case kPointToPoint: return 1;
  }
  ORRERY_CHECK(false, "collective out of range");
}

topologies::Topology usable_rates(const topologies::Topology& topology,
                                  const CollectiveTuning& tuning) {
  std::set<std::string> kinds;
  for (const auto& link : topology.links()) kinds.insert(link.kind);
  topologies::Topology usable = topology;
  for (const std::string& kind : kinds) {
    const double share = tuning.efficiency(kind);
    if (share < 1) usable = usable.with_link_rates(std::llround(share * 1e6), kind);
  }
  return usable;
}

std::int64_t CollectiveTerms::wire_bytes(std::int64_t data) const {
  return rate_share >= 1 ? data : static_cast<std::int64_t>(std::ceil(real(data) / rate_share));
}

CollectiveForms::CollectiveForms(const topologies::Topology& usable, const CollectiveTuning& tuning,
                                 GroupLayout group)
    : topology_(&usable), tuning_(&tuning), group_(std::move(group)) {
  ORRERY_CHECK(group_.size() > 1, "a collective of {} ranks", group_.size());
  const auto local = std::ranges::find_if(group_.hosts, [](const auto& h) { return h.size() > 1; });
  if (local != group_.hosts.end()) {
    device_hop_ = hop((*local)[0], (*local)[1]);
    const auto route = topology_->route(as_u32((*local)[0]), as_u32((*local)[1]));
    if (route.size() == 2) switch_rate_ = topology_->link(route[0]).bytes_per_second;
  }
  if (group_.host_count() > 1) network_hop_ = hop(group_.hosts[0][0], group_.hosts[1][0]);
}

CollectiveForms::Hop CollectiveForms::hop(int from, int to) const {
  Hop h;
  for (const auto link : topology_->route(as_u32(from), as_u32(to))) {
    const std::string& kind = topology_->link(link).kind;
    h.pcie = h.pcie || kind == "pcie";
    h.extra = std::max(h.extra, tuning_->network_extra(kind));
  }
  return h;
}

Seconds CollectiveForms::device_latency(const HopLatencies& latency, Protocol p) const {
  const Seconds hop = latency.device_hop(p, device_hop_.pcie);
  return group_.host_count() == 1 ? hop : std::max(hop, tuning_->posting(p));
}

Seconds CollectiveForms::network_latency(const HopLatencies& latency, Protocol p) const {
  return latency.network_hop(p, network_hop_.extra);
}

int CollectiveForms::nvls_heads() const {
  return as_int(std::min<std::int64_t>(group_.per_host(), tuning_->nvls.max_heads));
}

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

std::int64_t CollectiveForms::ring_rate() const {
  if (ring_rate_ > 0) return ring_rate_;
  std::vector<Send> sends;
  for (const auto& ring : ring_channels(group_))
    for (std::size_t i = 0; i < ring.size(); ++i)
      sends.push_back({ring[i], ring[(i + 1) % ring.size()]});
  return ring_rate_ = narrowest(sends);
}

std::int64_t CollectiveForms::tree_rate() const {
  if (tree_rate_ > 0) return tree_rate_;
  std::vector<Send> sends;
  for (const auto& tree : tree_channels(group_)) {
    for (std::size_t i = 1; i < tree.ranks.size(); ++i) {
      add_both_ways(tree.ranks[i], tree.ranks[as_index(tree.parent[i])], sends);
    }
  }
  return tree_rate_ = narrowest(sends);
}

std::int64_t CollectiveForms::direct_rate(Op op) const {
  std::int64_t& rate = op == kAllToAll ? all_rate_ : next_rate_;
  if (rate > 0) return rate;
  std::vector<Send> sends;
  const int n = group_.size();
  if (op == kPointToPoint) {
    for (int i = 0; i < n; ++i)
      sends.push_back({group_.ranks[as_index(i)], group_.ranks[as_index((i + 1) % n)]});
    return rate = narrowest(sends);
  }
  if (!all_to_all_by_rank(*topology_, group_)) {
    for (const int a : group_.ranks)
      for (const int b : group_.ranks)
        if (a != b) sends.push_back({a, b});
    return rate = narrowest(sends);
  }
  std::vector<std::int64_t> flows(topology_->links().size(), 0);
  for (const int rank : group_.hosts[0])
    for (const LinkLoad& load : all_to_all_links(*topology_, group_, 0, rank))
      flows[load.link.raw()] += load.flows;
  return rate = narrowest(flows);
}

bool CollectiveForms::available(Op op, Algorithm algorithm, Protocol protocol) const {
  const bool reduce = op == kAllReduce, several_hosts = group_.host_count() > 1;
  const bool direct = op == kAllToAll || op == kPointToPoint;
  const bool ll128 = protocol != kLL128 || !device_hop_.pcie;
  const bool nvls = reduce && protocol == kSimple && tuning_->nvls.efficiency > 0 &&
                    switch_rate_ > 0 && group_.uniform() &&
                    group_.per_host() >= tuning_->nvls.min_ranks;
  switch (algorithm) {
    case kRing: return !direct && ll128;
    case kTree: return reduce && ll128;
    case kNvls: return nvls && !several_hosts;
    case kNvlsTree: return nvls && several_hosts;
    case kHalvingDoubling: return reduce && ll128;
    case kHierarchical:
      return reduce && ll128 && several_hosts && group_.uniform() && group_.per_host() > 1;
    case kDirect: return direct && protocol != kLL128;
  }
  ORRERY_CHECK(false, "algorithm out of range");
}

std::int64_t CollectiveForms::ring_limit(Protocol p, double flows) const {
  const auto& ring = tuning_->ring;
  const double share = ring.rate[as_index(p)];
  if (p == kLL) return per_flow(ring.ll_limit[scale_of(group_.host_count())], flows, share);
  if (p == kLL128)
    return per_flow(ring.ll128_channel_limit * real(tuning_->channels), flows, share);
  return 0;
}

CollectiveTerms CollectiveForms::ring_terms(Op op, std::int64_t bytes, Protocol p) const {
  const auto& ring = tuning_->ring;
  const int n = group_.size(), hosts = group_.host_count();
  const std::int64_t steps = ring_steps(op, n), inter = hosts > 1 ? ring_steps(op, hosts) : 0;
  const Seconds device = device_latency(ring.latency, p),
                network = network_latency(ring.latency, p);
  const double plateau = op == kAllReduce && p == kSimple && hosts > 1 ? ring.plateau : 1.0;
  const Seconds hops = real(steps - inter) * device + real(inter) * network;
  const std::int64_t all = base::ceil_ps((ring.latency.base[as_index(p)] + hops) * plateau);
  CollectiveTerms t{.algorithm = kRing, .protocol = p, .rate_share = ring.rate[as_index(p)]};
  t.device_hop_ps = t.network_hop_ps = base::ceil_ps(hops * plateau) / steps;
  t.base_ps = all - steps * t.device_hop_ps;
  const std::int64_t parts = group_.ring_count();
  t.flow_limit = ring_limit(p, real(parts));
  if (op == kBroadcast) {
    const std::int64_t part = ceil_div(bytes, parts);
    in_chunks(part, n, kTreeChunksPerHop, kTreeChunkMinimum, t);
    return t;
  }
  t.repeats = steps;
  t.piece_bytes = ceil_div(bytes, n * parts);
  if (p == kSimple) t.copy_ps = base::ceil_ps(base::Bytes(real(bytes) / n) / tuning_->local_copy);
  return t;
}

CollectiveTerms CollectiveForms::tree_terms(std::int64_t bytes, Protocol p) const {
  const auto& tree = tuning_->tree;
  const auto channels = tree_channels(group_);
  CollectiveTerms t{
      .algorithm = kTree, .protocol = p, .base_ps = base::ceil_ps(tree.latency.base[as_index(p)])};
  t.device_hop_ps = base::ceil_ps(device_hop_.pcie ? tree.latency.pcie[as_index(p)]
                                                   : tree.latency.device[as_index(p)]);
  t.network_hop_ps = base::ceil_ps(network_latency(tree.latency, p));
  const double flows = 2.0 * real(channels.size());
  const std::size_t scale = scale_of(group_.host_count());
  const double share = tree.rate[as_index(p)], all = real(tuning_->channels);
  const base::BytesPerSecond limit = p == kLL      ? tuning_->ring.ll_limit[scale]
                                     : p == kLL128 ? tree.ll128_channel_limit[scale] * all
                                                   : tree.channel_limit[scale] * all;
  t.flow_limit = per_flow(limit, flows, share);
  t.rate_share = share * tree.correction_at(p, bytes);
  const std::int64_t part = ceil_div(bytes, static_cast<std::int64_t>(channels.size()));
  const std::int64_t depth = channels[0].device_depth + channels[0].network_depth;
  const bool lines = p != kSimple;
  in_chunks(part, depth, lines ? kLinesPerHop : kTreeChunksPerHop,
            lines ? kLinesMinimum : kTreeChunkMinimum, t);
  return t;
}

std::int64_t CollectiveForms::nvls_chunk(std::int64_t bytes, Algorithm algorithm) const {
  struct Step {
    std::int64_t fill, largest;
  };
  static constexpr std::array kOneHost{Step{64, 65536}, Step{8, 32768}, Step{2, 16384}},
      kHosts{Step{16, 131072}, Step{4, 65536}, Step{1, 32768}};
  const auto& nvls = tuning_->nvls;
  const bool tree = algorithm == kNvlsTree;
  const std::int64_t parallel = (tree ? nvls.tree_channels : nvls.channels) * nvls_heads();
  std::int64_t chunk = nvls.chunk_bytes;
  if (tree && (group_.host_count() >= kSmallChunkHosts || group_.per_host() >= kSmallChunkRanks))
    chunk = std::min<std::int64_t>(chunk, 65536);
  for (const auto& [fill, largest] : tree ? kHosts : kOneHost)
    if (bytes < fill * parallel * chunk) chunk = std::min(chunk, largest);
  return chunk * parallel;
}

CollectiveTerms CollectiveForms::nvls_terms(std::int64_t bytes, Algorithm algorithm) const {
  const auto& nvls = tuning_->nvls;
  const std::int64_t heads = nvls_heads();
  CollectiveTerms t{
      .algorithm = algorithm, .protocol = kSimple, .base_ps = base::ceil_ps(nvls.latency)};
  t.network_hop_ps = base::ceil_ps(nvls.network_hop + 2.0 * network_hop_.extra);
  t.rate_share = nvls.efficiency * (group_.host_count() > 2 ? nvls.beyond_two_hosts : 1.0);
  // A head passes a chunk on at the pace at which it reduces: between hosts too.
  t.flow_limit =
      at_least_one(std::llround(real(switch_rate_ / (heads + 1)) * t.rate_share / kHostTrees));
  t.repeats = at_least_one(ceil_div(bytes, nvls_chunk(bytes, algorithm)));
  t.piece_bytes = ceil_div(bytes, t.repeats);
  t.copy_ps = wire_ps(t.wire_bytes(ceil_div(t.piece_bytes, heads)),
                      at_least_one(switch_rate_ / (heads + 1)));
  return t;
}

CollectiveTerms CollectiveForms::direct_terms(Op op, std::int64_t bytes, Protocol p) const {
  const auto& direct = tuning_->direct;
  CollectiveTerms t{.algorithm = kDirect,
                    .protocol = p,
                    .base_ps = base::ceil_ps(direct.base[as_index(p)]),
                    .rate_share = direct.rate[as_index(p)]};
  t.network_hop_ps = base::ceil_ps(network_latency(tuning_->ring.latency, p));
  t.piece_bytes = op == kAllToAll ? ceil_div(bytes, group_.size()) : bytes;
  if (op == kAllToAll)
    t.copy_ps = base::ceil_ps(base::Bytes(real(t.piece_bytes)) / direct.local_copy);
  return t;
}

/// Halving-doubling and hierarchical are no algorithms of NCCL: they take the latencies and rates
/// of its rings.
CollectiveTerms CollectiveForms::exchange_terms(std::int64_t bytes, Algorithm algorithm,
                                                Protocol p) const {
  const auto& ring = tuning_->ring;
  CollectiveTerms t{.algorithm = algorithm,
                    .protocol = p,
                    .base_ps = base::ceil_ps(ring.latency.base[as_index(p)]),
                    .rate_share = ring.rate[as_index(p)]};
  t.device_hop_ps = base::ceil_ps(device_latency(ring.latency, p));
  t.network_hop_ps = base::ceil_ps(network_latency(ring.latency, p));
  t.flow_limit = ring_limit(p, 1);
  const bool hierarchical = algorithm == kHierarchical;
  t.piece_bytes = ceil_div(bytes, hierarchical ? group_.size() : halving_doubling_pieces(group_));
  if (hierarchical) t.repeats = 2 * (group_.host_count() - 1);
  return t;
}

CollectiveTerms CollectiveForms::terms(Op op, std::int64_t bytes, Algorithm algorithm,
                                       Protocol p) const {
  ORRERY_CHECK(available(op, algorithm, p), "{} {} is not available", to_string(algorithm),
               to_string(p));
  switch (algorithm) {
    case kRing: return ring_terms(op, bytes, p);
    case kTree: return tree_terms(bytes, p);
    case kNvls:
    case kNvlsTree: return nvls_terms(bytes, algorithm);
    case kHalvingDoubling:
    case kHierarchical: return exchange_terms(bytes, algorithm, p);
    case kDirect: return direct_terms(op, bytes, p);
  }
  ORRERY_CHECK(false, "algorithm out of range");
}

std::int64_t CollectiveForms::nvls_ps(const CollectiveTerms& t) const {
  const std::int64_t heads = nvls_heads(), unit = t.wire_bytes(ceil_div(t.piece_bytes, heads));
  const std::int64_t alone = wire_ps(unit, at_least_one(switch_rate_ / heads));
  const std::int64_t both = wire_ps(unit, at_least_one(switch_rate_ / (heads + 1)));
  const std::int64_t stages = t.base_ps + 2 * t.copy_ps + 2 * alone;
  if (t.algorithm == kNvls) return stages + (t.repeats - 1) * both;
  std::vector<Send> sends;
  int depth = 0;
  for (int head = 0; head < heads * kHostTrees; ++head) {
    const TreeChannel tree = host_tree(group_.host_count(), head % kHostTrees == 1);
    const auto slot = as_index(head / kHostTrees);
    depth = std::max(depth, tree.network_depth);
    for (std::size_t i = 1; i < tree.ranks.size(); ++i) {
      const int child = group_.hosts[as_index(tree.ranks[i])][slot];
      const int parent = group_.hosts[as_index(tree.ranks[as_index(tree.parent[i])])][slot];
      add_both_ways(child, parent, sends);
    }
  }
  const std::int64_t data = ceil_div(t.piece_bytes, heads * kHostTrees),
                     wire = wire_ps(data, narrowest(sends)), pace = wire_ps(data, t.flow_limit);
  // A hop of the first chunk takes the head's pace; links are half used while the pipeline fills.
  const std::int64_t hop = std::max(pace, wire / 2);
  return stages + 2 * depth * (t.network_hop_ps + hop) +
         (t.repeats - 1) * std::max({both, wire, pace});
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

std::int64_t CollectiveForms::paced_ps(Op op, const CollectiveTerms& t,
                                       std::int64_t message_ps) const {
  const std::int64_t d = message_ps;
  if (t.algorithm == kRing) {
    if (op == kBroadcast)
      return t.base_ps + (group_.size() - 1) * (t.device_hop_ps + d) + (t.repeats - 1) * d;
    return t.base_ps + t.repeats * (t.device_hop_ps + d) + t.copy_ps;
  }
  ORRERY_CHECK(t.algorithm == kTree, "{} has no pace", to_string(t.algorithm));
  const auto tree = tree_channels(group_).front();
  const std::int64_t hops = 2 * (tree.device_depth + tree.network_depth);
  return t.base_ps +
         2 * (tree.device_depth * t.device_hop_ps + tree.network_depth * t.network_hop_ps) +
         t.repeats * d + (hops - 1) * d / 2;
}

std::int64_t CollectiveForms::time_ps(Op op, std::int64_t bytes, const CollectiveTerms& t) const {
  ORRERY_CHECK(bytes >= 0, "{} bytes", bytes);
  switch (t.algorithm) {
    case kRing:
    case kTree: {
      const std::int64_t rate = t.algorithm == kRing ? ring_rate() : tree_rate();
      return paced_ps(op, t, wire_ps(t.wire_bytes(t.piece_bytes), limited(rate, t.flow_limit)));
    }
    case kNvls:
    case kNvlsTree: return nvls_ps(t);
    case kHalvingDoubling: return halving_ps(t);
    case kHierarchical: return hierarchical_ps(t);
    case kDirect: {
      const std::int64_t hop = group_.host_count() > 1 ? t.network_hop_ps : 0;
      return t.base_ps + hop + wire_ps(t.wire_bytes(t.piece_bytes), direct_rate(op)) + t.copy_ps;
    }
  }
  ORRERY_CHECK(false, "algorithm out of range");
}

GroupOnMachine CollectiveForms::as_nccl_sees_it() const {
  return {.ranks = group_.size(),
          .hosts = group_.host_count(),
          .nvls_heads = nvls_heads(),
          .rings = base::BytesPerSecond(real(ring_rate()) * group_.ring_count()),
          .switch_link = base::BytesPerSecond(real(switch_rate_)),
          .pcie = device_hop_.pcie,
          .network_extra = network_hop_.extra};
}

std::optional<CollectivePrice> CollectiveForms::choose(Op op, std::int64_t bytes,
                                                       std::optional<Algorithm> wanted) const {
  const auto by_tuner = [](Algorithm a) {
    return a == kRing || a == kTree || a == kNvls || a == kNvlsTree;
  };
  const CollectiveTuning& published = tuning_->by_which_nccl_chooses();
  const GroupOnMachine seen = as_nccl_sees_it();
  std::optional<CollectivePrice> best;
  double least = 0;
  for (const Algorithm algorithm : kAlgorithms) {
    if (wanted ? algorithm != *wanted : !by_tuner(algorithm) && algorithm != kDirect) continue;
    for (const Protocol protocol : kProtocols) {
      if (!available(op, algorithm, protocol)) continue;
      const double expected =
          by_tuner(algorithm) ? expected_seconds(published, seen, op, bytes, algorithm, protocol)
                              : real(time_ps(op, bytes, terms(op, bytes, algorithm, protocol)));
      if (best && expected >= least) continue;
      best = CollectivePrice{algorithm, protocol, 0};
      least = expected;
    }
  }
  if (best) best->time_ps = time_ps(op, bytes, terms(op, bytes, best->algorithm, best->protocol));
  return best;
}

}  // namespace orrery::costmodel

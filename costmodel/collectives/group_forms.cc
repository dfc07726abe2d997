#include "costmodel/collectives/group_forms.h"

#include <algorithm>
#include <bit>
#include <cmath>
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

/// Largest chunk of a tree, and how many chunks fill it: NCCL splits until every hop of the way has
/// a few.
constexpr int kSmallChunkHosts = 4, kSmallChunkRanks = 16;
constexpr std::int64_t kTreeChunkBytes = 512 * 1024, kTreeChunkMinimum = 1024,
                       kTreeChunksPerHop = 8;
/// LL and LL128 pass a line on as soon as it is there: nearly nothing is left of a pipeline's
/// filling.
constexpr std::int64_t kLinesMinimum = 128, kLinesPerHop = 64;
constexpr std::int64_t kRingSlices = 2;

std::int64_t wire_ps(std::int64_t bytes, std::int64_t rate) {
  return mul_div_up(bytes, base::kPicosecondsPerSecond, rate);
}

std::int64_t limited(std::int64_t rate, std::int64_t limit) {
  return limit > 0 ? std::min(rate, limit) : rate;
}

std::int64_t at_least_one(std::int64_t n) { return std::max<std::int64_t>(n, 1); }

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

std::int64_t CollectiveTerms::wire_bytes(std::int64_t data) const {
  return rate_share >= 1 ? data : static_cast<std::int64_t>(std::ceil(real(data) / rate_share));
}

void CollectiveTerms::slow_down(double latencies, double limits) {
  for (std::int64_t* ps : {&base_ps, &device_hop_ps, &network_hop_ps, &hold_ps, &copy_ps})
    *ps = std::llround(real(*ps) * latencies);
  if (flow_limit > 0) flow_limit = at_least_one(std::llround(real(flow_limit) / limits));
}

GroupForms::GroupForms(const CollectiveTuning& tuning, const GroupShape& shape)
    : tuning_(&tuning), shape_(&shape) {
  ORRERY_CHECK(shape.size > 1, "a collective of {} ranks", shape.size);
}

Pattern GroupForms::pattern_of(Op op, Algorithm algorithm) {
  switch (algorithm) {
    case kTree: return Pattern::kTrees;
    case kNvls: return Pattern::kSwitch;
    case kNvlsTree: return Pattern::kSwitchTrees;
    case kDirect: return op == kAllToAll ? Pattern::kEveryone : Pattern::kShift;
    case kRing:
    case kHalvingDoubling:
    case kHierarchical: return Pattern::kRings;
  }
  ORRERY_CHECK(false, "algorithm out of range");
}

Seconds GroupForms::device_latency(const HopLatencies& latency, Protocol p) const {
  const Seconds hop = latency.device_hop(p, shape_->pcie);
  return shape_->hosts == 1 ? hop : std::max(hop, tuning_->posting(p));
}

Seconds GroupForms::network_latency(const HopLatencies& latency, Protocol p) const {
  return latency.network_hop(p, shape_->network_extra);
}

bool GroupForms::available(Op op, Algorithm algorithm, Protocol protocol) const {
  const bool reduce = op == kAllReduce, several_hosts = shape_->hosts > 1;
  const bool direct = op == kAllToAll || op == kPointToPoint;
  const bool ll128 = protocol != kLL128 || !shape_->pcie;
  const bool nvls = reduce && protocol == kSimple && tuning_->nvls.efficiency > 0 &&
                    shape_->switch_rate > 0 && shape_->uniform() &&
                    shape_->per_host >= tuning_->nvls.min_ranks;
  switch (algorithm) {
    case kRing: return !direct && ll128;
    case kTree: return reduce && ll128;
    case kNvls: return nvls && !several_hosts;
    case kNvlsTree: return nvls && several_hosts;
    case kHalvingDoubling: return reduce && ll128;
    case kHierarchical:
      return reduce && ll128 && several_hosts && shape_->uniform() && shape_->per_host > 1;
    case kDirect: return direct && protocol != kLL128;
  }
  ORRERY_CHECK(false, "algorithm out of range");
}

std::int64_t GroupForms::ring_limit(Protocol p, double flows) const {
  const auto& ring = tuning_->ring;
  const double share = ring.rate[as_index(p)];
  if (p == kLL) return per_flow(ring.ll_limit[scale_of(shape_->hosts)], flows, share);
  if (p == kLL128)
    return per_flow(ring.ll128_channel_limit * real(tuning_->channels), flows, share);
  return 0;
}

CollectiveTerms GroupForms::ring_terms(Op op, std::int64_t bytes, Protocol p) const {
  const auto& ring = tuning_->ring;
  const int n = shape_->size, hosts = shape_->hosts;
  const std::int64_t steps = ring_steps(op, n), inter = hosts > 1 ? ring_steps(op, hosts) : 0;
  const Seconds device = device_latency(ring.latency, p),
                network = network_latency(ring.latency, p);
  const double plateau = op == kAllReduce && p == kSimple && hosts > 1 ? ring.plateau : 1.0;
  const Seconds hops = real(steps - inter) * device + real(inter) * network;
  const std::int64_t all = base::ceil_ps((ring.latency.base[as_index(p)] + hops) * plateau);
  CollectiveTerms t{.algorithm = kRing, .protocol = p, .rate_share = ring.rate[as_index(p)]};
  t.device_hop_ps = t.network_hop_ps = base::ceil_ps(hops * plateau) / steps;
  t.base_ps = all - steps * t.device_hop_ps;
  const std::int64_t parts = shape_->rings();
  t.flow_limit = ring_limit(p, real(parts));
  if (op == kBroadcast) {
    const std::int64_t part = ceil_div(bytes, parts);
    in_chunks(part, n, kTreeChunksPerHop, kTreeChunkMinimum, t);
    return t;
  }
  t.repeats = steps;
  if (p == kSimple) t.copy_ps = base::ceil_ps(base::Bytes(real(bytes) / n) / tuning_->local_copy);
  if (p == kSimple && hosts > 1) {
    t.slices = kRingSlices;
    t.hold_ps = base::ceil_ps(real(steps - inter) * plateau * device) / (steps * kRingSlices);
    t.device_hop_ps = t.network_hop_ps = base::ceil_ps(real(inter) * plateau * network) / steps;
  }
  t.piece_bytes = ceil_div(bytes, n * parts * t.slices);
  return t;
}

CollectiveTerms GroupForms::tree_terms(std::int64_t bytes, Protocol p) const {
  const auto& tree = tuning_->tree;
  const std::int64_t trees = shape_->trees();
  CollectiveTerms t{
      .algorithm = kTree, .protocol = p, .base_ps = base::ceil_ps(tree.latency.base[as_index(p)])};
  t.device_hop_ps = base::ceil_ps(shape_->pcie ? tree.latency.pcie[as_index(p)]
                                               : tree.latency.device[as_index(p)]);
  t.network_hop_ps = base::ceil_ps(network_latency(tree.latency, p));
  const double flows = 2.0 * real(trees);
  const std::size_t scale = scale_of(shape_->hosts);
  const double share = tree.rate[as_index(p)], all = real(tuning_->channels);
  const base::BytesPerSecond limit = p == kLL      ? tuning_->ring.ll_limit[scale]
                                     : p == kLL128 ? tree.ll128_channel_limit[scale] * all
                                                   : tree.channel_limit[scale] * all;
  t.flow_limit = per_flow(limit, flows, share);
  t.rate_share = share * tree.correction_at(p, bytes);
  const std::int64_t part = ceil_div(bytes, trees);
  const std::int64_t depth = shape_->largest_host - 1 + shape_->tree_depth();
  const bool lines = p != kSimple;
  in_chunks(part, depth, lines ? kLinesPerHop : kTreeChunksPerHop,
            lines ? kLinesMinimum : kTreeChunkMinimum, t);
  return t;
}

std::int64_t GroupForms::nvls_chunk(std::int64_t bytes, Algorithm algorithm) const {
  struct Step {
    std::int64_t fill, largest;
  };
  static constexpr std::array kOneHost{Step{64, 65536}, Step{8, 32768}, Step{2, 16384}},
      kHosts{Step{16, 131072}, Step{4, 65536}, Step{1, 32768}};
  const auto& nvls = tuning_->nvls;
  const bool tree = algorithm == kNvlsTree;
  const std::int64_t parallel = (tree ? nvls.tree_channels : nvls.channels) * shape_->heads;
  std::int64_t chunk = nvls.chunk_bytes;
  if (tree && (shape_->hosts >= kSmallChunkHosts || shape_->per_host >= kSmallChunkRanks))
    chunk = std::min<std::int64_t>(chunk, 65536);
  for (const auto& [fill, largest] : tree ? kHosts : kOneHost)
    if (bytes < fill * parallel * chunk) chunk = std::min(chunk, largest);
  return chunk * parallel;
}

CollectiveTerms GroupForms::nvls_terms(std::int64_t bytes, Algorithm algorithm) const {
  const auto& nvls = tuning_->nvls;
  const std::int64_t heads = shape_->heads;
  CollectiveTerms t{
      .algorithm = algorithm, .protocol = kSimple, .base_ps = base::ceil_ps(nvls.latency)};
  t.network_hop_ps = base::ceil_ps(nvls.network_hop + 2.0 * shape_->network_extra);
  t.rate_share = nvls.efficiency * (shape_->hosts > 2 ? nvls.beyond_two_hosts : 1.0);
  // A head passes a chunk on at the pace at which it reduces: between hosts too.
  t.flow_limit = at_least_one(
      std::llround(real(shape_->switch_rate / (heads + 1)) * t.rate_share / kHostTrees));
  t.repeats = at_least_one(ceil_div(bytes, nvls_chunk(bytes, algorithm)));
  t.piece_bytes = ceil_div(bytes, t.repeats);
  t.copy_ps = wire_ps(t.wire_bytes(ceil_div(t.piece_bytes, heads)),
                      at_least_one(shape_->switch_rate / (heads + 1)));
  return t;
}

CollectiveTerms GroupForms::direct_terms(Op op, std::int64_t bytes, Protocol p) const {
  const auto& direct = tuning_->direct;
  CollectiveTerms t{.algorithm = kDirect,
                    .protocol = p,
                    .base_ps = base::ceil_ps(direct.base[as_index(p)]),
                    .rate_share = direct.rate[as_index(p)]};
  t.network_hop_ps = base::ceil_ps(network_latency(tuning_->ring.latency, p));
  t.piece_bytes = op == kAllToAll ? ceil_div(bytes, shape_->size) : bytes;
  if (op == kAllToAll)
    t.copy_ps = base::ceil_ps(base::Bytes(real(t.piece_bytes)) / direct.local_copy);
  return t;
}

/// Halving-doubling and hierarchical are no algorithms of NCCL: they take the latencies and rates
/// of its rings.
CollectiveTerms GroupForms::exchange_terms(std::int64_t bytes, Algorithm algorithm,
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
  const int pieces = hierarchical ? shape_->size : as_int(std::bit_floor(as_u32(shape_->size)));
  t.piece_bytes = ceil_div(bytes, pieces);
  if (hierarchical) t.repeats = 2 * (shape_->hosts - 1);
  return t;
}

CollectiveTerms GroupForms::terms(Op op, std::int64_t bytes, Algorithm algorithm,
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

CollectiveDuration GroupForms::nvls(const CollectiveTerms& t, const FlowRates& rates) const {
  const std::int64_t heads = shape_->heads, unit = t.wire_bytes(ceil_div(t.piece_bytes, heads));
  const std::int64_t alone = wire_ps(unit, at_least_one(rates.switch_link / heads));
  const std::int64_t both = wire_ps(unit, at_least_one(rates.switch_link / (heads + 1)));
  const std::int64_t stages = t.base_ps + 2 * t.copy_ps + 2 * alone;
  if (t.algorithm == kNvls) return {stages + (t.repeats - 1) * both, t.repeats * both, false};
  const std::int64_t data = ceil_div(t.piece_bytes, heads * kHostTrees),
                     wire = wire_ps(data, rates.flow), pace = wire_ps(data, t.flow_limit);
  // A hop of the first chunk takes the head's pace; links are half used while the pipeline fills.
  const std::int64_t hop = std::max(pace, wire / 2), chunk = std::max({both, wire, pace});
  return {stages + 2 * shape_->tree_depth() * (t.network_hop_ps + hop) + (t.repeats - 1) * chunk,
          t.repeats * chunk, pace > std::max(both, wire)};
}

std::int64_t GroupForms::paced_ps(Op op, const CollectiveTerms& t, std::int64_t message_ps) const {
  const std::int64_t d = message_ps;
  if (t.algorithm == kRing) {
    if (op == kBroadcast)
      return t.base_ps + (shape_->size - 1) * (t.device_hop_ps + d) + (t.repeats - 1) * d;
    const std::int64_t slice = d + t.hold_ps, step = t.slices * slice;
    return t.base_ps + (t.repeats - 1) * std::max(step, slice + t.device_hop_ps) + step +
           t.device_hop_ps + t.copy_ps;
  }
  ORRERY_CHECK(t.algorithm == kTree, "{} has no pace", to_string(t.algorithm));
  const std::int64_t inside = shape_->largest_host - 1, across = shape_->tree_depth();
  const std::int64_t hops = 2 * (inside + across);
  return t.base_ps + 2 * (inside * t.device_hop_ps + across * t.network_hop_ps) + t.repeats * d +
         (hops - 1) * d / 2;
}

std::int64_t GroupForms::unit_wire_bytes(Op op, const CollectiveTerms& t) const {
  switch (pattern_of(op, t.algorithm)) {
    case Pattern::kSwitch: return t.repeats * t.wire_bytes(ceil_div(t.piece_bytes, shape_->heads));
    case Pattern::kSwitchTrees:
      return t.repeats * t.wire_bytes(ceil_div(t.piece_bytes, shape_->heads * kHostTrees)) / 1000;
    case Pattern::kRings:
    case Pattern::kTrees: return t.repeats * t.slices * t.wire_bytes(t.piece_bytes);
    case Pattern::kEveryone:
    case Pattern::kShift: return t.wire_bytes(t.piece_bytes);
  }
  ORRERY_CHECK(false, "pattern out of range");
}

CollectiveDuration GroupForms::duration(Op op, const CollectiveTerms& t,
                                        const FlowRates& rates) const {
  const std::int64_t wire = t.wire_bytes(t.piece_bytes);
  switch (t.algorithm) {
    case kRing:
    case kTree: {
      const std::int64_t message = wire_ps(wire, limited(rates.flow, t.flow_limit));
      return {paced_ps(op, t, message), t.repeats * t.slices * message,
              t.flow_limit > 0 && t.flow_limit < rates.flow};
    }
    case kNvls:
    case kNvlsTree: return nvls(t, rates);
    case kDirect: {
      const std::int64_t hop = shape_->hosts > 1 ? t.network_hop_ps : 0,
                         message = wire_ps(wire, rates.flow);
      return {t.base_ps + hop + message + t.copy_ps, message, false};
    }
    case kHalvingDoubling:
    case kHierarchical: break;
  }
  ORRERY_CHECK(false, "{} has several patterns", to_string(t.algorithm));
}

std::optional<CollectiveChoice> GroupForms::choose(Op op, std::int64_t bytes,
                                                   const FlowRates& rates,
                                                   std::optional<Algorithm> wanted) const {
  const CollectiveTuning& published = tuning_->by_which_nccl_chooses();
  const GroupOnMachine seen{.ranks = shape_->size,
                            .hosts = shape_->hosts,
                            .nvls_heads = shape_->heads,
                            .rings = base::BytesPerSecond(real(rates.flow) * shape_->rings()),
                            .switch_link = base::BytesPerSecond(real(rates.switch_link)),
                            .pcie = shape_->pcie,
                            .network_extra = shape_->network_extra};
  std::optional<CollectiveChoice> best;
  double least = 0;
  for (const Algorithm algorithm : {kRing, kTree, kNvls, kNvlsTree, kDirect}) {
    if (wanted && algorithm != *wanted) continue;
    for (const Protocol protocol : kProtocols) {
      if (!available(op, algorithm, protocol)) continue;
      const double expected =
          algorithm == kDirect
              ? real(duration(op, terms(op, bytes, algorithm, protocol), rates).time_ps)
              : expected_seconds(published, seen, op, bytes, algorithm, protocol);
      if (best && expected >= least) continue;
      best = CollectiveChoice{algorithm, protocol};
      least = expected;
    }
  }
  return best;
}

}  // namespace orrery::costmodel

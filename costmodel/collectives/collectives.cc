#include "costmodel/collectives/collectives.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "base/sim_time.h"
#include "costmodel/collectives/collective_choice.h"

namespace orrery::costmodel {
namespace {

using enum model::Collective;
using plan::Collective;

/// Largest n such that rates stay exact integers of bytes per second.
constexpr double kMaxRate = 9e18;

/// What every rank sends, in n-ths of a byte.
std::int64_t wire_parts(Collective op, std::int64_t n, std::int64_t bytes) {
  switch (op) {
    case kAllReduce: return 2 * (n - 1) * bytes;
    case kAllGather:
    case kReduceScatter:
    case kAllToAll: return (n - 1) * bytes;
    case kBroadcast:
    case kPointToPoint: return n * bytes;
  }
  ORRERY_CHECK(false, "collective out of range");
}

/// Whole bytes of it in one of `units` flows; the rest is less than one byte's time, see
/// with_remainder().
std::int64_t wire(Collective op, std::int64_t n, std::int64_t units, std::int64_t bytes) {
  return wire_parts(op, n, bytes) / (n * units);
}

/// Adds the time of the part of a byte that wire() left out (a tensor that n u does not divide),
/// rounded down: the transfer's own rounding up covers it, and the sum stays monotone in the bytes.
Transfer with_remainder(Transfer t, Collective op, std::int64_t n, std::int64_t units,
                        std::int64_t bytes) {
  const std::int64_t rest = wire_parts(op, n, bytes) % (n * units);
  if (rest == 0) return t;
  t.latency_ps += mul_div(rest, base::kPicosecondsPerSecond, n * units) / t.bytes_per_second;
  return t;
}

/// Time of `bytes` on measured points: intercept and slope of the line segment that holds it.
struct Line {
  double latency = 0;
  double transfer = 0;  // seconds beyond the latency
};
Line line_at(const std::vector<model::CollectivePoint>& points, std::int64_t bytes) {
  const auto x = real(bytes);
  const auto& first = points.front();
  const auto slope_of = [](const model::CollectivePoint& a, const model::CollectivePoint& b) {
    return std::max(0.0, (b.seconds - a.seconds) / real(b.bytes - a.bytes));
  };
  if (points.size() == 1 || bytes <= first.bytes) {
    // Below the first point time hardly falls: the measured floor stays as latency.
    const double size = real(std::max<std::int64_t>(first.bytes, 1));
    const double slope = points.size() == 1 ? first.seconds / size : slope_of(first, points[1]);
    const double intercept = std::max(0.0, first.seconds - slope * real(first.bytes));
    const double total = intercept + (first.seconds - intercept) * x / size;
    return {intercept, total - intercept};
  }
  std::size_t i = 1;
  while (i + 1 < points.size() && points[i].bytes < bytes) ++i;
  const auto& a = points[i - 1];
  const double slope = slope_of(a, points[i]);
  const double total = a.seconds + slope * (x - real(a.bytes));
  const double intercept = std::clamp(a.seconds - slope * real(a.bytes), 0.0, total);
  return {intercept, total - intercept};
}

std::int64_t rate_of(std::int64_t bytes, double seconds) {
  if (bytes <= 0 || seconds <= 0) return 0;
  return static_cast<std::int64_t>(std::clamp(real(bytes) / seconds, 1.0, kMaxRate));
}

/// A larger tensor never takes less: measurements of small tensors are noisy.
void make_monotone(std::vector<model::CollectivePoint>& points) {
  for (std::size_t i = 1; i < points.size(); ++i)
    points[i].seconds = std::max(points[i].seconds, points[i - 1].seconds);
}

constexpr std::int64_t kMillion = 1'000'000;
/// factor in millionths, as prices are integers.
std::int64_t ppm_of(double factor) { return std::llround(factor * 1e6); }

std::int64_t ceil_ratio(std::int64_t ps, double factor) {
  return mul_div_up(ps, ppm_of(factor), kMillion);
}

void check_ranks(int first_rank, int rank_count, const topologies::Topology& topology) {
  ORRERY_CHECK(rank_count > 0, "{} ranks", rank_count);
  ORRERY_CHECK(first_rank >= 0 && first_rank + rank_count <= as_int(topology.device_count()),
               "ranks {} .. {} of {}", first_rank, first_rank + rank_count,
               topology.device_count());
}

/// Puts latency and cap of a measured entry into a transfer of `n_steps` steps. Route latency where
/// the entry has none.
void apply(const model::CollectiveTimes& entry, std::int64_t bytes, std::int64_t n_steps,
           std::int64_t units, Transfer& t) {
  if (entry.bus_bandwidth > 0) {
    t.rate_cap =
        static_cast<std::int64_t>(std::clamp(entry.bus_bandwidth / real(units), 1.0, kMaxRate));
    if (entry.latency_seconds > 0)
      t.latency_ps = n_steps * base::ceil_ps(base::Seconds(entry.latency_seconds));
    return;
  }
  const Line line = line_at(entry.points, bytes);
  t.latency_ps = base::ceil_ps(base::Seconds(line.latency));
  t.rate_cap = rate_of(t.wire_bytes, line.transfer);
  // A flat stretch of the curve is all latency.
  if (t.rate_cap == 0 && t.wire_bytes > 0) t.rate_cap = static_cast<std::int64_t>(kMaxRate);
}

}  // namespace

std::int64_t Transfer::duration_ps() const {
  if (wire_bytes == 0) return latency_ps;
  ORRERY_CHECK(bytes_per_second > 0, "transfer of {} bytes at no rate", wire_bytes);
  const auto scaled = static_cast<__int128>(wire_bytes) * base::kPicosecondsPerSecond;
  const __int128 ps = (scaled + bytes_per_second - 1) / bytes_per_second + latency_ps;
  ORRERY_CHECK(ps <= std::numeric_limits<std::int64_t>::max(), "transfer time out of range");
  return static_cast<std::int64_t>(ps);
}

CollectivePrices::CollectivePrices(const topologies::Topology& topology,
                                   std::vector<model::CollectiveTimes> measured, RateScale scale,
                                   model::StepCommunication step, TimeFactors errors)
    : topology_(&topology),
      measured_(std::move(measured)),
      scale_(scale),
      step_(step),
      errors_(errors) {
  for (auto& entry : measured_) make_monotone(entry.points);
}

/// No flows between paths. Pages of links that no path crosses are never touched.
std::int64_t* CollectivePrices::crossings() const {
  struct Free {
    void operator()(std::int64_t* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<std::int64_t[], Free> crossings;
  thread_local std::size_t size = 0;
  if (const std::size_t links = topology_->links().size(); size < links) {
    crossings.reset(static_cast<std::int64_t*>(std::calloc(links, sizeof(std::int64_t))));
    ORRERY_CHECK(crossings != nullptr, "no memory for {} links", links);
    size = links;
  }
  return crossings.get();
}

void CollectivePrices::add_route(int from, int to, std::int64_t flows, Paths& paths) const {
  const auto a = as_u32(from), b = as_u32(to);
  std::vector<topologies::LinkId>& route = paths.route;
  route.clear();
  topology_->append_route(a, b, route);
  ++paths.routes;
  if (topology_->detoured(a, b))
    paths.detours.insert(paths.detours.end(), route.begin(), route.end());
  std::int64_t latency = 0, *all = crossings();
  for (const auto link : route) {
    latency += base::ceil_ps(topology_->link(link).latency);
    const std::int64_t weight = paths.blocks != nullptr ? paths.blocks->weight(from, link) : 1;
    if (weight == 0) continue;
    const auto at = paths.inside ? paths.blocks->in_first_block(link) : link;
    if (all[at.raw()] == 0) paths.crossed.push_back({at, 0});
    all[at.raw()] += weight * flows;
  }
  paths.alpha_ps = std::max(paths.alpha_ps, latency);
}

/// Unit flows that member `index` of a group sends; paths.units of them are all its bytes.
void CollectivePrices::add_flows(Collective op, const plan::Group& group, const Spread& spread,
                                 int base, int index, Paths& paths) const {
  const int n = group.size, k = spread.rings;
  const auto send = [&](int member, std::int64_t flows) {
    add_route(base + index * group.stride, base + member * group.stride, flows, paths);
  };
  if (op == kAllToAll) {
    for (int other = 0; other < n; ++other) {
      if (other != index) send(other, 1);
    }
  } else if (k == 1) {
    if (op != kBroadcast || index + 1 < n) send((index + 1) % n, paths.units);
  } else {
    const int place = index % k, host = index / k, behind = (host + 1) % spread.hosts;
    const int turn = host % 2 == 0 ? 1 : k - 1;  // back in odd hosts
    const bool even_to_even = behind == 0 && host % 2 == 0;
    send(host * k + (place + turn) % k, paths.units / k * (k - 1));
    send(behind * k + (even_to_even ? (place + 1) % k : place), paths.units / k);
  }
}

CollectivePrices::Spread CollectivePrices::spread_of(Collective op, const plan::Group& group,
                                                     int base) const {
  Spread spread;  // host-major ranks: members of one host are neighbours in the group
  int members = 1, first = 0;
  bool alike = op == kAllReduce || op == kAllGather || op == kReduceScatter;
  for (int i = 1; i < group.size; ++i) {
    const auto rank = as_u32(base + i * group.stride);
    if (topology_->same_host(rank - as_u32(group.stride), rank)) {
      ++members;
      continue;
    }
    if (first == 0) first = members;
    alike = alike && members == first;
    ++spread.hosts;
    members = 1;
  }
  if (alike && members == first) spread.rings = members;
  return spread;
}

/// Of the groups that hold one of the ranks: what these send, or all members.
void CollectivePrices::add_groups(Collective op, const plan::Group& group, int first_rank,
                                  int rank_count, bool all_members, Paths& paths) const {
  paths.units = op == kAllToAll ? group.size - 1 : 1;
  std::map<int, Spread> spreads;  // of groups by their first rank
  for (int rank = first_rank; rank < first_rank + rank_count; ++rank) {
    // the group's first of these ranks
    if (group.index(rank) > 0 && rank - group.stride >= first_rank) continue;
    const int base = group.base(rank);
    const Spread spread = spreads[base] = spread_of(op, group, base);
    paths.hosts = std::max(paths.hosts, spread.hosts);
    paths.units = std::lcm(paths.units, spread.rings);
  }
  for (const auto& [base, spread] : spreads) {
    for (int i = 0; i < group.size; ++i) {
      const int place = base + i * group.stride - first_rank;
      if (all_members || (place >= 0 && place < rank_count))
        add_flows(op, group, spread, base, i, paths);
    }
  }
}

CollectivePrices::Paths CollectivePrices::group_paths(Collective op, const plan::Group& group,
                                                      int first_rank, int rank_count,
                                                      Senders senders) const {
  Paths paths;
  add_groups(op, group, first_rank, rank_count, senders == Senders::kWholeGroups, paths);
  return paths;
}

CollectivePrices::Paths CollectivePrices::group_paths(Collective op, const plan::Group& group,
                                                      const RankBlocks& blocks,
                                                      Senders senders) const {
  Paths paths{.blocks = &blocks, .inside = blocks.inside(group)};
  add_groups(op, group, blocks.first_rank(), blocks.ranks(),
             senders == Senders::kWholeGroups && !paths.inside, paths);
  return paths;
}

const model::CollectiveTimes* CollectivePrices::find(Collective op, std::int64_t size,
                                                     std::int64_t stride, int hosts) const {
  return base::closest(measured_, [&](const model::CollectiveTimes& entry) {
    if (entry.op != op || entry.size != size || entry.hosts != hosts) return base::kTooFar;
    // Consecutive and strided groups are different paths: a stride of 1 stands in for another only
    // when nothing else does.
    return ((entry.stride == 1) == (stride == 1) ? 0.0 : 1e3) +
           std::abs(std::log2(real(entry.stride) / real(stride)));
  });
}

Transfer CollectivePrices::in_step(Transfer transfer, bool measured, int hosts) const {
  const double factor =
      (measured ? step_.factor : 1) * (hosts > 1 ? errors_.across_hosts : errors_.in_hosts);
  transfer.latency_ps = ceil_ratio(transfer.latency_ps, factor);
  transfer.latency_ps += base::ceil_ps(base::Seconds(step_.issue_seconds));
  const std::int64_t ppm = hosts > 1 ? scale_.across_hosts_ppm : scale_.in_hosts_ppm;
  if (transfer.rate_cap == 0) return transfer;
  const auto cap =
      static_cast<__int128>(transfer.rate_cap) * ppm / kMillion * kMillion / ppm_of(factor);
  transfer.rate_cap =
      static_cast<std::int64_t>(std::clamp<__int128>(cap, 1, static_cast<__int128>(kMaxRate)));
  return transfer;
}

std::vector<LinkLoad> CollectivePrices::flows_of(Paths& paths) const {
  std::int64_t* all = crossings();
  for (LinkLoad& l : paths.crossed) l.flows = std::exchange(all[l.link.raw()], 0);
  return std::move(paths.crossed);
}

PathLoads CollectivePrices::counted(Paths paths) const {
  PathLoads loads{paths.alpha_ps, paths.hosts, paths.units, flows_of(paths),
                  std::move(paths.detours)};
  std::ranges::sort(loads.links, {}, &LinkLoad::link);
  std::ranges::sort(loads.detours);
  return loads;
}

Transfer CollectivePrices::load(Transfer transfer, const PathLoads& loads) const {
  const std::int64_t measured = transfer.rate_cap;
  std::int64_t rate = measured > 0 ? measured : std::numeric_limits<std::int64_t>::max();
  for (const LinkLoad& crossed : loads.links) {
    const std::int64_t now = link_rate(topology_->link(crossed.link));
    const std::int64_t built = topology_->changed() ? topology_->built_rate(crossed.link) : now;
    if (measured == 0 || built / crossed.flows >= measured ||
        std::ranges::binary_search(loads.detours, crossed.link)) {
      transfer.links.push_back(crossed);
      rate = std::min(rate, std::max<std::int64_t>(now / crossed.flows, 1));
    } else if (now < built) {
      transfer.rate_cap =
          std::min(transfer.rate_cap, std::max<std::int64_t>(mul_div(measured, now, built), 1));
    }
  }
  transfer.bytes_per_second = std::min(rate, transfer.rate_cap > 0 ? transfer.rate_cap : rate);
  return transfer;
}

std::int64_t CollectivePrices::link_rate(const topologies::Link& link) const {
  return topologies::rate_at_ppm(link.bytes_per_second, topology_->in_host(link)
                                                            ? errors_.host_links_ppm
                                                            : errors_.fabric_links_ppm);
}

PathSummary CollectivePrices::summed(Paths paths) const {
  PathSummary s{.alpha_ps = paths.alpha_ps,
                .hosts = paths.hosts,
                .units = paths.units,
                .routes = paths.routes};
  // Of equal shares the one of fewest flows, whatever the order of the links.
  const auto narrower = [](const PathSummary::Narrowest& a, const PathSummary::Narrowest& b) {
    const auto share = static_cast<__int128>(a.bytes_per_second) * b.flows,
               other = static_cast<__int128>(b.bytes_per_second) * a.flows;
    return b.flows == 0 || share < other || (share == other && a.flows < b.flows);
  };
  for (const LinkLoad& crossed : flows_of(paths)) {
    const topologies::Link& link = topology_->link(crossed.link);
    const PathSummary::Narrowest here{link.bytes_per_second, crossed.flows};
    if (!narrower(here, s.in_hosts) && !narrower(here, s.fabric)) continue;  // most are alike
    PathSummary::Narrowest& least = topology_->in_host(link) ? s.in_hosts : s.fabric;
    if (narrower(here, least)) least = here;
  }
  return s;
}

std::int64_t CollectivePrices::rate_alone(std::int64_t cap, const PathSummary& paths) const {
  if (cap > 0) return cap;
  std::int64_t rate = std::numeric_limits<std::int64_t>::max();
  const auto narrow = [&](const PathSummary::Narrowest& n, std::int64_t ppm) {
    if (n.flows == 0) return;
    rate = std::min(rate, std::max<std::int64_t>(
                              topologies::rate_at_ppm(n.bytes_per_second, ppm) / n.flows, 1));
  };
  narrow(paths.in_hosts, errors_.host_links_ppm);
  narrow(paths.fabric, errors_.fabric_links_ppm);
  return rate;
}

/// Latency, wire bytes and measured cap; no links yet.
Transfer CollectivePrices::priced(Collective op, const plan::Group& group, std::int64_t bytes,
                                  std::int64_t alpha_ps, int hosts, std::int64_t units) const {
  const std::int64_t n = group.size;
  Transfer t{.latency_ps = ring_steps(op, n) * alpha_ps,
             .wire_bytes = wire(op, n, units, bytes),
             .units = units};
  const model::CollectiveTimes* entry = find(op, n, group.stride, hosts);
  if (entry != nullptr) {
    apply(*entry, bytes, ring_steps(op, n), units, t);
  } else if (op == kAllGather || op == kReduceScatter) {
    entry = find(kAllReduce, n, group.stride, hosts);
    if (entry != nullptr) {
      // Half of the all-reduce of the same tensor: half the steps, half the wire bytes, the same
      // bus bandwidth.
      Transfer whole{.latency_ps = 2 * t.latency_ps,
                     .wire_bytes = wire(kAllReduce, n, units, bytes)};
      apply(*entry, bytes, ring_steps(kAllReduce, n), units, whole);
      t.latency_ps = ceil_div(whole.latency_ps, 2);
      t.rate_cap = whole.rate_cap;
    }
  }
  return in_step(t, entry != nullptr, hosts);
}

PathLoads CollectivePrices::loads(Collective op, const plan::Group& group, int first_rank,
                                  int rank_count, Senders senders) const {
  if (group.size <= 1) return {};
  check_ranks(first_rank, rank_count, *topology_);
  return counted(group_paths(op, group, first_rank, rank_count, senders));
}

Transfer CollectivePrices::collective(Collective op, const plan::Group& group, std::int64_t bytes,
                                      const PathLoads& loads) const {
  const std::int64_t n = group.size;
  if (n <= 1) return {};
  ORRERY_CHECK(bytes >= 0, "{} bytes", bytes);
  return with_remainder(
      load(priced(op, group, bytes, loads.alpha_ps, loads.hosts, loads.units), loads), op, n,
      loads.units, bytes);
}

Transfer CollectivePrices::collective(Collective op, const plan::Group& group, std::int64_t bytes,
                                      int first_rank, int rank_count, Senders senders) const {
  return collective(op, group, bytes, loads(op, group, first_rank, rank_count, senders));
}

PathSummary CollectivePrices::summary(Collective op, const plan::Group& group, int first_rank,
                                      int rank_count) const {
  if (group.size <= 1) return {};
  check_ranks(first_rank, rank_count, *topology_);
  // Where one switch joins hosts, windows that groups tile are classes, too.
  const int window = std::max(group.size * group.stride, as_int(topology_->devices_per_host()));
  const bool tiled = topology_->host_copies() && topology_->host_copies()->levels.size() == 1 &&
                     rank_count % window == 0 && first_rank % window == 0;
  const auto blocks = RankBlocks::of(*topology_, first_rank, tiled ? window : rank_count);
  return summed(blocks && blocks->repeats(op, group)
                    ? group_paths(op, group, *blocks, Senders::kWholeGroups)
                    : group_paths(op, group, first_rank, rank_count, Senders::kWholeGroups));
}

std::int64_t CollectivePrices::duration_ps(Collective op, const plan::Group& group,
                                           std::int64_t bytes, const PathSummary& paths) const {
  if (group.size <= 1) return 0;
  Transfer t = priced(op, group, bytes, paths.alpha_ps, paths.hosts, paths.units);
  t.bytes_per_second = rate_alone(t.rate_cap, paths);
  return with_remainder(std::move(t), op, group.size, paths.units, bytes).duration_ps();
}

CollectivePrices::Paths CollectivePrices::exchange_paths(int first_rank, int rank_count,
                                                         int peer_offset,
                                                         const RankBlocks* blocks) const {
  Paths paths{.blocks = blocks};
  for (int rank = first_rank; rank < first_rank + rank_count; ++rank) {
    add_route(rank, rank + peer_offset, 1, paths);
    if (!topology_->same_host(as_u32(rank), as_u32(rank + peer_offset))) paths.hosts = 2;
  }
  return paths;
}

Transfer CollectivePrices::priced_exchange(int peer_offset, std::int64_t bytes,
                                           std::int64_t alpha_ps, int hosts) const {
  Transfer t{.latency_ps = alpha_ps, .wire_bytes = bytes};
  // Point-to-point entries are keyed by pipeline degree: the ring of stages |peer_offset| ranks
  // apart. Whatever is measured nearest to this degree, within one host or across hosts.
  const double degree = real(topology_->device_count()) / std::abs(peer_offset);
  const auto* best = base::closest(measured_, [&](const model::CollectiveTimes& entry) {
    if (entry.op != kPointToPoint || (entry.hosts > 1) != (hosts > 1)) return base::kTooFar;
    return std::abs(std::log2(real(entry.size) / degree));
  });
  if (best != nullptr) apply(*best, bytes, 1, 1, t);
  return in_step(t, best != nullptr, hosts);
}

PathLoads CollectivePrices::loads(int first_rank, int rank_count, int peer_offset) const {
  if (peer_offset == 0) return {};
  return counted(exchange_paths(first_rank, rank_count, peer_offset));
}

PathLoads CollectivePrices::loads(Collective op, const plan::Group& group,
                                  const RankBlocks& blocks) const {
  if (group.size <= 1) return {};
  return counted(group_paths(op, group, blocks, Senders::kOfClass));
}

PathLoads CollectivePrices::loads(int peer_offset, const RankBlocks& blocks) const {
  if (peer_offset == 0) return {};
  return counted(exchange_paths(blocks.first_rank(), blocks.ranks(), peer_offset, &blocks));
}

Transfer CollectivePrices::exchange(int peer_offset, std::int64_t bytes,
                                    const PathLoads& loads) const {
  if (peer_offset == 0) return {};
  return load(priced_exchange(peer_offset, bytes, loads.alpha_ps, loads.hosts), loads);
}

Transfer CollectivePrices::exchange(int first_rank, int rank_count, int peer_offset,
                                    std::int64_t bytes) const {
  return exchange(peer_offset, bytes, loads(first_rank, rank_count, peer_offset));
}

PathSummary CollectivePrices::summary(int first_rank, int rank_count, int peer_offset) const {
  if (peer_offset == 0) return {};
  const auto blocks = RankBlocks::of(*topology_, first_rank, rank_count);
  return summed(blocks && blocks->repeats(peer_offset)
                    ? exchange_paths(first_rank, blocks->ranks(), peer_offset, &*blocks)
                    : exchange_paths(first_rank, rank_count, peer_offset));
}

std::int64_t CollectivePrices::exchange_ps(int peer_offset, std::int64_t bytes,
                                           const PathSummary& paths) const {
  if (peer_offset == 0) return 0;
  Transfer t = priced_exchange(peer_offset, bytes, paths.alpha_ps, paths.hosts);
  t.bytes_per_second = rate_alone(t.rate_cap, paths);
  return t.duration_ps();
}

}  // namespace orrery::costmodel

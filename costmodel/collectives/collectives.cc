#include "costmodel/collectives/collectives.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "base/sim_time.h"

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
                                   model::StepCommunication step, TimeFactors errors,
                                   std::shared_ptr<const CollectiveTuning> library)
    : topology_(&topology),
      library_(std::move(library)),
      paths_(topology, library_.get()),
      measured_(std::move(measured)),
      scale_(scale),
      step_(step),
      errors_(errors) {
  for (auto& entry : measured_) make_monotone(entry.points);
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

const model::CollectiveTimes* CollectivePrices::find_exchange(int peer_offset, int hosts) const {
  // Point-to-point entries are keyed by pipeline degree: the ring of stages |peer_offset| ranks
  // apart. Whatever is measured nearest to this degree, within one host or across hosts.
  const double degree = real(topology_->device_count()) / std::abs(peer_offset);
  return base::closest(measured_, [&](const model::CollectiveTimes& entry) {
    if (entry.op != kPointToPoint || (entry.hosts > 1) != (hosts > 1)) return base::kTooFar;
    return std::abs(std::log2(real(entry.size) / degree));
  });
}

bool CollectivePrices::has_measured(Collective op, const plan::Group& group, int hosts) const {
  const bool half = op == kAllGather || op == kReduceScatter;
  return find(op, group.size, group.stride, hosts) != nullptr ||
         (half && find(kAllReduce, group.size, group.stride, hosts) != nullptr);
}

Transfer CollectivePrices::in_step(Transfer transfer, bool measured, int hosts, bool issued) const {
  const double factor =
      (measured ? step_.factor : 1) * (hosts > 1 ? errors_.across_hosts : errors_.in_hosts);
  transfer.latency_ps = ceil_ratio(transfer.latency_ps, factor);
  if (issued) transfer.latency_ps += base::ceil_ps(base::Seconds(step_.issue_seconds));
  const std::int64_t ppm = hosts > 1 ? scale_.across_hosts_ppm : scale_.in_hosts_ppm;
  if (transfer.rate_cap == 0) return transfer;
  const auto cap =
      static_cast<__int128>(transfer.rate_cap) * ppm / kMillion * kMillion / ppm_of(factor);
  transfer.rate_cap =
      static_cast<std::int64_t>(std::clamp<__int128>(cap, 1, static_cast<__int128>(kMaxRate)));
  return transfer;
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

std::int64_t CollectivePrices::rate_alone(std::int64_t cap, const PathSummary& paths) const {
  if (cap > 0) return cap;
  std::int64_t rate = std::numeric_limits<std::int64_t>::max();
  const auto narrow = [&](const NarrowestLink& n, std::int64_t ppm) {
    if (n.flows == 0) return;
    rate = std::min(rate, std::max<std::int64_t>(
                              topologies::rate_at_ppm(n.bytes_per_second, ppm) / n.flows, 1));
  };
  narrow(paths.in_hosts, errors_.host_links_ppm);
  narrow(paths.fabric, errors_.fabric_links_ppm);
  return rate;
}

/// What a host's own links carry, as they are slower in a step.
std::int64_t CollectivePrices::in_step(std::int64_t amount, int hosts) const {
  return hosts > 1 ? amount : ceil_ratio(amount, step_.factor);
}

/// Latency, wire bytes and measured cap; no links yet.
Transfer CollectivePrices::priced(Collective op, const plan::Group& group, std::int64_t bytes,
                                  const RunsAs& how, const PathSummary& paths) const {
  const std::int64_t n = group.size, alpha_ps = paths.alpha_ps, units = paths.units;
  const int hosts = paths.shape.hosts;
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
  if (entry == nullptr) t.wire_bytes = in_step(t.wire_bytes, hosts);
  return in_step(t, entry != nullptr, hosts, how.issued);
}

FlowRates CollectivePrices::flow_rates(const PathSummary& paths, bool outside_steps) const {
  // Between hosts a tree of switches passes on whole data.
  const std::int64_t own = units_of(paths.pattern, paths.shape),
                     times =
                         paths.pattern == Pattern::kSwitchTrees ? paths.shape.switch_permille : 1;
  const auto flow = [&](const NarrowestLink& n, std::int64_t ppm, double share) {
    if (n.flows == 0) return std::numeric_limits<std::int64_t>::max();
    const std::int64_t rate =
        std::llround(real(topologies::rate_at_ppm(n.bytes_per_second, ppm)) / share);
    const auto one =
        static_cast<__int128>(rate) * paths.units * times / (static_cast<__int128>(n.flows) * own);
    return static_cast<std::int64_t>(std::max<__int128>(one, 1));
  };
  const double share = outside_steps ? step_.fabric_share : 1;
  FlowRates rates{std::min(flow(paths.in_hosts, errors_.host_links_ppm, 1),
                           flow(paths.fabric, errors_.fabric_links_ppm, share))};
  if (paths.shape.switch_rate > 0)
    rates.switch_link = topologies::rate_at_ppm(paths.shape.switch_rate, errors_.host_links_ppm);
  return rates;
}

Pattern CollectivePrices::usual_pattern(Collective op) {
  return op == kAllToAll       ? Pattern::kEveryone
         : op == kPointToPoint ? Pattern::kShift
                               : Pattern::kRings;
}

RunsAs CollectivePrices::runs_as(Collective op, const plan::Group& group, std::int64_t bytes,
                                 const PathSummary& usual, bool in_pieces) const {
  const RunsAs plain{.pattern = usual_pattern(op), .issued = !in_pieces || library_ == nullptr};
  if (library_ == nullptr || group.size <= 1 || in_pieces ||
      has_measured(op, group, usual.shape.hosts))
    return plain;
  const auto choice = GroupForms(*library_, usual.shape).choose(op, bytes, flow_rates(usual, true));
  if (!choice) return plain;
  return {true, *choice, GroupForms::pattern_of(op, choice->algorithm)};
}

CollectivePrices::LibraryCall CollectivePrices::call(Collective op, std::int64_t bytes,
                                                     const CollectiveChoice& choice,
                                                     const PathSummary& paths) const {
  const int hosts = paths.shape.hosts;
  const FlowRates rates = flow_rates(paths, false);
  GroupShape shape = paths.shape;
  shape.switch_rate = rates.switch_link;
  const GroupForms forms(*library_, shape);
  LibraryCall c{.terms = forms.terms(op, bytes, choice.algorithm, choice.protocol)};
  const double slower = hosts == 1 ? errors_.in_hosts : errors_.across_hosts;
  const std::int64_t ppm = hosts == 1 ? scale_.in_hosts_ppm : scale_.across_hosts_ppm;
  c.terms.slow_down(slower, slower * kMillion / real(ppm));
  c.duration = forms.duration(op, c.terms, rates);
  c.duration.time_ps =
      in_step(c.duration.time_ps, hosts) + base::ceil_ps(base::Seconds(step_.issue_seconds));
  c.duration.wire_ps = in_step(c.duration.wire_ps, hosts);
  c.unit_bytes = in_step(mul_div(forms.unit_wire_bytes(op, c.terms),
                                 units_of(paths.pattern, paths.shape), paths.units),
                         hosts);
  return c;
}

Transfer CollectivePrices::library_transfer(Collective op, std::int64_t bytes,
                                            const CollectiveChoice& choice,
                                            const PathLoads& loads) const {
  PathSummary now = loads;
  if (topology_->changed()) paths_.find_narrowest(loads.links, now);
  const LibraryCall c = call(op, bytes, choice, now);
  Transfer t{.wire_bytes = c.unit_bytes, .units = loads.units, .links = loads.links};
  t.bytes_per_second = rate_alone(0, now);
  if (c.duration.limited) {
    t.rate_cap = std::max<std::int64_t>(rate_of(t.wire_bytes, 1e-12 * real(c.duration.wire_ps)), 1);
    t.bytes_per_second = std::min(t.bytes_per_second, t.rate_cap);
  }
  // Units are rounded: what is sent takes no longer than the call.
  if (t.duration_ps() > c.duration.time_ps)
    t.wire_bytes = mul_div(c.duration.time_ps, t.bytes_per_second, base::kPicosecondsPerSecond);
  t.latency_ps = c.duration.time_ps - t.duration_ps();
  return t;
}

Transfer CollectivePrices::collective(Collective op, const plan::Group& group, std::int64_t bytes,
                                      const RunsAs& how, const PathLoads& loads) const {
  const std::int64_t n = group.size;
  if (n <= 1) return {};
  ORRERY_CHECK(bytes >= 0, "{} bytes", bytes);
  if (how.library) return library_transfer(op, bytes, how.choice, loads);
  return with_remainder(load(priced(op, group, bytes, how, loads), loads), op, n, loads.units,
                        bytes);
}

Transfer CollectivePrices::collective(Collective op, const plan::Group& group, std::int64_t bytes,
                                      int first_rank, int rank_count, Senders senders,
                                      bool in_pieces) const {
  if (group.size <= 1) return {};
  PathLoads loads = paths_.loads(usual_pattern(op), group, first_rank, rank_count, senders);
  const RunsAs how = runs_as(op, group, bytes, loads, in_pieces);
  if (how.pattern != loads.pattern)
    loads = paths_.loads(how.pattern, group, first_rank, rank_count, senders);
  return collective(op, group, bytes, how, loads);
}

std::int64_t CollectivePrices::duration_ps(Collective op, const plan::Group& group,
                                           std::int64_t bytes, const RunsAs& how,
                                           const PathSummary& paths) const {
  if (group.size <= 1) return 0;
  if (how.library) return call(op, bytes, how.choice, paths).duration.time_ps;
  Transfer t = priced(op, group, bytes, how, paths);
  t.bytes_per_second = rate_alone(t.rate_cap, paths);
  return with_remainder(std::move(t), op, group.size, paths.units, bytes).duration_ps();
}

Transfer CollectivePrices::priced_exchange(const model::CollectiveTimes* entry, std::int64_t bytes,
                                           const PathSummary& paths) const {
  Transfer t{.latency_ps = paths.alpha_ps,
             .wire_bytes = ceil_div(bytes, paths.units),
             .units = paths.units};
  if (entry != nullptr)
    apply(*entry, bytes, 1, paths.units, t);
  else
    t.wire_bytes = in_step(t.wire_bytes, paths.shape.hosts);
  return in_step(t, entry != nullptr, paths.shape.hosts, true);
}

RunsAs CollectivePrices::exchange_runs_as(std::int64_t bytes, const PathSummary& paths) const {
  const auto choice =
      GroupForms(*library_, paths.shape).choose(kPointToPoint, bytes, flow_rates(paths, true));
  return {true, choice.value(), Pattern::kShift};
}

Transfer CollectivePrices::exchange(int peer_offset, std::int64_t bytes,
                                    const PathLoads& loads) const {
  if (peer_offset == 0) return {};
  const model::CollectiveTimes* entry = find_exchange(peer_offset, loads.shape.hosts);
  if (entry == nullptr && library_ != nullptr)
    return library_transfer(kPointToPoint, bytes, exchange_runs_as(bytes, loads).choice, loads);
  return load(priced_exchange(entry, bytes, loads), loads);
}

Transfer CollectivePrices::exchange(int first_rank, int rank_count, int peer_offset,
                                    std::int64_t bytes) const {
  if (peer_offset == 0) return {};
  return exchange(peer_offset, bytes, paths_.loads(first_rank, rank_count, peer_offset));
}

std::int64_t CollectivePrices::exchange_ps(int peer_offset, std::int64_t bytes,
                                           const PathSummary& paths) const {
  if (peer_offset == 0) return 0;
  const model::CollectiveTimes* entry = find_exchange(peer_offset, paths.shape.hosts);
  if (entry == nullptr && library_ != nullptr)
    return call(kPointToPoint, bytes, exchange_runs_as(bytes, paths).choice, paths)
        .duration.time_ps;
  Transfer t = priced_exchange(entry, bytes, paths);
  t.bytes_per_second = rate_alone(t.rate_cap, paths);
  return t.duration_ps();
}

}  // namespace orrery::costmodel

#include "sim/report/energy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/numbers.h"
#include "base/text.h"

namespace orrery::sim {

using costmodel::Draw;
using costmodel::PowerKind;

namespace {

constexpr double kPsPerSecond = 1e12;
constexpr double kJoulesPerMwh = 3.6e9;
constexpr Draw kNothing;  // of kind wait
using Shares = std::array<double, costmodel::kPowerKinds>;

bool runs(const Draw& draw) { return draw.kind != PowerKind::kWait; }

/// u of one piece, by kind.
Shares shares_of(const PowerPiece& piece) {
  Shares shares{};
  if (!runs(piece.compute) && !runs(piece.communication)) {
    shares[as_index(PowerKind::kWait)] = kNothing.share;
    return shares;
  }
  double left = 1;
  for (const Draw& draw : {piece.compute, piece.communication}) {
    if (!runs(draw)) continue;
    const double share = std::min(left, draw.share);
    shares[as_index(draw.kind)] += share;
    left -= share;
  }
  return shares;
}

/// What the streams of a class do at one instant.
struct Lanes {
  std::array<Draw, plan::kStreams> compute, communication;
  [[nodiscard]] PowerPiece piece(std::int64_t from_ps) const {
    const auto largest = [](const auto& draws) {
      Draw most = kNothing;
      for (const Draw& d : draws)
        if (runs(d) && (!runs(most) || d.share > most.share)) most = d;
      return most;
    };
    return {from_ps, largest(compute), largest(communication)};
  }
};

/// Power that changes: (ps, milliwatts from then on); whole numbers, so that sums are exact.
using Trace = std::vector<std::pair<std::int64_t, std::int64_t>>;

std::int64_t milliwatts(double watts) { return std::llround(watts * 1000); }

Trace trace_of(const std::vector<PowerPiece>& pieces, const costmodel::DevicePower& device) {
  Trace trace;
  for (const PowerPiece& p : pieces)
    trace.emplace_back(p.from_ps, milliwatts(device.at(p.share()).raw()));
  return trace;
}

using RankKind = std::pair<std::uint32_t, std::uint32_t>;  // class, model
using RankCounts = std::map<RankKind, std::int64_t>;
/// Hosts that are powered alike: ranks, watts of the host and its idle devices.
using HostKind = std::pair<RankCounts, double>;

/// Everything with a rank or beside one, added up.
struct Cluster {
  RankCounts ranks;
  std::set<HostKind> host_kinds;
  double ranks_idle_watts = 0, ranks_waiting_watts = 0;  // devices with a rank
  double spare_watts = 0, host_watts = 0, fabric_watts = 0;
  [[nodiscard]] double other_watts() const { return spare_watts + host_watts + fabric_watts; }
};

Cluster cluster_of(const std::vector<PoweredHost>& hosts, const costmodel::MachinePower& machine) {
  Cluster cluster;
  for (const PoweredHost& host : hosts) {
    HostKind kind{{}, host.watts};
    cluster.host_watts += host.watts;
    for (const PoweredRank& rank : host.ranks) {
      ++kind.first[{rank.rank_class, rank.model}];
      ++cluster.ranks[{rank.rank_class, rank.model}];
      cluster.ranks_idle_watts += machine.models()[rank.model].idle.raw();
      cluster.ranks_waiting_watts += machine.models()[rank.model].at(kNothing.share).raw();
    }
    for (const std::uint32_t model : host.idle_models) {
      kind.second += machine.models()[model].idle.raw();
      cluster.spare_watts += machine.models()[model].idle.raw();
    }
    cluster.fabric_watts +=
        machine.fabric_per_device().raw() * real(host.ranks.size() + host.idle_models.size());
    cluster.host_kinds.insert(std::move(kind));
  }
  return cluster;
}

/// Least and most of the sum of traces.
PowerRange range_of(const RankCounts& ranks, const std::map<RankKind, Trace>& traces,
                    double other_watts) {
  Trace changes;
  for (const auto& [kind, count] : ranks) {
    std::int64_t before = 0;
    for (const auto& [ps, mw] : traces.at(kind)) {
      changes.emplace_back(ps, count * (mw - before));
      before = mw;
    }
  }
  std::ranges::sort(changes);
  std::optional<std::int64_t> least, most;
  std::int64_t now = 0;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    now += changes[i].second;
    if (i + 1 < changes.size() && changes[i + 1].first == changes[i].first) continue;
    least = std::min(least.value_or(now), now);
    most = std::max(most.value_or(now), now);
  }
  return {0, real(least.value_or(0)) / 1000 + other_watts,
          real(most.value_or(0)) / 1000 + other_watts};
}

void widen(PowerRange& range, const PowerRange& other) {
  const bool first = range.most == 0;  // no device draws nothing
  range.least = first ? other.least : std::min(range.least, other.least);
  range.most = std::max(range.most, other.most);
}

/// Seconds times u, by kind, of a class.
Shares share_seconds(const std::vector<PowerPiece>& pieces, std::int64_t step_ps) {
  Shares sums{};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::int64_t end = i + 1 < pieces.size() ? pieces[i + 1].from_ps : step_ps;
    const double seconds = real(end - pieces[i].from_ps) / kPsPerSecond;
    const Shares shares = shares_of(pieces[i]);
    for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += shares[k] * seconds;
  }
  return sums;
}

base::Json range_json(const PowerRange& r) {
  return {{"mean", r.mean}, {"least", r.least}, {"most", r.most}};
}

std::string watts_text(double watts) {
  const bool kilo = watts >= 10'000;
  return fmt::format("{} {}", base::grouped(kilo ? watts / 1000 : watts), kilo ? "kW" : "W");
}

}  // namespace

std::string joules_text(double joules) {
  constexpr double kMega = 1e6;
  return joules >= 10 * kMega ? fmt::format("{} MJ ({:.3g} MWh)", base::grouped(joules / kMega),
                                            joules / kJoulesPerMwh)
                              : fmt::format("{} J", base::grouped(joules));
}

double StepEnergy::total() const {
  return std::accumulate(devices.begin(), devices.end(), idle + hosts + fabric);
}

double PowerPiece::share() const {
  const Shares shares = shares_of(*this);
  return std::accumulate(shares.begin(), shares.end(), 0.0);
}

std::vector<PowerPiece> power_pieces(const PreparedClass& prepared, const ClassOutcome& outcome,
                                     const std::vector<Draw>& draws, std::int64_t step_ps) {
  struct Edge {
    std::int64_t ps = 0;
    bool begins = false;  // what ends at an instant does so before what begins
    std::uint32_t op = 0;
    auto operator<=>(const Edge&) const = default;
  };
  // what of an operation the device waits for the host
  const auto waited = [&](std::uint32_t op) {
    const PricedOp& priced = prepared.price(op);
    return priced.host_wait_ps == 0 ? 0
                                    : mul_div_up(outcome.end_ps[op] - outcome.start_ps[op],
                                                 priced.host_wait_ps, priced.compute_ps);
  };
  std::vector<Edge> edges;
  for (std::uint32_t op = 0; op < prepared.op_count(); ++op) {
    const std::int64_t start = outcome.start_ps[op], end = outcome.end_ps[op] - waited(op);
    if (end <= start) continue;
    edges.push_back({start, true, op});
    edges.push_back({end, false, op});
  }
  std::ranges::sort(edges);
  Lanes lanes;
  std::vector<PowerPiece> pieces = {lanes.piece(0)};
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const PricedOp& op = prepared.price(edges[i].op);
    auto& lane = op.kind == plan::OpKind::kCompute ? lanes.compute : lanes.communication;
    lane[op.stream] = edges[i].begins ? draws[edges[i].op] : kNothing;
    if (i + 1 < edges.size() && edges[i + 1].ps == edges[i].ps) continue;
    if (edges[i].ps >= step_ps) break;
    const PowerPiece next = lanes.piece(edges[i].ps);
    if (pieces.back().from_ps == next.from_ps) pieces.pop_back();
    if (pieces.empty() || next.compute != pieces.back().compute ||
        next.communication != pieces.back().communication)
      pieces.push_back(next);
  }
  return pieces;
}

StepEnergy step_energy(const std::vector<std::vector<PowerPiece>>& pieces,
                       const std::vector<PoweredHost>& hosts,
                       const costmodel::MachinePower& machine, std::int64_t step_ps,
                       double tokens) {
  ORRERY_CHECK(step_ps > 0 && !hosts.empty(), "{} ps, {} hosts", step_ps, hosts.size());
  const double step_s = real(step_ps) / kPsPerSecond;
  const Cluster cluster = cluster_of(hosts, machine);
  StepEnergy energy;
  energy.host_count = count_of(hosts);
  energy.assumed = machine.assumed();
  std::map<RankKind, Trace> traces;
  double ranks = 0;
  for (const auto& [kind, count] : cluster.ranks) {
    const costmodel::DevicePower& device = machine.models()[kind.second];
    const double range = real(count) * (device.limit.raw() - device.idle.raw());
    const Shares seconds = share_seconds(pieces[kind.first], step_ps);
    for (std::size_t k = 0; k < seconds.size(); ++k) energy.devices[k] += range * seconds[k];
    ranks += real(count);
    traces.emplace(kind, trace_of(pieces[kind.first], device));
  }
  const double above_idle = std::accumulate(energy.devices.begin(), energy.devices.end(), 0.0);
  energy.idle = (cluster.ranks_idle_watts + cluster.spare_watts) * step_s;
  energy.hosts = cluster.host_watts * step_s;
  energy.fabric = cluster.fabric_watts * step_s;
  energy.joules_per_token = energy.total() / tokens;
  energy.waiting_watts = cluster.ranks_waiting_watts + cluster.other_watts();
  for (const auto& [kind, trace] : traces) widen(energy.device, range_of({{kind, 1}}, traces, 0));
  for (const HostKind& kind : cluster.host_kinds)
    widen(energy.host, range_of(kind.first, traces, kind.second));
  energy.cluster = range_of(cluster.ranks, traces, cluster.other_watts());
  energy.device.mean = (cluster.ranks_idle_watts + above_idle / step_s) / ranks;
  energy.host.mean = (energy.total() - energy.fabric) / step_s / real(hosts.size());
  energy.cluster.mean = energy.total() / step_s;
  return energy;
}

base::Json to_json(const StepEnergy& energy) {
  base::Json devices = base::Json::object();
  for (std::size_t k = 0; k < energy.devices.size(); ++k)
    devices[std::string(to_string(static_cast<PowerKind>(k)))] = energy.devices[k];
  return {{"joules", energy.total()},
          {"devices_j", devices},
          {"idle_j", energy.idle},
          {"hosts_j", energy.hosts},
          {"fabric_j", energy.fabric},
          {"joules_per_token", energy.joules_per_token},
          {"pue", energy.pue},
          {"site_mwh", energy.pue * energy.total() / kJoulesPerMwh},
          {"device_w", range_json(energy.device)},
          {"host_w", range_json(energy.host)},
          {"cluster_w", range_json(energy.cluster)},
          {"waiting_w", energy.waiting_watts},
          {"hosts", energy.host_count},
          {"assumed", energy.assumed}};
}

std::string to_text(const StepEnergy& energy) {
  std::string text;
  auto out = std::back_inserter(text);
  const auto share = [&](double joules) { return 100 * joules / energy.total(); };
  fmt::format_to(out, "energy       {} a step, {:.3g} J a token  (devices idling {:.1f} %",
                 joules_text(energy.total()), energy.joules_per_token, share(energy.idle));
  constexpr std::array kNames = {"products",        "attention",           "memory",
                                 "links of a host", "links between hosts", "waiting"};
  for (std::size_t k = 0; k < energy.devices.size(); ++k) {
    if (energy.devices[k] > 0)
      fmt::format_to(out, ", {} {:.1f} %", kNames[k], share(energy.devices[k]));
  }
  fmt::format_to(out, ", hosts {:.1f} %", share(energy.hosts));
  if (energy.fabric > 0) fmt::format_to(out, ", switches {:.1f} %", share(energy.fabric));
  text += ")\n";
  if (energy.pue != 1) {
    fmt::format_to(out, "site         {} a step (PUE {:g})\n",
                   joules_text(energy.pue * energy.total()), energy.pue);
  }
  fmt::format_to(
      out, "power        a device {} (at most {}), a host {} (at most {}), {} {} to {} (mean {})\n",
      watts_text(energy.device.mean), watts_text(energy.device.most), watts_text(energy.host.mean),
      watts_text(energy.host.most),
      energy.host_count == 1 ? "all" : fmt::format("{} hosts", energy.host_count),
      watts_text(energy.cluster.least), watts_text(energy.cluster.most),
      watts_text(energy.cluster.mean));
  for (const std::string& a : energy.assumed) fmt::format_to(out, "assumed      {}\n", a);
  return text;
}

}  // namespace orrery::sim

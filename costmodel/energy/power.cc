#include "costmodel/energy/power.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/ids.h"
#include "base/numbers.h"

namespace orrery::costmodel {

using base::Watts;
using model::SegmentKind;

namespace {

constexpr double kIdleShare = 0.13;
constexpr double kHostWattsPerDevice = 300;

double share_of(PowerKind kind) { return kPowerShares[as_index(kind)]; }

PowerKind kind_of(const Roofline::Bounds& bounds, SegmentKind segment) {
  if (bounds.memory >= bounds.arithmetic) return PowerKind::kMemory;
  const bool attention =
      segment == SegmentKind::kAttention || segment == SegmentKind::kAttentionBlock;
  return attention ? PowerKind::kAttention : PowerKind::kProduct;
}

}  // namespace

std::string_view to_string(PowerKind kind) {
  return base::EnumNames<PowerKind::kWait>("product", "attention", "memory", "in_host",
                                           "across_hosts", "wait")[kind];
}

Draw compute_draw(const Roofline& device, const model::SegmentShape& shape, model::Phase phase,
                  double seconds) {
  ORRERY_CHECK(seconds >= 0, "{} s", seconds);
  const Roofline::Bounds bounds = device.bounds(shape, phase);
  const double least = std::max(bounds.arithmetic, bounds.memory);
  const double rate = least < seconds ? least / seconds : 1;
  const PowerKind kind = kind_of(bounds, shape.kind);
  return {kind, std::max(std::min(1.0, share_of(kind) * rate), share_of(PowerKind::kWait))};
}

Draw communication_draw(bool across_hosts) {
  const PowerKind kind = across_hosts ? PowerKind::kAcrossHosts : PowerKind::kInHost;
  return {kind, share_of(kind)};
}

bool leaves_host(const topologies::Topology& topology, int rank, const plan::Group& group) {
  const int first = group.base(rank), last = group.member(first, group.size - 1);
  return leaves_host(topology, rank, first) || leaves_host(topology, rank, last);
}

bool leaves_host(const topologies::Topology& topology, int rank, int peer) {
  return !topology.same_host(as_u32(rank), as_u32(peer));
}

std::size_t model_of(const topologies::Topology& topology, std::uint32_t rank) {
  return as_index(&topology.device_model(rank) - topology.device_models().data());
}

base::Result<MachinePower> MachinePower::of(const topologies::Topology& topology) {
  MachinePower power;
  for (const topologies::DeviceModel& m : topology.device_models()) {
    if (m.power.raw() <= 0) {
      return base::fail(
          base::make_error(base::ErrorCode::kInconsistent,
                           "cluster '{}' does not say what a {} may draw", topology.name(), m.name)
              .with_hint("add 'power: 700 W' to its device model (topologies/README.md)"));
    }
    const bool stated = m.idle_power.raw() > 0;
    power.models_.push_back({stated ? m.idle_power : Watts(kIdleShare * m.power.raw()), m.power});
    if (!stated) {
      power.assumed_.push_back(
          fmt::format("an idle {} draws {:.0f} W", m.name, power.models_.back().idle.raw()));
    }
  }
  const double usual = kHostWattsPerDevice * real(topology.devices_per_host());
  bool assumed = false;
  for (std::uint32_t host = 0; host < topology.hosts(); ++host) {
    const bool stated = topology.host_power(host).raw() > 0;
    power.hosts_.push_back(stated ? topology.host_power(host) : Watts(usual));
    assumed = assumed || !stated;
  }
  if (assumed)
    power.assumed_.push_back(fmt::format("a host draws {:.0f} W beside its devices", usual));
  power.fabric_per_device_ = topology.fabric_power_per_device();
  if (topology.hosts() > 1 && power.fabric_per_device_.raw() <= 0)
    power.assumed_.emplace_back("switches between hosts draw nothing");
  return power;
}

Watts MachinePower::waiting(const topologies::Topology& topology) const {
  double watts = fabric_per_device_.raw() * real(topology.device_count());
  for (const Watts host : hosts_) watts += host.raw();
  for (std::uint32_t rank = 0; rank < topology.device_count(); ++rank)
    watts += models_[model_of(topology, rank)].at(share_of(PowerKind::kWait)).raw();
  return Watts(watts);
}

}  // namespace orrery::costmodel

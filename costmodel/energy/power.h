#pragma once
/// \file
/// What devices, hosts and switches draw. docs/models/energy.md has sources, fit and errors.
///
/// A device that does work of kind k draws
///
///     P = P_idle + (P_limit - P_idle) * u,      u = max(u_wait, min(1, s_k r))
///
/// with P_idle and P_limit of its model, s_k below, and r the share of the attainable rate that the
/// kernel reaches: the roofline's time without launch (compute.h) over the kernel's own, at most 1.
/// A segment whose roofline time is its memory traffic's is of kind memory, whatever it computes.
/// Precision does not change u: H200 draws 663 W in bf16 and 662 W in fp8.
///
/// Communication beside computation: u = min(1, u_compute + u_communication), of several
/// communications the largest. A device that waits draws u_wait: the kernel that waits spins.
///
///     kind             s     what it is
///     product        2.5     matrix products; at 0.4 of the roofline's rate power is the limit
///     attention      2.5     fused attention cores
///     memory         2.5     all that memory traffic bounds: norms, activations, optimizer
///     in_host        0.3     a collective or transfer inside a host
///     across_hosts   0.2     one that leaves the host
///     wait          0.15     nothing runs, or the device waits for its host
///
/// One number for all that computes and one for each communication are fitted to the mean watts of
/// four measured training runs; four others are held back (experiments/energy).
///
/// Where a topology says nothing (each is listed among what was assumed):
///
///     idle power of a device    0.13 of its limit     (67 of 400 W A100, 70 of 700 W H100, 80 of
///                                                     700 W H200: 0.17, 0.10, 0.11)
///     power of a host           300 W for each device (2.4 kW of 8: dgx-h100.yaml)
///     power of the switches     none
///
/// Scope: no clocks between idle and limit, no temperature; AC side, losses of power supplies in
/// the host's power.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "costmodel/compute/compute.h"
#include "model/segment.h"
#include "plan/program/program.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

enum class PowerKind : std::uint8_t {
  kProduct,
  kAttention,
  kMemory,
  kInHost,
  kAcrossHosts,
  kWait,
};
inline constexpr int kPowerKinds = 6;
std::string_view to_string(PowerKind kind);  // "product", "in_host", ...

/// s_k above.
inline constexpr std::array<double, kPowerKinds> kPowerShares = {2.5, 2.5, 2.5, 0.3, 0.2, 0.15};

/// What an operation draws while it runs.
struct Draw {
  PowerKind kind = PowerKind::kWait;
  double share = kPowerShares[kPowerKinds - 1];  // u
  bool operator==(const Draw&) const = default;
};

/// Of a segment's phase that takes `seconds`, by itself. @pre seconds >= 0.
Draw compute_draw(const Roofline& device, const model::SegmentShape& shape, model::Phase phase,
                  double seconds);
Draw communication_draw(bool across_hosts);
/// Whether what a rank exchanges with its group, or with a peer, leaves its host.
bool leaves_host(const topologies::Topology& topology, int rank, const plan::Group& group);
bool leaves_host(const topologies::Topology& topology, int rank, int peer);

/// Of a rank's device, among topology.device_models().
std::size_t model_of(const topologies::Topology& topology, std::uint32_t rank);

struct DevicePower {
  base::Watts idle, limit;
  [[nodiscard]] base::Watts at(double share) const {
    return base::Watts(idle.raw() + (limit.raw() - idle.raw()) * share);
  }
};

/// Of a cluster. Immutable.
class MachinePower {
 public:
  /// Error: kInconsistent for a device model that states no limit.
  static base::Result<MachinePower> of(const topologies::Topology& topology);

  /// [model, as topology.device_models()]
  [[nodiscard]] const std::vector<DevicePower>& models() const { return models_; }
  /// What a host draws beside its devices.
  [[nodiscard]] base::Watts host(std::uint32_t host) const { return hosts_[host]; }
  [[nodiscard]] base::Watts fabric_per_device() const { return fabric_per_device_; }
  /// What the whole cluster draws while all its kernels wait. @pre of() this topology.
  [[nodiscard]] base::Watts waiting(const topologies::Topology& topology) const;
  /// What no topology said, a sentence each.
  [[nodiscard]] const std::vector<std::string>& assumed() const { return assumed_; }

 private:
  std::vector<DevicePower> models_;
  std::vector<base::Watts> hosts_;
  base::Watts fabric_per_device_;
  std::vector<std::string> assumed_;
};

}  // namespace orrery::costmodel

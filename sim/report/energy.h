#pragma once
/// \file
/// Energy of a simulated step: the integral of what is drawn over its timeline (length T).
///
///     E = sum over devices of integral of P dt + (sum over hosts of P_host + P_switches) T
///
/// P of a device is that of costmodel/energy/power.h, of what its rank does at each instant; a
/// device of these hosts without a rank is idle. An instant is of the first of these kinds that
/// runs: compute, by its own kind; what communication adds beside it is the communication's; else
/// waiting. So, exactly,
///
///     E = devices idling + sum over kinds of devices above idle + hosts + switches.
///
/// Only hosts with a rank of the plan count. Cooling and losses of the site (PUE) are not in it.
/// Steps follow one another, so mean power is E / T. Maxima and minima are those of the simulated
/// clock, on which all ranks that are alike are in step.
///
/// Worked example, a test: two devices (100 to 700 W) on a host of 1 kW; 1 s of products at
/// u = 0.9, then 1 s of waiting at 0.15: a device draws 640 and 190 W, mean 415 W; the host 2,280
/// and 1,380 W; E = 2 s * 1,830 W = 3,660 J.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "costmodel/energy/power.h"
#include "sim/step/interpreter.h"
#include "sim/step/prepared_step.h"

namespace orrery::sim {

/// Watts over a step.
struct PowerRange {
  double mean = 0, least = 0, most = 0;
};

struct StepEnergy {
  // joules
  std::array<double, costmodel::kPowerKinds> devices{};  // above idle, by PowerKind
  double idle = 0;                                       // of all devices
  double hosts = 0, fabric = 0;
  [[nodiscard]] double total() const;

  double joules_per_token = 0;
  // of one device with a rank, of one host with its devices, of the cluster; mean over all of
  // them, least and most of any
  PowerRange device, host, cluster;
  double pue = 1;            // of the site, which draws so many times total()
  double waiting_watts = 0;  // of the cluster, while every rank waits
  std::uint32_t host_count = 0;
  std::vector<std::string> assumed;  // MachinePower::assumed()
};

/// What a rank draws above idle, as a share of what it may: from `from_ps` on, until the next.
struct PowerPiece {
  std::int64_t from_ps = 0;
  costmodel::Draw compute = {};        // kWait: no computation
  costmodel::Draw communication = {};  // kWait: none
  /// u.
  [[nodiscard]] double share() const;
};
/// Of one class, ascending from 0, each other than the one before. `draws` [op of the class].
std::vector<PowerPiece> power_pieces(const PreparedClass& prepared, const ClassOutcome& outcome,
                                     const std::vector<costmodel::Draw>& draws,
                                     std::int64_t step_ps);

/// A rank of a class on a device.
struct PoweredRank {
  std::uint32_t rank_class = 0;
  std::uint32_t model = 0;  // of MachinePower::models()
};
/// One host as it is powered.
struct PoweredHost {
  std::vector<PoweredRank> ranks;
  std::vector<std::uint32_t> idle_models;  // of devices without a rank
  double watts = 0;                        // beside its devices
};
/// @pre step_ps > 0, every host has a rank. `pieces` [class].
StepEnergy step_energy(const std::vector<std::vector<PowerPiece>>& pieces,
                       const std::vector<PoweredHost>& hosts,
                       const costmodel::MachinePower& machine, std::int64_t step_ps, double tokens);

base::Json to_json(const StepEnergy& energy);
/// The lines a person reads.
std::string to_text(const StepEnergy& energy);
/// "12,345 J", "120 MJ (0.033 MWh)".
std::string joules_text(double joules);

}  // namespace orrery::sim

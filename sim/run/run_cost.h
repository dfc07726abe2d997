#pragma once
/// \file
/// What a whole run takes: days, hours of devices, money, energy, carbon dioxide.
///
///     useful  = tokens / (tokens per second of steps)
///     wall    = useful / goodput                                    (sim/scenario/goodput.h)
///     hours   = devices * wall                                      hours of devices
///     money   = hours * price
///     energy  = PUE * (P_steps * working + P_waiting * (checkpointing + down + waiting))
///     carbon  = energy * grams per kWh
///
/// working, checkpointing, down and waiting are the parts of the wall time that goodput.h derives:
/// what is done again after a failure draws what steps draw; a cluster that writes a checkpoint,
/// restarts or waits for a host draws what it draws while its kernels wait. Without failures all of
/// the wall time is working. Spare hosts are paid for and draw nothing.
/// PUE (power usage effectiveness) is a site's power over that of its computers. A price is the
/// user's: nothing here knows one.
///
/// Worked examples, tests: DeepSeek-V3 (arXiv 2412.19437) trains 10^12 tokens in 180,000 hours of
/// devices, on 2,048 in 3.66 days; 2.788 million hours at 2 $ are 5.576 million $. GPT-3 (arXiv
/// 2104.10350): 10,000 devices of 329.4 W with their share of the host, PUE 1.1, 14.8 days: 1,287
/// MWh. BLOOM (arXiv 2211.02001): 1,082,990 hours at 400 W are 433.2 MWh.
#include <optional>

#include "base/result.h"
#include "base/units.h"
#include "sim/scenario/goodput.h"

namespace orrery::sim {

/// Of all hosts and devices of the plan and their share of the network, at the wall, without PUE.
struct RunPower {
  base::Watts steps;    // mean of a step
  base::Watts waiting;  // while all kernels wait
};

struct RunRequest {
  double tokens = 0;        // to train on; > 0
  double tokens_per_s = 0;  // of steps, all devices together; > 0
  double devices = 0;       // paid for, spares included; > 0
  std::optional<FailureModel> failures = {};
  std::optional<base::Seconds> interval = {};  // between checkpoints; nothing: the best
  std::optional<double> dollars_per_device_hour = {};
  std::optional<RunPower> power = {};
  double pue = 1;  // >= 1
  std::optional<double> carbon_g_per_kwh = {};
};

/// Nothing where the request does not say what it takes.
struct RunCost {
  base::Seconds useful, wall;
  double goodput = 1;
  double waiting = 0;  // share of the wall time, for hosts under repair
  double device_hours = 0;
  std::optional<double> dollars = {};
  std::optional<double> mwh = {};     // with PUE
  std::optional<double> kg_co2 = {};  // of mwh
};

/// @pre the ranges above. Error: kUnsupported, for a run that does not end within a million years
/// because it fails too often.
base::Result<RunCost> run_cost(const RunRequest& request);

/// What a run may take.
struct RunLimits {
  std::optional<base::Seconds> deadline = {};  // of the wall time
  std::optional<double> budget_dollars = {};   // @pre the cost has its dollars
};
/// Whether each limit is met; nothing: there is none.
struct RunVerdict {
  std::optional<bool> deadline = {}, budget = {};
  [[nodiscard]] bool met() const { return deadline.value_or(true) && budget.value_or(true); }
};
RunVerdict verdict_of(const RunCost& cost, const RunLimits& limits);

}  // namespace orrery::sim

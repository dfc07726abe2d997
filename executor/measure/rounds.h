#pragma once
/// Step times of several Programs on a machine that drifts.
///
/// Each Program trains in every round, a few steps at a time; the order is rotated from round to
/// round, and every second round is reversed. So a slow minute falls on all of them alike, and none
/// always follows the same neighbour. The control (control.h) is timed around every round.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/profile.h"
#include "plan/program/program.h"

namespace orrery::executor {

struct RoundsOptions {
  int rounds = 5;
  int steps = 6, warmup = 2;  // of a Program in a round; the warm-up is among them
  std::string device = "cpu";
  model::Precision precision = model::Precision::kFloat32;  // of the control
  std::function<void(int)> on_round = {};                   // called on rank 0 before each
};

struct RoundsReport {
  struct Timing {
    std::vector<double> seconds;                  // [round] median step, slowest rank
    std::vector<std::int64_t> peak_memory_bytes;  // by stage
  };
  std::vector<Timing> programs;  // in their order
  // of its timings before each round and after the last
  model::Control control;
};

/// Programs 0 .. count - 1 in the order in which round `round` (from 0) trains them.
std::vector<std::size_t> round_order(std::size_t count, int round);

/// Trains with every Program, all for as many ranks as were started. Complete on rank 0. Errors as
/// run() has them.
base::Result<RoundsReport> run_rounds(std::span<const plan::Program> programs,
                                      const RoundsOptions& options);

}  // namespace orrery::executor

#pragma once
/// \file
/// Lagrange multipliers of plan problems: data that a certificate carries (planner.h) and the
/// checker prices with (certificate_check.h).
#include <cstdint>
#include <limits>
#include <vector>

#include "plan/program/plan.h"

namespace orrery::search {

/// Of one problem (stages, micro-batches, schedule, vocabulary): weights w_r >= 0 of its pipeline
/// ranks, Σ w_r <= 1, and prices of memory μ >= 0 in picoseconds per byte; rationals over one
/// denominator. Any such numbers make a valid bound, good ones a tight one.
struct ProblemMultipliers {
  int stages = 1;  // of layers: pipeline ranks * virtual stages
  int virtual_stages = 1;
  std::int64_t micro_batches = 1;
  plan::Schedule schedule = plan::Schedule::k1F1B;
  plan::LayerStrategy vocabulary;     // its ranks are the devices of a pipeline rank
  std::int64_t unit = 1;              // denominator
  std::vector<std::int64_t> weights;  // [pipeline rank] w_r * unit
  // [pipeline rank] μ * unit, for the bound to choose from; 0 is always among them
  std::vector<std::vector<std::int64_t>> prices;

  bool operator==(const ProblemMultipliers&) const = default;
};

/// Bound of a problem where nothing fits, in ps.
inline constexpr std::int64_t kBeyondAnyCost = std::numeric_limits<std::int64_t>::max() / 4;

}  // namespace orrery::search

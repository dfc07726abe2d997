#pragma once
/// \file
/// How far a predicted step time may be from the truth: an 80 % band, ± a share of it. Where it comes from, and how often it held on measurements
/// that nobody here made: docs/models/uncertainty.md, experiments/validation.
#include <cstdint>
#include <string>

#include "costmodel/cost_model.h"

namespace orrery::costmodel {

struct Uncertainty {
  std::int64_t band_ppm = 0;               // of a step time
  std::string source;
};
/// From the profile: the residual of its fit; else the spread of its measured operators; else the residual of its surface; else the spread behind the
/// datasheet prices.
Uncertainty uncertainty_of(const CostModel& cost);

}  // namespace orrery::costmodel

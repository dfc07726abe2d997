#pragma once
/// \file
/// How much of a Program's prices its profile has measured: what a calibration leaves to
/// interpolation, extrapolation and datasheets.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "costmodel/cost_model.h"

namespace orrery::costmodel {

struct Coverage {
  /// Computation that no measured point encloses.
  struct Beyond {
    model::SegmentShape shape;
    model::Phase phase = model::Phase::kF;
    double share = 0;  // of the compute time
  };
  /// Communication that the profile has no times for: one collective over one size of group.
  struct Unmeasured {
    plan::Collective op = plan::Collective::kAllReduce;
    int size = 2, stride = 1;
    std::int64_t operations = 0;
  };
  // shares of the compute time by PriceSource; 1 in all
  std::array<double, kPriceSources> compute{};
  std::vector<Beyond> beyond;          // largest share first
  std::vector<Unmeasured> unmeasured;  // by operation, size, stride
};

/// Over all operations of every class of the Programs.
Coverage coverage_of(const CostModel& cost, std::span<const plan::Program> programs);

}  // namespace orrery::costmodel

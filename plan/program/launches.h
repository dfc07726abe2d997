#pragma once
#include <cstdint>

#include "plan/program/program.h"

namespace orrery::plan {

/// Kernels that a rank of the class launches on a CUDA device in one step: of every compute
/// operation of the unrolled step (model/launches.h). Collectives are not counted.
std::int64_t launches(const Program& program, const RankClass& rank_class);

}  // namespace orrery::plan

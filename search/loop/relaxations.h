#pragma once
/// \file
/// Ways out of infeasibility, each tried for real: more memory, recomputation, a wider space, more
/// devices.
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "search/loop/best_first.h"

namespace orrery::search {

/// @pre nothing fits `budget`; `loops` says so. Smallest change first: what keeps the
/// machine, then what asks for a bigger one.
base::Result<std::vector<Relaxation>> relax_request(costmodel::LayerCosts& costs,
                                                    const PlanRequest& request,
                                                    const costmodel::MemoryLimit& budget,
                                                    const LoopResult& loops);

}  // namespace orrery::search

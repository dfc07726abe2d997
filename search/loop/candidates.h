#pragma once
/// \file
/// The last word on the best plans by closed form: lowered, checked, simulated, ordered by
/// simulated time.
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "search/loop/planner.h"

namespace orrery::search {

/// A plan that fits, with its closed-form cost.
struct Finalist {
  plan::Plan plan;
  std::int64_t closed_form_ps = 0;
  std::vector<std::int64_t> stage_peak_bytes;
};

struct Evaluated {
  std::vector<Candidate> candidates;  // fastest first; ties by closed form, then by the order given
  int order_changes = 0;              // pairs that simulation put the other way round
};
/// Every plan goes through plan::lower, plan::check (a fault is our bug) and sim::simulate, on
/// `threads` threads; the result does not depend on their number. Errors: those of simulate().
base::Result<Evaluated> evaluate(const costmodel::CostModel& cost,
                                 const std::vector<Finalist>& finalists, int threads);

}  // namespace orrery::search

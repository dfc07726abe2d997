#pragma once
/// \file
/// The label search of instance_program.h: recurrence, order and bounds stand there.
#include <cstdint>
#include <vector>

#include "search/programs/layer_program.h"
#include "search/table/instance.h"
#include "search/table/instance_dual.h"

namespace orrery::search {

struct InstanceAnswer {
  PathTotals totals;
  OptionPath choices;  // [layer]
};

/// Improves `best`, which keeps the budget, until it is the optimum or the effort is exhausted.
/// Returns a proved lower bound of the time: the optimum's own, or what the last complete deepening
/// ruled out.
std::int64_t search_labels(const Instance& instance, const InstanceClasses& classes,
                           const InstanceDual& dual, InstanceAnswer& best, Effort& effort);

}  // namespace orrery::search

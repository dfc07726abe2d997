#pragma once
/// \file
/// What a stated space holds, enumerated for the checker and by nothing of the search: every
/// combination of powers of two and of named choices, of which stand those that the space names and
/// plan::validate accepts. Tensor-parallel degrees of layers end at 16, context-parallel ones
/// at 64.
#include <vector>

#include "costmodel/cost_model.h"
#include "plan/program/plan.h"
#include "search/space/space.h"

namespace orrery::search {

/// Problems that differ in the vocabulary's strategy only.
struct Family {
  int ranks = 1, devices = 1;  // of the pipeline; of each of its ranks
  // batch, micro-batches, schedule, virtual stages, ...; no stages, no vocabulary
  plan::Plan frame;
};

/// All of a space. `plan` gives model, sequence, batch and precision.
std::vector<Family> stated_families(const Space& space, const plan::Plan& plan,
                                    const costmodel::CostModel& cost);
/// By kind of block; empty: some kind has none.
std::vector<std::vector<plan::LayerStrategy>> stated_strategies(const Space& space,
                                                                const Family& family,
                                                                const costmodel::CostModel& cost);
std::vector<plan::LayerStrategy> stated_vocabularies(const Space& space, const Family& family,
                                                     const costmodel::CostModel& cost);

}  // namespace orrery::search

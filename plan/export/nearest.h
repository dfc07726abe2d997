#pragma once
/// \file
/// Plans layer by layer, and what all exporters change alike.
///
/// A framework with one strategy for all layers gets the *usual strategy* of a plan: that of most
/// layers, recomputation and experts aside; of several the one that comes first. Recomputation is
/// never less than the plan's, so that no layer keeps more than it would: `none` < `selective` <
/// `operator` < `full` in what is computed again (plan.h).
#include <vector>

#include "model/spec.h"
#include "plan/program/plan.h"

namespace orrery::plan {

/// [layer]
std::vector<LayerStrategy> layers_of(const Plan& plan);
/// [stage] layers of each.
std::vector<int> stage_sizes(const Plan& plan);
/// Lays the layers out over stages of these sizes, canonical. @pre the sizes add up to the layers.
void set_layers(Plan& plan, const std::vector<LayerStrategy>& layers,
                const std::vector<int>& sizes);

/// Without recomputation; ep is the largest of the layers that have this strategy.
LayerStrategy usual_strategy(const Plan& plan);

/// Every layer gets the strategy, keeping its own recomputation (in place of offload that of whole
/// layers, which keeps no more on the device), and ep where the block has experts. Embedding and
/// head get it without what is of layers only. Stages stay.
void make_uniform(Plan& plan, const LayerStrategy& strategy, const model::ModelSpec& model);

/// Sets what layer i recomputes, for every layer. @pre as many as layers.
void set_recompute(Plan& plan, const std::vector<Recompute>& recompute);
/// The most that any layer of the plan recomputes.
Recompute most_recompute(const Plan& plan);

/// One stage for each pipeline rank, of neighbouring virtual stages.
void join_virtual_stages(Plan& plan);

/// Whether all stages have as many layers.
bool even_stages(const Plan& plan);

}  // namespace orrery::plan

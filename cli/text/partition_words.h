#pragma once
/// \file
/// Partitions in words.
#include <array>
#include <string>

#include "plan/partition/layer_graph.h"
#include "plan/partition/partition.h"
#include "plan/program/plan.h"

namespace orrery::cli {

/// Of a layer's operators those that have weights.
inline constexpr std::array kProducts = {plan::kQkvProduct, plan::kOutProjection,
                                         plan::kMlpInProduct, plan::kMlpOutProduct};

/// "id bit 1 splits K (output features) in 2; bits 2 to 3 are P2x2: M, N and K in 2 each, 2 steps".
std::string words_of(const plan::Sequence& sequence);

/// The first partition of the plan, a line for each product: name, sequence, words. Empty: none.
std::string partition_text(const plan::Plan& plan);
/// Null: no layer is partitioned.
const plan::LayerPartition* partition_of(const plan::Plan& plan);

}  // namespace orrery::cli

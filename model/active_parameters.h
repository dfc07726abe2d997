#pragma once
#include <cstdint>

#include "model/spec.h"

namespace orrery::model {

/// Parameters that one token's forward pass reads: all of them, less those of the experts that it
/// does not go to,
///
///     parameters() - sum over blocks of (experts - experts_per_token) * expert_width * (mlp_in +
///     ffn).
///
/// The table of tokens, the router and the shared expert count whole, as in "46.7 G, 12.9 G active"
/// of Mixtral (arXiv 2401.04088, section 1).
std::int64_t active_parameters(const ModelSpec& model);

}  // namespace orrery::model

#pragma once
/// \file
/// Megatron-LM's pipeline layout (megatron/core/transformer/pipeline_parallel_layer_layout.py): `E`
/// the embedding, `t` a layer, `L` the head, `|` between stages; `t*4` and `(t*4|)*6` repeat,
/// commas and spaces are decoration. Stage i runs on pipeline rank i mod pp.
/// Example: "Et*3|(tt|)*2tL" has stages of 3, 2, 2 and 1 layers.
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery::plan {

/// Layers of each stage, in order. Errors, without a place: kBadValue (not such a text, an
/// embedding not first, a head not last), kUnsupported (`m`, a stage without layers: no plan has
/// them).
base::Result<std::vector<std::int64_t>> read_pipeline_layout(std::string_view text);

}  // namespace orrery::plan

#pragma once
/// \file
/// Memory of a GPU under Megatron-LM as its authors count it (Korthikanti et al., arXiv 2205.05198,
/// sections 4 and 6.1): the published yardstick beside the exact bytes of a Program
/// (plan/program/memory.h), which has flash attention and no dropout masks. fp16 activations,
/// explicit attention with dropout, 18 bytes of state per parameter.
///
/// s sequence, b micro-batch, h hidden, a heads, t tensor degree, L layers, p pipeline stages, v
/// virtual stages of a rank; a layer holds
///
///   tensor parallel                                  sbh (10 + 24/t + 5as/(ht))
///   equation 2 and sequence parallel                            sbh (34 + 5as/h) / t
///   equation 4 and selective recomputation                      34 sbh / t
///   equation 6 full recomputation                               2 sbh, of the layer's input
///   section 5
///
/// and the first stage, which is the fullest, L layers' worth under 1F1B whatever p; interleaved (v
/// > 1) times 1 + (p - 1) / (p v)         section 4.2.3 States: 12 h² L / (t p) parameters
/// (embeddings left out) at 18 bytes.
///
/// Worked example: tests/unit/costmodel/megatron_memory_test.cc, every number of the paper's figure
/// 1.
#include <cstdint>

#include "base/units.h"
#include "plan/program/plan.h"

namespace orrery::costmodel {

struct MegatronSizes {
  std::int64_t sequence = 0, micro_batch = 0, hidden = 0, heads = 0, layers = 0;
  std::int64_t tp = 1, pp = 1, virtual_stages = 1;
};

/// @pre sizes and degrees positive. Recomputation without sequence parallelism: selective leaves
/// equation 2 without its last term.
base::Bytes megatron_activation_bytes(const MegatronSizes& sizes, bool sequence_parallel,
                                      plan::Recompute recompute);
base::Bytes megatron_state_bytes(const MegatronSizes& sizes);

}  // namespace orrery::costmodel

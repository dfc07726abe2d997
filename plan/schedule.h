#pragma once
#include <cstdint>
#include <vector>

#include "plan/program.h"

namespace orrery::plan {

/// One template call of a pass over a stage, at a fixed layer; its micro-batch is the pass's.
struct PassCall {
  TemplateId call;
  std::int64_t layer = 0;
};

/// Forward and backward pass of one stage, gathers already placed ahead of their use.
struct StagePasses {
  std::vector<PassCall> forward;
  std::vector<PassCall> backward;             // of every micro-batch but the last
  std::vector<PassCall> backward_last;        // also reduces gradients
};

/// Order of passes on one stage.
///  * GPipe (arXiv 1811.06965): m forwards, then m backwards.
///  * 1F1B (PipeDream-Flush, arXiv 2006.09503): w = min(stages - stage - 1, m) forwards, then m - w pairs of one forward and one
///    backward, then w backwards; min(stages - stage, m) micro-batches are held.
std::vector<Node> schedule_nodes(Schedule schedule, int stage, int stages, std::int64_t micro_batches, const StagePasses& passes);

/// Calls whose layers advance alike become loops: a Program's size does not grow with depth.
/// micro_batch: constant, or offset from the enclosing micro-batch loop.
std::vector<Node> compress(const std::vector<PassCall>& calls, std::int64_t micro_batch, bool micro_batch_from_loop);

/// Places `gathers[i]` (invalid call: none) so that up to `depth` of them run ahead of the call they belong to: beside any call at most `depth` layers
/// that it does not use are gathered.
std::vector<PassCall> with_prefetch(const std::vector<PassCall>& calls, const std::vector<PassCall>& gathers, int depth);

}  // namespace orrery::plan

#pragma once
#include <cstdint>
#include <vector>

#include "plan/program/program.h"

namespace orrery::plan {

/// One template call of a pass over a stage, at a fixed layer; its micro-batch is the pass's.
struct PassCall {
  TemplateId call;
  std::int64_t layer = 0;
};

/// Passes of one stage, gathers already placed ahead of their use. `last`: of the last micro-batch,
/// which also reduces gradients.
struct StagePasses {
  std::vector<PassCall> forward;
  std::vector<PassCall> backward, backward_last;
  // gradients of weights; empty unless the schedule splits the backward
  std::vector<PassCall> weight, weight_last;
};

enum class PassKind : std::uint8_t { kForward, kBackward, kWeight };

/// One pass over a chunk of a pipeline rank for one micro-batch or, where `body` is not empty, a
/// loop of passes over micro-batches begin, begin + step, ... exclusive of end. Loops do not nest.
/// A *chunk* is one of the stages that the rank runs.
struct PassNode {
  PassKind kind = PassKind::kForward;
  int chunk = 0;                 // of the stages of its rank (plan::stage_of)
  std::int64_t micro_batch = 0;  // in a loop: added to the loop's variable
  bool last = false;             // backward or weight pass of the last micro-batch; never in a loop
  std::int64_t begin = 0, end = 0, step = 1;
  std::vector<PassNode> body;
};

/// Order of passes on pipeline rank `rank` of `ranks` (p), for m micro-batches and v chunks (2 in a
/// V, else 1 but for the interleaved schedule).
///
///  * GPipe (arXiv 1811.06965): m forwards, then m backwards.
///  * 1F1B (PipeDream-Flush, arXiv 2006.09503): w = min(p - rank - 1, m) forwards, then m - w pairs
///    of one forward and one backward, then w backwards; min(p - rank, m) micro-batches are held.
///  * Interleaved 1F1B (Narayanan et al., SC21, arXiv 2104.04473, section 2.2; order of
///    Megatron-LM): the k-th forward is of micro-batch p ⌊k / pv⌋ + k mod p on chunk
///    ⌊(k mod pv) / p⌋, the k-th backward of the same micro-batch on chunk
///    v - 1 - ⌊(k mod pv) / p⌋: groups of p micro-batches go through all chunks.
///    w = min(mv, 2(p - rank - 1) + (v - 1)p) forwards, then mv - w pairs, then w backwards. m must
///    be a multiple of p. Example p = 2, v = 2, m = 2, rank 1: w = 2:
///    F00 F01 | F10 B10 F11 B11 | B00 B01 (chunk, micro-batch).
///  * ZB-H1 (Qi et al., arXiv 2401.10241, section 3): the order of 1F1B; the weight gradients of
///    micro-batch i follow the backward of micro-batch i + lag, lag = max(0, rank - max(0, p - m)),
///    the rest of them at the end. So a rank holds full stashes of min(p - rank, m) micro-batches,
///    as in 1F1B, and together with those of which only weight gradients are to come min(p, m).
///    Example p = 2, m = 3, rank 1: F0 B0 F1 B1 W0 F2 B2 W1 W2.
///  * ZB-V (Qi et al., arXiv 2401.10241, section 6; order of torch.distributed.pipelining's
///    ScheduleZBVZeroBubble). Chunks 0 and 1 are the two arms of a V; each rank runs, with q = p -
///    rank and n = max(m, 2p - 1), 2q - 1 times F0; rank times F1 F0; q times F1 B1 W1; n - p times
///    F0 B0 W0 F1 B1 W1; rank times B0 B1; q times B0 W0; the weights that are left. Passes of F =
///    B = W leave (p - 1) F of a step idle, and every rank holds stashes of 2p chunks, of p whole
///    micro-batches.
///  * DualPipeV (DeepSeek-AI, 2025, github.com/deepseek-ai/DualPipe; arXiv 2412.19437, section
///    3.2.1): with q = p - 1 - rank and n = max(m, 2p), 2q times F0; rank + 1 times F0 F1; q times
///    B1 W1 F1; n - 2p + rank + 1 times F0 B1 W1 F1 B0 W0; q times B1 W1 F1 B0 W0; rank + 1 times
///    B1 B0, of the second half of which the weights wait; q times one that waited and B0; the rest
///    of the weights. A forward is always beside a backward: the two share a rank where software
///    runs the exchanges of one beside the products of the other. Every rank holds stashes of 2p +
///    1 chunks. The authors' bubble is (p - 1)(F + 2B - W), with a forward and a backward that
///    start together and send behind both; here each starts and sends by itself, so it is less:
///    (p - 1) F where F = B = W. DualPipe over 2p ranks, each with the weights of two stages, is
///    this over p with twice the replicas.
///  In both, micro-batches from m on do not exist, and their passes are left out.
///
/// The list does not grow with m. @pre interleaved: m % ranks == 0; chunks as above.
std::vector<PassNode> pass_order(Schedule schedule, int rank, int ranks, int chunks,
                                 std::int64_t micro_batches);

/// A rank's passes as calls; `chunks`: by chunk.
std::vector<Node> schedule_nodes(const std::vector<PassNode>& order,
                                 const std::vector<StagePasses>& chunks);

/// Calls whose layers advance alike become loops: a Program's size does not grow with depth.
/// micro_batch: constant, or offset from the enclosing micro-batch loop.
std::vector<Node> compress(const std::vector<PassCall>& calls, std::int64_t micro_batch,
                           bool micro_batch_from_loop);

/// Places `gathers[i]` (invalid call: none) so that up to `depth` of them run ahead of the call
/// they belong to: beside any call at most `depth` layers that it does not use are gathered.
std::vector<PassCall> with_prefetch(const std::vector<PassCall>& calls,
                                    const std::vector<PassCall>& gathers, int depth);

}  // namespace orrery::plan

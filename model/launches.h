#pragma once
#include "model/segment.h"

namespace orrery::model {

/// Kernels that the executor launches on a CUDA device for a phase of a segment: those of
/// executor/device/device_kernels.h and ATen's. Counted in the code of both; of GPT-2 XL by a
/// profiler too (docs/results/record_h200.md).
///
///   kind               F                            B, G
///   kLoad*             1, a copy                    -
///   kEmbedding         1                            1
///   kPositionAdd       1                            2
///   kNorm              1                            1 each
///   products           1, bias in its epilogue      B 1; G 1, bf16: 2, bias: + 1
///   kAttention         1, rotary + 2, k < n + 2     + 5: dq, dk, dv packed, theirs turned
///   written out        20 a block of queries and    18 a block and more
///                      more (launches.cc)
///   kLatentAttention   written out, 6 before it     the same
///   kHeadNorm          17                           35
///   kResidual          1                            bias: 1
///   kActivation        1, some gates 2              1, some gates 4
///   kLossMax, kLossSum 1                            -
///   kLoss              4, log, difference, sums     1
///   flat segments      1                            -
///
/// "Written out" is attention that no fused kernel has (SegmentShape::explicit_core).
/// Cross-attention, rings and partitioned operators count as attention or a few operations of
/// ATen. A segment that the executor does not run on devices counts as one.
int launches(const SegmentShape& shape, Phase phase);

}  // namespace orrery::model

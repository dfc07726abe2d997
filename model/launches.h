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
///   kNorm              1                            1
///   products           1, bias in its epilogue      B 1; G 1, bf16: 2, bias: + 1
///   kAttention         1, rotary + 1, fp32 and      + 3, and one that turns and packs dq, dk, dv
///                      k < n + 2
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

/// Attention: of a head, how many numbers positions turn.
std::int64_t rotated_dims(const SegmentShape& shape);
/// Attention: whether one launch turns and packs dq, dk and dv.
bool packs_heads(const SegmentShape& shape);
/// Whether what the phase makes comes from one launch of ours, which can sum its columns as well.
bool sums_columns(const SegmentShape& shape, Phase phase);

}  // namespace orrery::model

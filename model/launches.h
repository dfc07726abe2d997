#pragma once
#include "model/segment.h"

namespace orrery::model {

/// Kernels that the executor launches on a CUDA device for a phase of a segment: those of
/// executor/segments/device_kernels.h and ATen's.
///
///   kind            F                              B, G
///   kLoad*          1 (a copy)                     -
///   kEmbedding      7 (ids of the shard, rows)     19: 7, ATen's sort of the ids and its sums, +
///   [bf16]
///                                                  1 cast
///   kPositionAdd    1 + [type] 1                   2
///   kNorm           1                              1 each
///   products        1 (bias in its epilogue)       B 1; G 1, [bf16] 2 (product, fp32 sum), +
///   [bias] 1 kAttention      1 + [rotary] 2 + [k<n] 2       the same + 3 for one, + 3: dq, dk, dv
///   packed,
///                                                  + [k<n and rotary] 1
///   kResidual       1                              [bias] 1
///   kActivation     1 + [gated] 1                  1 + [gated] 3
///   kLossMax, kLossSum  1                          -
///   kLoss           4 (log, difference, sums)      1
///   flat segments   1                              -
///
/// Cross-attention, rings and partitioned operators count as attention or a few operations of ATen.
/// A segment that the executor does not run on devices counts as one.
int launches(const SegmentShape& shape, Phase phase);

}  // namespace orrery::model

#pragma once
/// \file
/// Work of the segments that partitioned operators have beside those of every block: the same
/// columns and symbols as the table of sizes.cc, K = keys of a sequence on the rank, H = out
/// features of the whole norm, v vectors of a norm (2 layer, 1 RMS), k heads of keys.
///
///   kind, phase          FLOPs                      bytes (each operand once)
///                                                   + transient bytes, if any
///   kBias         F      Th                         2eTh + eh
///                 G      Th                         eTh + 8h
///   kNormSums     F      (2v - 1) Th                eTh + 4vT
///                                                   + [bf16] 4Th
///                 B      (3 + 2v) Th                2eTh + eh + 8vT
///                                                   + 4Th, [bf16] 12Th
///   kNormApply    F      (2 + 2v) Th                2eTh + e v h + 8vT
///                                                   + [bf16] 4Th
///                 B      (3 + 3v) Th                3eTh + eh + 8vT + [residual] eTh
///                                                   + 4Th, [bf16] 12Th
///                 G      (1 + v) Th                 2eTh + 8vh + 4vT
///                                                   + 8Th, [bf16] 12Th
///   kScores, kValues
///                 F, B, G  2 T K n d                e (T n d + b K k d + T n K)
///                                                   + e (T n + b K k) d
///   kSoftmax      F      5 T n K                    2 e T n K
///                                                   + [causal] e T n K + s K
///                 B      4 T n K                    3 e T n K
#include "model/segment.h"

namespace orrery::model {

/// @pre one of the kinds above, its fields positive.
PhaseWork partitioned_work(const SegmentShape& shape, Phase phase);

}  // namespace orrery::model

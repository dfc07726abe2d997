#pragma once
/// \file
/// Work of what mixes tokens beside plain attention: the same columns and symbols as the table of
/// sizes.cc, r keys that a query sees, v numbers of a value, P of a value's head, G groups of N
/// keys, Q tokens of a chunk.
///
///   kind, phase          FLOPs                      bytes (each operand once)
///   kHeadNorm     F      4 T (n+k) d                2eT (n+2k) d
///                 B      8 T (n+k) d                3eT (n+2k) d
///                 G      2 T (n+k) d                16 d (whole: 8 (n+k) d)
///   kLatentAttention (d_r = rope_dim)
///                 F      2 T r n (d + v)            eT (n d + n (d - d_r + v) + d_r + n v) + 4Tn
///                                                   + temporary keys: e T n (2d + v)
///                 B      T r n (6d + 4v)            twice those of F; temporaries twice
///   kScan (D = n P values, K = G N keys, S = n P N)
///                 F      T (2Q (K + D) + 4S) (chunks: arXiv 2405.21060, section 6; the delta rule
///                        T 8S, as Megatron-Core counts) + 2 kernel T (D + 2K)
///                                                   eT (in + 2 D) + 4 T S / Q (states) + e w
///                 B      twice that of F            eT (2 in + 3 D) + 8 T S / Q
///                 G      2 kernel T (D + 2K)        8 w
#include "model/segment.h"

namespace orrery::model {

/// @pre one of the kinds above, its fields positive.
PhaseWork mixer_work(const SegmentShape& shape, Phase phase);

}  // namespace orrery::model

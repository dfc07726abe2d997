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
///   indexed (H heads of e numbers, K keys chosen, in = c numbers of the latent)
///                 F      + 2 T s H e; of the core the   + eT ((H + 1) e + H) + 4T;
///                        fewer of those above and       temporaries: mixer_sizes.cc
///                        2 T K' n (2c + d_r)
///                 B      + 6 T s H e; and               twice those of F
///                        2 T K' n (5c + 3 d_r)
///                 K' = K, under a causal mask K (2 - K / s)
///   kScan (D = n P values, K = G N keys, E = n N keys of all heads, S = n P N)
///                 F      T (2Q (K + D) + 4S) (chunks: arXiv 2405.21060, section 6; the delta rule
///                        T 8S, as Megatron-Core counts) + 2 kernel T (D + 2K)
///                                                   below + e w
///                 B      twice that of F            below
///                 G      2 kernel T (D + 2K)        8 w
///
/// A scan is a chain of kernels, each of which reads and writes memory. Bytes of a token, S / Q of
/// them the states that a chunk leaves:
///
///   Mamba-2       F      e (8D + 8K) + (8 + 2e) S/Q + 8 Q G
///                 B      21 e (D + K) + 16 K + (24 + 5e) S/Q + 24 Q G
///   delta rule    F      e (11D + 6K + 13E + 2 S/Q + 2 Q n) + 8 Q n
///                 B      e (23D + 8K + 29E + 4 S/Q + 2 Q n)
///   lightning     F      e (in + 2D) + 4 S/Q, one kernel
///                 B      e (2 in + 3D) + 8 S/Q
///
/// Counted in the kernels of state-spaces/mamba (mamba_split_conv1d_scan_combined with its norm,
/// which Megatron-Core calls; backward makes convolution, states and products of keys anew) and of
/// flash-linear-attention (chunk_gated_delta_rule; keys and queries first written out for every
/// head and normed, as Qwen3-Next has them). Forward of Mamba-2: convolution 2D + 4K, states
/// D + K and 4 S/Q, their sums over chunks (4 + e) S/Q, products of keys 2K and 4 Q G, the scan
/// 2D + K, e S/Q and 4 Q G, the gated norm 3D. Numbers of a head alone (steps, gates) are left out.
#include "model/segment.h"

namespace orrery::model {

/// @pre one of the kinds above, its fields positive.
PhaseWork mixer_work(const SegmentShape& shape, Phase phase);

}  // namespace orrery::model

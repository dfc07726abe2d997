#pragma once
/// \file
/// The weights of a scan, as a tensor rank holds them: of the n heads of P values and the G groups
/// of N keys and queries that are its own, K taps of the convolution. A unit lists them as
/// parameters of their own (plan/lowering/lower_parameters.cc), each cut along its first dimension,
/// so that a rank's part is that of its heads and groups for every tp that divides the groups. The
/// segment kScan sees up to three tensors:
///
///   mixer        tensor  holds, one behind the other
///   Mamba-2      0       taps [n P + 2 G N, K]: of x, of B, of C
///                1       bias of x [n P], of B [G N], of C [G N], ln of decay [n], skip [n],
///                        bias of steps [n], gains of the norm [n P]
///   delta rule   0       taps [n P + 2 G N, K]: of x (values), of B (keys), of C (queries)
///                1       ln of decay [n], bias of steps [n]
///                2       gains of the norm [P], the same for all heads: not cut, their gradient is
///                        a partial sum over the tensor ranks
///   lightning    0       gains of the norm [n P]
///
/// Features of what it reads (u): z [n P], x [n P], B [G N], C [G N], then steps: Mamba-2 [n];
/// delta rule [n, 2], of each head that of its write strength and that of its decay.
#include <vector>

#include "model/segment.h"

namespace orrery::model {

/// Lightning attention has no convolution.
inline bool is_lightning(const SegmentShape& s) { return s.kernel == 0; }

/// Channels of the convolution.
inline std::int64_t convolved(const SegmentShape& s) {
  return s.heads * s.head_dim + 2 * s.kv_heads * s.state;
}

/// Elements of each tensor of the table. @pre kind kScan
inline std::vector<std::int64_t> scan_weights(const SegmentShape& s) {
  const std::int64_t n = s.heads, values = n * s.head_dim, c = convolved(s);
  if (is_lightning(s)) return {values};
  if (s.delta) return {c * s.kernel, 2 * n, s.head_dim};
  return {c * s.kernel, c + 3 * n + values};
}

}  // namespace orrery::model

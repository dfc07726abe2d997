#pragma once
/// What the attention core of a whole sequence and that of a block of keys share.
#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {

/// Heads [first, first + count) of a packed [b, s, heads * d], as [b, s, count, d]; a view.
at::Tensor heads_of(const SegmentShape& s, const at::Tensor& packed, std::int64_t first,
                    std::int64_t count);
/// to = from turned by the angle of its position (sign 1) or back (sign -1); [b, s, heads, d], not
/// in place.
void rotate(const SegmentShape& s, at::Tensor to, const at::Tensor& from,
            const RotaryTables::Table& table, double sign);
/// [b, s, k, d] -> [b, s, n, d], each head repeated n / k times (a copy), or the same tensor when n
/// = k.
at::Tensor repeat_heads(const SegmentShape& s, const at::Tensor& x);
/// Gradient of repeat_heads: [b, s, n, d] into [b, s, k, d].
void sum_groups(const SegmentShape& s, at::Tensor to, const at::Tensor& from);

struct AttentionInputs {
  at::Tensor q, k, v;  // [b, n, s, d]
};
struct AttentionOutputs {
  at::Tensor o, lse;  // [b, n, s, d], [b, n, s] fp32
};
AttentionOutputs core_forward(const SegmentShape& s, const AttentionInputs& in);
/// dq, dk, dv [b, n, s, d] from the gradient of o.
std::tuple<at::Tensor, at::Tensor, at::Tensor> core_backward(const SegmentShape& s,
                                                             const AttentionInputs& in,
                                                             const at::Tensor& d,
                                                             const at::Tensor& o,
                                                             const at::Tensor& lse);

}  // namespace orrery::executor::kernels

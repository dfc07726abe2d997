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
/// Gradient of heads that core_inputs repeats: [b, s, n, d] into [b, s, k, d].
void sum_groups(const SegmentShape& s, at::Tensor to, const at::Tensor& from);

/// The heads of a packed tensor of queries' size, as [b, n, s, d]; a view.
at::Tensor by_head(const SegmentShape& s, const at::Tensor& packed);

struct AttentionInputs {
  at::Tensor q, k, v;  // [b, n, s, d]
};
/// Of q, k and v as heads_of() gives them.
AttentionInputs core_inputs(const SegmentShape& s, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v);
/// Writes o, packed, and the log-sum-exp [b, n, s] fp32.
void core_forward(const SegmentShape& s, const AttentionInputs& in, Operands& operands);
/// dq, dk, dv [b, n, s, d] from o and its gradient d, both packed.
std::tuple<at::Tensor, at::Tensor, at::Tensor> core_backward(const SegmentShape& s,
                                                             const AttentionInputs& in,
                                                             const at::Tensor& packed_d,
                                                             const at::Tensor& packed_o,
                                                             const at::Tensor& lse);

}  // namespace orrery::executor::kernels

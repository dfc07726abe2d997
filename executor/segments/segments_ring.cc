/// Ring attention (Liu et al., arXiv 2310.01889): the attention core in parts, own queries against
/// one block of keys after the other.
///
/// A block's keys and values are [b, t, 2kd]: k key heads, turned by their positions, then k value
/// heads. Merging the outputs o1, o2 of two sets of keys with log-sum-exps l1, l2:
///
///   l = log(e^l1 + e^l2),  o = e^(l1 - l) o1 + e^(l2 - l) o2
///
/// Backward of a block takes the merged o and l: its probabilities e^(s - l) are then those of the
/// whole softmax, and the parts of dq add up.
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>

#include <limits>

#include "executor/segments/attention_core.h"

namespace orrery::executor::kernels {
namespace {

/// The angles of this rank's positions.
RotaryTables::Table own_angles(const SegmentShape& s, const at::Device& device,
                               SegmentContext& context) {
  const RotaryTables::Table& all =
      context.rotary->get(s.tokens * s.token_parts, s.head_dim, s.rope_theta, device);
  const std::int64_t first = context.token_part(s) * s.tokens;
  return {all.cos.narrow(0, first, s.tokens), all.sin.narrow(0, first, s.tokens)};
}

/// Causal: the block holds only later tokens than the queries.
bool all_masked(const SegmentShape& s, const SegmentContext& context) {
  return s.causal && s.ring_step > context.token_part(s);
}

/// The shape that the kernels of a whole sequence see: the mask cuts through the own block only.
SegmentShape of_core(SegmentShape s) {
  s.causal = s.causal && s.ring_step == 0;
  return s;
}

AttentionInputs inputs(const SegmentShape& s, const at::Tensor& q, const at::Tensor& kv) {
  const at::Tensor k = heads_of(s, kv, 0, s.kv_heads), v = heads_of(s, kv, s.kv_heads, s.kv_heads);
  return core_inputs(s, heads_of(s, q, 0, s.heads), k, v);
}

/// [b, n, t] numbers of queries against [b, t, n, d].
at::Tensor per_query(const at::Tensor& x, const at::Tensor& o) {
  return x.transpose(1, 2).unsqueeze(-1).to(o.scalar_type());
}

}  // namespace

void attention_split(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const bool forward = phase == Phase::kF;
  at::Tensor packed = forward ? o.reads[0] : o.writes[0].make();
  at::Tensor q = forward ? o.writes[0].make() : o.reads[0],
             kv = forward ? o.writes[1].make() : o.reads[1];
  const auto carry = [&](std::int64_t first, const at::Tensor& part, std::int64_t part_first,
                         std::int64_t count, bool turned) {
    const at::Tensor side = heads_of(s, packed, first, count),
                     own = heads_of(s, part, part_first, count);
    const at::Tensor &from = forward ? side : own, &to = forward ? own : side;
    if (turned)
      rotate(s, to, from, own_angles(s, packed.device(), context), forward ? 1 : -1);
    else
      to.copy_(from);
  };
  carry(0, q, 0, s.heads, s.rotary);
  carry(s.heads, kv, 0, s.kv_heads, s.rotary);
  carry(s.heads + s.kv_heads, kv, s.kv_heads, s.kv_heads, false);
}

void attention_block(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const bool masked = all_masked(s, context);
  if (phase == Phase::kF) {
    if (masked) {
      o.writes[0].make().zero_();
      o.writes[1].make().fill_(-std::numeric_limits<double>::infinity());
      return;
    }
    return core_forward(of_core(s), inputs(s, o.reads[0], o.reads[1]), o);
  }
  at::Tensor& dq = o.writes[0].make();
  at::Tensor& dkv = o.writes[1].make();
  if (masked) {
    dq.zero_();
    dkv.zero_();
    return;
  }
  const auto [q_part, k_part, v_part] = core_backward(of_core(s), inputs(s, o.reads[1], o.reads[2]),
                                                      o.reads[0], o.reads[3], o.reads[4]);
  heads_of(s, dq, 0, s.heads).copy_(q_part.transpose(1, 2));
  sum_groups(s, heads_of(s, dkv, 0, s.kv_heads), k_part.transpose(1, 2));
  sum_groups(s, heads_of(s, dkv, s.kv_heads, s.kv_heads), v_part.transpose(1, 2));
}

void attention_merge(const SegmentShape& s, Phase, Operands& o, SegmentContext&) {
  at::Tensor &sum = o.updates[0], &lse = o.updates[1];
  const at::Tensor both = at::logaddexp(lse, o.reads[1]);
  heads_of(s, sum, 0, s.heads)
      .mul_(per_query(lse.sub_(both).exp_(), sum))
      .addcmul_(heads_of(s, o.reads[0], 0, s.heads), per_query(at::exp(o.reads[1].sub(both)), sum));
  lse.copy_(both);
}

}  // namespace orrery::executor::kernels

#include "plan/program/program.h"

#include <ranges>
#include <type_traits>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/ids.h"
#include "base/numbers.h"

namespace orrery::plan {

std::string_view to_string(Stream s) {
  return base::EnumNames<Stream::kCopyIn>(
      "compute", "tensor", "data", "forward_send", "forward_receive", "backward_send",
      "backward_receive", "host", "second_forward_send", "second_forward_receive",
      "second_backward_send", "second_backward_receive", "copy_out", "copy_in")[s];
}

std::string_view to_string(BufferCategory c) {
  return base::EnumNames<BufferCategory::kHost>("parameter", "gradient", "optimizer", "activation",
                                                "communication", "data", "host")[c];
}

Group Group::of_bits(std::string name, std::uint32_t bits) {
  if (bits == 0) return {std::move(name)};
  const std::uint32_t lowest = bits & (~bits + 1), side_by_side = bits / lowest;
  return {std::move(name), 1 << std::popcount(bits), as_int(lowest),
          (side_by_side & (side_by_side + 1)) == 0 ? 0 : bits};
}

std::int64_t BufferDecl::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

const RankClass& Program::class_of(int rank) const {
  ORRERY_CHECK(rank >= 0 && rank < world_size, "rank {} of {}", rank, world_size);
  for (const RankClass& c : classes) {
    if (rank >= c.first_rank && rank < c.first_rank + c.count) return c;
  }
  base::check_failed(__FILE__, __LINE__, "classes cover all ranks",
                     fmt::format("rank {} has no class", rank));
}

namespace {

/// Adds every field in the order of its declaration. A class, so that the overloads see each other
/// whatever their order.
class ProgramDigest {
 public:
  template <class... Fields>
  void add_each(const Fields&... fields) {
    (add(fields), ...);
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void add(Enum value) { f_.add(as_int(value)); }
  template <class Number>
  requires std::is_arithmetic_v<Number>
  void add(Number value) { f_.add(value); }
  void add(const std::string& text) { f_.add(std::string_view(text)); }
  template <class Tag>
  void add(base::Id<Tag> id) {
    f_.add(id.valid() ? static_cast<std::int64_t>(id.raw()) : std::int64_t{-1});
  }

  /// A list is its length and its entries; an optional is a list of none or one.
  template <class Range>
  requires std::ranges::range<Range>
  void add(const Range& range) {
    f_.add(range.size());
    for (const auto& entry : range) add(entry);
  }
  template <class T>
  void add(const std::optional<T>& value) {
    f_.add(value.has_value());
    if (value) add(*value);
  }

  void add(const BufferRef& r) { add_each(r.buffer, r.layer_offset); }
  void add(const BufferDecl& b) {
    add_each(b.name, b.category, b.dtype, b.shape, b.scope, b.persistent, b.unit);
  }
  void add(const Group& g) {
    add_each(g.name, g.size, g.stride);
    if (g.bits != 0) add(g.bits);
  }
  void add(const Element& e) { add_each(e.split, e.k, e.skew); }
  void add(const SlicePlanes& d) { add_each(d.bits, d.planes); }
  void add(const RedistributedTensor& t) {
    add_each(t.from, t.to, t.held.dimensions, t.wanted.dimensions, t.extents, t.held_row,
             t.held_offset, t.wanted_row, t.wanted_offset);
  }
  void add(const Redistribution& r) { add_each(r.bits, r.tensors); }
  void add(const model::SegmentShape& s) {
    add_each(s.kind, s.dtype, s.sequences, s.tokens, s.in, s.out, s.heads, s.kv_heads, s.head_dim,
             s.elements, s.norm, s.activation, s.gated, s.bias, s.rotary, s.causal, s.residual,
             s.epsilon, s.rope_theta, s.vocab, s.dim, s.parts, s.part_stride, s.kv_tokens,
             s.ring_step, s.token_parts, s.token_stride);
    if (s.token_chunks > 1) add(s.token_chunks);
    if (s.slices > 1) add_each(s.slices, s.slice);
    if (s.pieces > 1) add(s.pieces);
    if (s.format != model::Format::kNone)
      add_each(s.format, s.quantises_input, s.quantises_weights);
    if (s.experts > 0) add_each(s.experts, s.top_k, s.capacity, s.shared);
    if (const model::Routing& r = s.routing; r != model::Routing{})
      add_each(r.sigmoid, r.groups, r.groups_per_token, r.normalised, r.scale);
    if (s.routing.of_inputs) add(s.routing.of_inputs);
    if (const model::ImageWindows& w = s.windows; w.tokens > 0)
      add_each(w.tokens, w.merges, w.first_block);
    if (s.steps > 1) add(s.steps);
    if (s.token_bits != 0) add(s.token_bits);
    if (s.key_bits != 0) add_each(s.key_bits, s.token_bits);
    if (s.reach > 0) add_each(s.reach, s.chunked);
    if (s.sinks || s.alibi > 0) add_each(s.sinks, s.alibi, s.part_stride);
    if (s.score_cap != 0 || s.score_scale != 0) add_each(s.score_cap, s.score_scale);
    if (s.rope != model::Rope{})
      add_each(s.rope.dims, s.rope.scaling, s.rope.factor, s.rope.low, s.rope.high, s.rope.original,
               s.rope.magnitude);
    if (s.value_dim > 0) add_each(s.value_dim, s.rope_dim);
    if (s.state > 0) add_each(s.state, s.kernel, s.chunk, s.weights, s.delta);
    if (s.state == 0 && s.weights > 0) add(s.weights);
    if (s.whole) add(s.whole);
    if (!s.gain || !s.norm_bias) add_each(s.gain, s.norm_bias);
    if (s.scale != 1 || s.cap != 0) add_each(s.scale, s.cap);
  }
  void add(const LayerStrategy& s) {
    add_each(s.tp, s.dp, s.zero, s.sequence_parallel, s.recompute, s.grad_reduce, s.cp, s.ep,
             s.shard, s.slices, s.strided, s.context, s.operators);
    if (s.tensor_pieces > 1) add(s.tensor_pieces);
    if (s.folded) add(s.folded);
    if (s.states != States::kDevice) add(s.states);
  }
  void add(const Parameter& p) {
    add_each(p.name, p.shape, p.local_shape, p.shard_dim, p.offset);
    if (p.expert_dim >= 0) add(p.expert_dim);
    if (p.slices > 1) add_each(p.slices, p.slice);
    if (p.in_dim >= 0) add(p.in_dim);
    if (p.partial) add(p.partial);
    add_each(p.init, p.decay, p.uses);
  }
  void add(const ParameterUnit& u) {
    add_each(u.name, u.parameters, u.elements, u.padded, u.strategy, u.data_group, u.shard_group,
             u.replica_group, u.tensor_group);
    if (u.partitioned()) add(u.partition);
    if (u.frozen) add(u.frozen);
  }
  void add(const ParameterView& v) { add_each(v.offset, v.shape, v.parameters); }
  void add(const Leg& l) { add_each(l.send, l.peer_offset, l.buffer); }
  void add(const Op& op) {
    add_each(op.kind, op.stream, op.name, op.segment, op.phase, op.temporal_step, op.recomputed,
             op.unit, op.views, op.weights, op.gradients, op.collective, op.group, op.reduce,
             op.dim, op.bytes, op.slice_offset, op.slice_elements, op.slice_group, op.sections,
             op.legs, op.reads, op.writes, op.updates, op.frees, op.acquire, op.release);
    if (op.pieces > 1) add_each(op.pieces, op.piece);
    if (!op.senders.empty()) add(op.senders);
    if (op.redistribution) add(op.redistribution);
  }
  void add(const Template& t) { add_each(t.name, t.ops); }
  void add(const Node& n) {
    add_each(n.is_loop, n.call, n.layer, n.micro_batch, n.layer_from_loop, n.micro_batch_from_loop,
             n.axis, n.begin, n.end, n.step, n.body);
  }
  void add(const RankClass::Persistent& p) { add_each(p.buffer, p.layer); }
  void add(const RankClass& c) {
    add_each(c.stage, c.first_rank, c.count, c.first_layer, c.end_layer);
    for (const LayerRange& chunk : c.chunks) add_each(chunk.first, chunk.end);
    add_each(c.persistent, c.body);
  }
  void add(const Pool& p) { add_each(p.name, p.capacity); }
  std::string hex() const { return f_.hex(); }

 private:
  base::Fingerprint f_;
};

}  // namespace

std::string Program::fingerprint() const {
  ProgramDigest digest;
  if (!redistributions.empty()) digest.add(redistributions);
  digest.add_each(std::string("orrery.program/1"), model, plan_fingerprint, spec.fingerprint(),
                  precision, sequence, global_batch, micro_batches, world_size, devices_per_stage,
                  buffers, groups, segments, units, pools, templates, classes);
  return digest.hex();
}

}  // namespace orrery::plan

#include "plan/program/program.h"

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/check.h"
#include "base/fingerprint.h"

namespace orrery::plan {

std::string_view to_string(Stream s) {
  switch (s) {
    case Stream::kCompute: return "compute";
    case Stream::kTensor: return "tensor";
    case Stream::kData: return "data";
    case Stream::kForwardSend: return "forward_send";
    case Stream::kForwardReceive: return "forward_receive";
    case Stream::kBackwardSend: return "backward_send";
    case Stream::kBackwardReceive: return "backward_receive";
    case Stream::kHost: return "host";
  }
  return "";
}

std::string_view to_string(BufferCategory c) {
  switch (c) {
    case BufferCategory::kParameter: return "parameter";
    case BufferCategory::kGradient: return "gradient";
    case BufferCategory::kOptimizer: return "optimizer";
    case BufferCategory::kActivation: return "activation";
    case BufferCategory::kCommunication: return "communication";
    case BufferCategory::kData: return "data";
  }
  return "";
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
  template <class Enum>
  requires std::is_enum_v<Enum>
  void add(Enum value) { f_.add(static_cast<int>(value)); }
  template <std::integral I>
  void add(I value) {
    f_.add(value);
  }
  void add(const std::string& text) { f_.add(std::string_view(text)); }
  template <class Tag>
  void add(base::Id<Tag> id) {
    f_.add(id.valid() ? static_cast<std::int64_t>(id.raw()) : std::int64_t{-1});
  }

  /// A list is its length and its entries; an optional is a list of none or one.
  template <class Range>
  void add_all(const Range& range) {
    f_.add(range.size());
    for (const auto& entry : range) add(entry);
  }
  template <class T>
  void add_optional(const std::optional<T>& value) {
    f_.add(value.has_value());
    if (value) add(*value);
  }

  void add(const BufferRef& r) {
    add(r.buffer);
    f_.add(r.layer_offset);
  }

  void add(const BufferDecl& b) {
    add(b.name);
    add(b.category);
    add(b.dtype);
    add_all(b.shape);
    add(b.scope);
    f_.add(b.persistent);
    add_optional(b.unit);
  }

  void add(const Group& g) {
    add(g.name);
    f_.add(g.size).add(g.stride);
  }

  void add(const model::SegmentShape& s) {
    add(s.kind);
    add(s.dtype);
    f_.add(s.sequences)
        .add(s.tokens)
        .add(s.in)
        .add(s.out)
        .add(s.heads)
        .add(s.kv_heads)
        .add(s.head_dim)
        .add(s.elements);
    add(s.norm);
    add(s.activation);
    f_.add(s.gated).add(s.bias).add(s.rotary).add(s.causal).add(s.residual);
    f_.add(s.epsilon).add(s.rope_theta);
    f_.add(s.vocab).add(s.dim).add(s.parts).add(s.part_stride);
    f_.add(s.kv_tokens).add(s.ring_step).add(s.token_parts).add(s.token_stride);
    if (s.slices > 1) f_.add(s.slices).add(s.slice);
    if (s.experts > 0) f_.add(s.experts).add(s.top_k).add(s.capacity).add(s.shared);
  }

  void add(const LayerStrategy& s) {
    f_.add(s.tp).add(s.dp).add(s.zero).add(s.sequence_parallel);
    add(s.recompute);
    add(s.grad_reduce);
    f_.add(s.cp).add(s.ep).add(s.shard).add(s.slices).add(s.strided);
    add(s.context);
    add(s.operators);
  }

  void add(const Parameter& p) {
    add(p.name);
    add_all(p.shape);
    add_all(p.local_shape);
    f_.add(p.shard_dim).add(p.offset);
    if (p.expert_dim >= 0) f_.add(p.expert_dim);
    if (p.slices > 1) f_.add(p.slices).add(p.slice);
    add(p.init);
    f_.add(p.decay).add(p.uses);
  }

  void add(const ParameterUnit& u) {
    add(u.name);
    add_all(u.parameters);
    f_.add(u.elements).add(u.padded);
    add(u.strategy);
    add(u.data_group);
    add(u.shard_group);
    add(u.replica_group);
    add(u.tensor_group);
  }

  void add(const ParameterView& v) {
    f_.add(v.offset);
    add_all(v.shape);
    add_all(v.parameters);
  }

  void add(const Leg& l) {
    f_.add(l.send).add(l.peer_offset);
    add(l.buffer);
  }

  void add(const Op& op) {
    add(op.kind);
    add(op.stream);
    add(op.name);
    add(op.segment);
    add(op.phase);
    f_.add(op.temporal_step).add(op.recomputed);
    add_optional(op.unit);
    add_all(op.views);
    add_optional(op.weights);
    add_optional(op.gradients);
    add(op.collective);
    add(op.group);
    add(op.reduce);
    f_.add(op.dim).add(op.bytes).add(op.slice_offset).add(op.slice_elements);
    add_optional(op.slice_group);
    f_.add(op.sections.size());
    for (const std::int64_t n : op.sections) f_.add(n);
    add_all(op.legs);
    add_all(op.reads);
    add_all(op.writes);
    add_all(op.updates);
    add_all(op.frees);
    add_optional(op.acquire);
    add_optional(op.release);
  }

  void add(const Template& t) {
    add(t.name);
    add_all(t.ops);
  }

  void add(const Node& n) {
    f_.add(n.is_loop);
    add(n.call);
    f_.add(n.layer).add(n.micro_batch).add(n.layer_from_loop).add(n.micro_batch_from_loop);
    add(n.axis);
    f_.add(n.begin).add(n.end).add(n.step);
    add_all(n.body);
  }

  void add(const RankClass::Persistent& p) {
    add(p.buffer);
    f_.add(p.layer);
  }

  void add(const RankClass& c) {
    f_.add(c.stage).add(c.first_rank).add(c.count).add(c.first_layer).add(c.end_layer);
    for (const LayerRange& chunk : c.chunks) f_.add(chunk.first).add(chunk.end);
    add_all(c.persistent);
    add_all(c.body);
  }

  void add(const Pool& p) {
    add(p.name);
    f_.add(p.capacity);
  }
  void add_text(std::string_view text) { f_.add(text); }
  [[nodiscard]] std::string hex() const { return f_.hex(); }

 private:
  base::Fingerprint f_;
};

}  // namespace

std::string Program::fingerprint() const {
  ProgramDigest digest;
  digest.add_text("orrery.program/1");
  digest.add(model);
  digest.add(plan_fingerprint);
  digest.add(spec.fingerprint());
  digest.add(precision);
  digest.add(sequence);
  digest.add(global_batch);
  digest.add(micro_batches);
  digest.add(world_size);
  digest.add(devices_per_stage);
  digest.add_all(buffers);
  digest.add_all(groups);
  digest.add_all(segments);
  digest.add_all(units);
  digest.add_all(pools);
  digest.add_all(templates);
  digest.add_all(classes);
  return digest.hex();
}

}  // namespace orrery::plan

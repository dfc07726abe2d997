/// \file
/// Norms and attention of partitioned layers.

#include "base/numbers.h"
#include "plan/lowering/partition_parts.h"

namespace orrery::plan {

using enum Dimension;

// ---- norms ----
//
//   features whole   y = norm(x)
//   split            sums(x) over the rank's features, all-reduce, y = norm(x, sums); backward the
//                    same, from the sums of dy w and dy w y'

PartitionedNorm::PartitionedNorm(const DeviceGrid& grid, std::string name, const Partition& p,
                                 const PartitionedVectors& vectors)
    : grid_(grid),
      b_(grid.builder()),
      name_(std::move(name)),
      p_(p),
      vectors_(vectors),
      split_(p.split_mask(kOut) | p.column_mask()) {}

SegmentShape PartitionedNorm::shape(SegmentKind kind) const {
  const std::int64_t h = b_.model().hidden, local = h / p_.slices(kOut);
  SegmentShape s = grid_.shape(kind, p_, local, kind == kNorm ? local : h);
  if (kind == kNormSums) s.key_bits = split_;
  return s;
}

PlacedTensor PartitionedNorm::forward(const PlacedTensor& x, const std::string& to, Ops& ops) {
  x_ = x;
  const std::string of = name_ + " " + to_string(p_.sequence());
  const PlacedTensor y = grid_.tensor(to, of, x.layout, x.extents);
  const std::int64_t t = shape(kNorm).token_count();
  statistics_.clear();
  if (layer()) statistics_.push_back(grid_.numbers("mean", of, {t}));
  statistics_.push_back(grid_.numbers("rstd", of, {t}));
  BufferRefs reads{x.buffer}, writes{y.buffer};
  writes.insert(writes.end(), statistics_.begin(), statistics_.end());
  if (split_ != 0) {
    const BufferRef sums = grid_.numbers("sums", of, {as_int(statistics_.size()), t});
    ops.push_back(compute(b_, name_ + " sums", shape(kNormSums), kF, {x.buffer}, {sums}));
    grid_.reduced(name_ + " sums", sums, split_, ops);
    reads.push_back(sums);
  }
  ops.push_back(vectors_.used(
      compute(b_, name_, shape(split_ != 0 ? kNormApply : kNorm), kF, reads, writes), gains(true)));
  return y;
}

void PartitionedNorm::backward(const PlacedTensor& dy, const PlacedTensor& d_residual, BufferRef dx,
                               Ops& ops) {
  BufferRefs reads{dy.buffer, x_.buffer};
  reads.insert(reads.end(), statistics_.begin(), statistics_.end());
  SegmentShape s = shape(split_ != 0 ? kNormApply : kNorm);
  s.residual = true;
  if (split_ != 0) {
    const std::string of = name_ + " " + to_string(p_.sequence());
    const BufferRef sums =
        grid_.numbers("d sums", of, {as_int(statistics_.size()), s.token_count()});
    Op op = vectors_.used(compute(b_, name_ + " sums", shape(kNormSums), kB, reads, {sums}),
                          gains(false));
    op.weights = vectors_.weights();
    ops.push_back(std::move(op));
    grid_.reduced(name_ + " d sums", sums, split_, ops);
    reads.push_back(sums);
  }
  reads.push_back(d_residual.buffer);
  ops.push_back(vectors_.used(compute(b_, name_, s, kBG, reads, {dx}), gains(true)));
}

std::vector<std::string> PartitionedNorm::gains(bool bias) const {
  std::vector<std::string> names{name_ + ".weight"};
  if (bias && layer()) names.push_back(name_ + ".bias");
  return names;
}

// ---- attention ----
//
//   fused    qkv -> o where every device has whole sequences of its heads, as other layers do
//   else     scores = q k^T, a = softmax(scores), o = a v, each with a layout of its own

PartitionedAttention::PartitionedAttention(const DeviceGrid& grid, const LayerPartition& partition)
    : grid_(grid),
      b_(grid.builder()),
      scores_(partition[kScoreProduct]),
      softmax_(partition[kSoftmaxOf]),
      values_(partition[kValueProduct]) {}

SegmentShape PartitionedAttention::shape(SegmentKind kind, const Partition& p) const {
  const ModelSpec& m = b_.model();
  SegmentShape s = grid_.shape(kind, p, 0, 0);
  s.heads = m.heads / p.slices(kHeads);
  s.kv_heads = m.kv_heads / p.slices(kHeads);
  s.head_dim = m.head_dim;
  s.kv_tokens = b_.context().sequence / p.slices(kKeys);
  s.rotary = kind == kScores && m.position == model::PositionKind::kRotary;
  s.rope_theta = m.rope_theta;
  s.causal = m.causal;
  s.token_bits = p.split_mask(kTokens);
  s.key_bits = p.split_mask(kKeys);
  return s;
}

Extents4 PartitionedAttention::scores_extents() const {
  const std::int64_t s = b_.context().sequence;
  return {b_.context().micro_batch_sequences, b_.model().heads, s, s};
}

namespace {

constexpr std::array kQueries{kBatch, kTokens, kHeads}, kKeysOf{kBatch, kKeys, kHeads};
constexpr std::array kScoresOf{kBatch, kHeads, kTokens, kKeys};

std::string name_of(const char* name, const Partition& p) {
  return std::string(name) + " " + to_string(p.sequence());
}

}  // namespace

/// Queries, keys and values as sections of the rows of qkv.
std::vector<RedistributedTensor> PartitionedAttention::parts(const PlacedTensor& qkv) const {
  std::vector<RedistributedTensor> all;
  std::int64_t begin = 0;
  const int held = qkv.layout.dimensions.back().bits;
  for (const PlacedTensor& part : {q_, k_, v_}) {
    const std::int64_t row = part.extents.back() >> part.layout.dimensions.back().bits;
    all.push_back({.from = 0,
                   .to = as_int(all.size()),
                   .held = qkv.layout,
                   .wanted = part.layout,
                   .extents = part.extents,
                   .held_row = qkv.extents.back() >> held,
                   .held_offset = begin >> held,
                   .wanted_row = row});
    begin += part.extents.back();
  }
  return all;
}

SegmentShape PartitionedAttention::fused_shape() const {
  SegmentShape s = shape(kAttention, values_);
  s.in = (s.heads + 2 * s.kv_heads) * s.head_dim;
  s.out = s.heads * s.head_dim;
  s.rotary = b_.model().position == model::PositionKind::kRotary && b_.model().rotates;
  s.rope = b_.model().rope;
  return s;
}

std::vector<RedistributedTensor> PartitionedAttention::sections(const PlacedTensor& from,
                                                                const PlacedTensor& to) const {
  const ModelSpec& m = b_.model();
  const int held = from.layout.dimensions.back().bits, wanted = to.layout.dimensions.back().bits;
  std::vector<RedistributedTensor> all;
  std::int64_t begin = 0;
  for (const std::int64_t heads : {m.heads, m.kv_heads, m.kv_heads}) {
    const std::int64_t features = heads * m.head_dim;
    all.push_back({.held = from.layout,
                   .wanted = to.layout,
                   .extents = grid_.features(features),
                   .held_row = from.extents.back() >> held,
                   .held_offset = begin >> held,
                   .wanted_row = to.extents.back() >> wanted,
                   .wanted_offset = begin >> wanted});
    begin += features;
  }
  return all;
}

PlacedTensor PartitionedAttention::moved(const char* name, const PlacedTensor& from,
                                         const Layout64& wanted, const std::string& of,
                                         Ops& ops) const {
  if (from.layout == wanted) return from;
  const PlacedTensor to = grid_.tensor(name, of, wanted, from.extents);
  ops.push_back(grid_.redistribution(name, sections(from, to), {from.buffer}, {to.buffer}));
  return to;
}

PlacedTensor PartitionedAttention::fused_forward(const PlacedTensor& qkv, Ops& ops) {
  const std::string of = name_of("attention", values_);
  qkv_ = moved("qkv", qkv, output(), of, ops);
  o_ = grid_.tensor("o", name_of("values", values_), output(),
                    grid_.features(b_.model().heads * b_.model().head_dim));
  const SegmentShape s = fused_shape();
  lse_ = grid_.numbers("lse", of, {s.sequences, s.heads, s.tokens});
  ops.push_back(compute(b_, "attention", s, kF, {qkv_.buffer}, {o_.buffer, lse_}));
  return o_;
}

PlacedTensor PartitionedAttention::fused_backward(const PlacedTensor& d_o, const Layout64& wanted,
                                                  const std::string& of, Ops& ops) {
  const std::string own = name_of("attention", values_);
  const bool stays = wanted == output();
  const PlacedTensor d = grid_.tensor("dqkv", stays ? "for " + of : own, output(), qkv_.extents);
  ops.push_back(compute(b_, "attention", fused_shape(), kB,
                        {d_o.buffer, qkv_.buffer, o_.buffer, lse_}, {d.buffer}));
  return moved("dqkv", d, wanted, "for " + of, ops);
}

PlacedTensor PartitionedAttention::forward(const PlacedTensor& qkv, Ops& ops) {
  if (fused()) return fused_forward(qkv, ops);
  const ModelSpec& m = b_.model();
  const auto placed = [&](const char* name, const char* of, const Partition& p, const auto& where,
                          std::int64_t heads) {
    return grid_.tensor(name, name_of(of, p), DeviceGrid::layout3(p, where, kF, 0),
                        grid_.features(heads * m.head_dim));
  };
  q_ = placed("q", "scores", scores_, kQueries, m.heads);
  k_ = placed("k", "scores", scores_, kKeysOf, m.kv_heads);
  v_ = placed("v", "values", values_, kKeysOf, m.kv_heads);
  ops.push_back(
      grid_.redistribution("qkv", parts(qkv), {qkv.buffer}, {q_.buffer, k_.buffer, v_.buffer}));
  const PlacedTensor scores =
      grid_.tensor("scores", name_of("scores", scores_), DeviceGrid::layout4(scores_, kScoresOf),
                   scores_extents());
  ops.push_back(
      compute(b_, "scores", shape(kScores, scores_), kF, {q_.buffer, k_.buffer}, {scores.buffer}));
  const Layout64 rows = DeviceGrid::layout4(softmax_, kScoresOf);
  const PlacedTensor read =
      grid_.redistributed("scores", scores, rows, name_of("softmax", softmax_), ops);
  a_ = grid_.tensor("a", name_of("softmax", softmax_), rows, scores_extents());
  ops.push_back(compute(b_, "softmax", shape(kSoftmax, softmax_), kF, {read.buffer}, {a_.buffer}));
  a_read_ = grid_.redistributed("a", a_, DeviceGrid::layout4(values_, kScoresOf),
                                name_of("values", values_), ops);
  const PlacedTensor o = placed("o", "values", values_, kQueries, m.heads);
  ops.push_back(
      compute(b_, "values", shape(kValues, values_), kF, {a_read_.buffer, v_.buffer}, {o.buffer}));
  grid_.reduced("o", o.buffer, values_.split_mask(kKeys), ops);
  return o;
}

Layout64 PartitionedAttention::output() const {
  return DeviceGrid::layout3(values_, kQueries, kF, 0);
}
std::string PartitionedAttention::output_tag() const { return name_of("values", values_); }

PlacedTensor PartitionedAttention::backward(const PlacedTensor& d_o, const Layout64& wanted,
                                            const std::string& of, Ops& ops) {
  if (fused()) return fused_backward(d_o, wanted, of, ops);
  const auto like = [&](const char* name, const char* owner, const Partition& p,
                        const PlacedTensor& t) {
    return grid_.tensor(name, name_of(owner, p), t.layout, t.extents);
  };
  const PlacedTensor da = like("da", "values", values_, a_read_),
                     dv = like("dv", "values", values_, v_);
  const SegmentShape values = shape(kValues, values_);
  ops.push_back(compute(b_, "values", values, kB, {d_o.buffer, v_.buffer}, {da.buffer}));
  ops.push_back(compute(b_, "values", values, kG, {d_o.buffer, a_read_.buffer}, {dv.buffer}));
  grid_.reduced("dv", dv.buffer, values_.split_mask(kTokens), ops);
  const PlacedTensor da_read =
      grid_.redistributed("da", da, a_.layout, name_of("softmax", softmax_), ops);
  const PlacedTensor ds = like("dscores", "softmax", softmax_, a_);
  ops.push_back(compute(b_, "softmax", shape(kSoftmax, softmax_), kB, {da_read.buffer, a_.buffer},
                        {ds.buffer}));
  const PlacedTensor ds_read = grid_.redistributed(
      "dscores", ds, DeviceGrid::layout4(scores_, kScoresOf), name_of("scores", scores_), ops);
  const PlacedTensor dq = like("dq", "scores", scores_, q_), dk = like("dk", "scores", scores_, k_);
  const SegmentShape scores = shape(kScores, scores_);
  ops.push_back(compute(b_, "scores", scores, kB, {ds_read.buffer, k_.buffer}, {dq.buffer}));
  grid_.reduced("dq", dq.buffer, scores_.split_mask(kKeys), ops);
  ops.push_back(compute(b_, "scores", scores, kG, {ds_read.buffer, q_.buffer}, {dk.buffer}));
  grid_.reduced("dk", dk.buffer, scores_.split_mask(kTokens), ops);
  const PlacedTensor dqkv =
      grid_.tensor("dqkv", "for " + of, wanted, grid_.features(b_.model().qkv_features()));
  std::vector<RedistributedTensor> back = parts(dqkv);
  for (RedistributedTensor& t : back) {  // the other way
    std::swap(t.from, t.to);
    std::swap(t.held, t.wanted);
    std::swap(t.held_row, t.wanted_row);
    std::swap(t.held_offset, t.wanted_offset);
  }
  ops.push_back(
      grid_.redistribution("dqkv", back, {dq.buffer, dk.buffer, dv.buffer}, {dqkv.buffer}));
  return dqkv;
}

}  // namespace orrery::plan

#include <algorithm>

#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

using model::SegmentKind;
using model::SegmentShape;

namespace {

Parameter parameter(const char* name, std::vector<std::int64_t> shape, Init init) {
  Parameter p;
  p.name = name;
  p.shape = p.local_shape = std::move(shape);
  p.init = init;
  p.decay = p.shape.size() > 1;
  return p;
}

/// Rows of the table are split over tp; the last rank's are padded, and the loss masks the padding.
Parameter table_parameter(const char* name, const model::ModelSpec& m, int tp, int uses) {
  Parameter p = parameter(name, {m.vocab, m.hidden}, Init::kNormal);
  p.local_shape[0] = (m.vocab + tp - 1) / tp;
  p.shard_dim = tp > 1 ? 0 : -1;
  p.uses = uses;
  return p;
}

/// Of an untied head: classes have a bias each.
std::vector<Parameter> head_parameters(const model::ModelSpec& m, int tp) {
  std::vector<Parameter> ps{table_parameter("lm_head.weight", m, tp, 1)};
  if (m.patch_features == 0) return ps;
  ps.push_back(parameter("lm_head.bias", {m.vocab}, Init::kZero));
  ps.back().local_shape[0] = ps.front().local_shape[0];
  ps.back().shard_dim = ps.front().shard_dim;
  return ps;
}

constexpr const char* kTable = "embedding.token.weight";

/// Encoder and decoder look their tokens up in one table. The head's copy in another stage then has
/// another number of uses.
UnitState table_unit(Builder& b, const LayerStrategy& v, bool of_head) {
  const int lookups = b.has_companion() ? 2 : 1;
  const bool copy = of_head && !shares_table(b);
  const int uses = copy ? 1 : lookups + (shares_table(b) ? 1 : 0);
  return b.unit(copy && lookups > 1 ? "table copy" : "table",
                {table_parameter(kTable, b.model(), v.tp, uses)}, v, Scope::kStep);
}

bool reads_images(const model::ModelSpec& m) { return m.patch_features > 0; }

/// Images: the patch product; class token and positions; norm.
UnitState patch_unit(Builder& b, const LayerStrategy& v) {
  const model::ModelSpec& m = b.model();
  std::vector<Parameter> ps{
      parameter("embedding.patch.weight", {m.hidden, m.patch_features}, Init::kNormal),
      parameter("embedding.patch.bias", {m.hidden}, Init::kZero)};
  if (m.position == model::PositionKind::kLearned)
    ps.push_back(
        parameter("embedding.position.weight", {m.max_positions, m.hidden}, Init::kNormal));
  if (m.class_token)
    ps.push_back(parameter("embedding.class.weight", {1, m.hidden}, Init::kNormal));
  if (m.patch_norm) {
    ps.push_back(parameter("embedding.norm.weight", {m.hidden}, Init::kOne));
    ps.push_back(parameter("embedding.norm.bias", {m.hidden}, Init::kZero));
  }
  return b.unit("patches", std::move(ps), v, Scope::kStep);
}

/// Tables of relative position biases: counted, held, and read by nothing (model/spec.h).
UnitState relative_unit(Builder& b, const LayerStrategy& v) {
  const model::ModelSpec& m = b.model();
  std::vector<Parameter> ps{
      parameter("encoder.relative.weight", {m.relative_buckets, m.heads}, Init::kNormal),
      parameter("decoder.relative.weight", {m.relative_buckets, m.heads}, Init::kNormal)};
  for (Parameter& p : ps) p.uses = 0;
  return b.unit("relative", std::move(ps), v, Scope::kStep);
}

/// Everything of the embedding but the table: positions, token types, BERT's norm.
UnitState position_unit(Builder& b, const LayerStrategy& v) {
  const model::ModelSpec& m = b.model();
  std::vector<Parameter> ps{
      parameter("embedding.position.weight", {m.max_positions, m.hidden}, Init::kNormal)};
  if (m.type_vocab > 0)
    ps.push_back(parameter("embedding.type.weight", {m.type_vocab, m.hidden}, Init::kNormal));
  if (m.post_norm) {
    ps.push_back(parameter("embedding.norm.weight", {m.hidden}, Init::kOne));
    ps.push_back(parameter("embedding.norm.bias", {m.hidden}, Init::kZero));
  }
  return b.unit("position", std::move(ps), v, Scope::kStep);
}

/// Final norm; for BERT the pooler, which has parameters but takes no part in this objective.
UnitState final_unit(Builder& b, const LayerStrategy& v) {
  const model::ModelSpec& m = b.model();
  std::vector<Parameter> ps;
  if (!m.post_norm) {
    ps.push_back(parameter("final_norm.weight", {m.hidden}, Init::kOne));
    if (m.norm == model::NormKind::kLayerNorm)
      ps.push_back(parameter("final_norm.bias", {m.hidden}, Init::kZero));
  }
  if (m.pooler) {
    ps.push_back(parameter("pooler.weight", {m.hidden, m.hidden}, Init::kNormal));
    ps.push_back(parameter("pooler.bias", {m.hidden}, Init::kZero));
    for (Parameter& p : ps) p.uses = p.name.starts_with("pooler") ? 0 : 1;
  }
  return b.unit("final", std::move(ps), v, Scope::kStep);
}

bool has_final_unit(const model::ModelSpec& m) { return !m.post_norm || m.pooler; }

std::vector<ParameterView> norm_views(Builder& b, const UnitUse& use, const char* weight,
                                      const char* bias) {
  const ParameterUnit& u = b.program().units[use.state.unit];
  std::vector<ParameterView> v{view_of(u, {weight})};
  if (b.model().norm == model::NormKind::kLayerNorm) v.push_back(view_of(u, {bias}));
  return v;
}

struct NormBuffers {
  BufferRef mean, rstd;
  std::vector<BufferRef> stats;
};
NormBuffers norm_buffers(Builder& b, const Layout& l, const std::string& name) {
  NormBuffers n;
  const std::int64_t t = b.sequences(l) * b.tokens(l);
  if (b.model().norm == model::NormKind::kLayerNorm) {
    n.mean = b.local(name + " mean", l, {t}, model::DType::kFloat32);
    n.stats.push_back(n.mean);
  }
  n.rstd = b.local(name + " rstd", l, {t}, model::DType::kFloat32);
  n.stats.push_back(n.rstd);
  return n;
}

std::vector<BufferRef> joined(std::vector<BufferRef> a, const std::vector<BufferRef>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Tokens of a sequence that have a target: an image has one class.
std::int64_t target_tokens(const Builder& b, const Layout& l) {
  return reads_images(b.model()) ? 1 : b.tokens(l);
}

BufferRef token_buffer(Builder& b, const char* name, const Layout& l, std::int64_t tokens) {
  BufferDecl d;
  d.name = std::string(name) + " [" + l.tag() + "]";
  d.category = BufferCategory::kData;
  d.dtype = model::DType::kInt64;
  d.shape = {b.sequences(l), tokens};
  d.scope = Scope::kMicroBatch;
  return {b.buffer(std::move(d)), 0};
}

SegmentShape vocabulary_shape(Builder& b, SegmentKind kind, const Layout& l, int tp) {
  SegmentShape s = b.shape(kind, l, b.model().hidden, (b.model().vocab + tp - 1) / tp);
  s.vocab = b.model().vocab;
  s.parts = tp;
  s.part_stride = l.tensor_stride();
  if (kind != SegmentKind::kEmbedding) s.tokens = target_tokens(b, l);
  return s;
}

Op load(Builder& b, const char* name, SegmentKind kind, const Layout& l, BufferRef out) {
  SegmentShape s = b.shape(kind, l, 0, 0);
  s.dtype = b.program().buffers[out.buffer].dtype;
  s.tokens = b.program().buffers[out.buffer].elements() / s.sequences;
  s.part_stride = l.batch_stride();
  s.parts = l.dp;
  s.token_parts = l.cp;
  s.token_stride = l.token_stride();
  Op op = compute(b, name, s, Phase::kF, {}, {out});
  op.stream = Stream::kHost;
  return op;
}

void keep_alive_rules(Builder& b, LayerPair& pair, std::vector<BufferRef> kept) {
  for (const UnitUse& u : pair.units)
    if (u.parts) kept.push_back(u.gradient);
  place_frees(pair.forward, pair.backward, [&](const BufferRef& r) {
    return b.program().buffers[r.buffer].persistent || std::ranges::find(kept, r) != kept.end();
  });
}

}  // namespace

bool shares_table(const Builder& b) { return b.model().tied_embeddings && b.context().stages == 1; }

std::vector<UnitUse> embedding_units(Builder& b, const LayerStrategy& v) {
  b.enter(0);
  if (reads_images(b.model())) return {b.use(patch_unit(b, v), "embedding")};
  UnitUse table = b.use(table_unit(b, v, false), "embedding");
  table.tied = b.model().tied_embeddings && !shares_table(b);
  std::vector<UnitUse> units{table};
  if (b.model().position == model::PositionKind::kLearned)
    units.push_back(b.use(position_unit(b, v), "embedding"));
  if (b.model().relative_buckets > 0) units.push_back(b.use(relative_unit(b, v), "embedding"));
  return units;
}

std::vector<UnitUse> head_units(Builder& b, const LayerStrategy& v) {
  b.enter(b.program().spec.last_kind());
  const model::ModelSpec& m = b.model();
  UnitUse table =
      b.use(m.tied_embeddings ? table_unit(b, v, true)
                              : b.unit("lm_head", head_parameters(m, v.tp), v, Scope::kStep),
            "head");
  table.owned = !shares_table(b);
  table.tied = m.tied_embeddings && table.owned;
  std::vector<UnitUse> units{table};
  if (has_final_unit(m)) units.push_back(b.use(final_unit(b, v), "head"));
  return units;
}

namespace {

/// y = norm(patches(pixels) + positions). The class token is a row of zero pixels; it and the
/// positions are added as rows.
LayerPair patch_embedding_pair(Builder& b, const LayerStrategy& v) {
  LayerPair pair;
  pair.units = embedding_units(b, v);
  const UnitUse use = pair.units.front();
  const ParameterUnit& unit = b.program().units[use.state.unit];
  const model::ModelSpec& m = b.model();
  const Layout l(v);
  const std::int64_t bs = b.sequences(l), s = b.tokens(l), h = m.hidden;
  const auto tensor = [&](const char* name, std::int64_t columns) {
    return b.local(name, l, {bs, s, columns}, b.dtype());
  };
  const BufferRef pixels = tensor("pixels", m.patch_features), out = b.stream(l, 0);
  pair.forward.push_back(load(b, "load images", SegmentKind::kLoadTokens, l, pixels));
  SegmentShape product = b.shape(SegmentKind::kPatchProduct, l, m.patch_features, h);
  product.bias = true;
  const std::vector<ParameterView> weights{view_of(unit, {"patch.weight"}),
                                           view_of(unit, {"patch.bias"})};
  const bool adds = m.position == model::PositionKind::kLearned || m.class_token;
  const BufferRef patches = adds || m.patch_norm ? tensor("patches", h) : out;
  BufferRef sum = patches;
  if (adds) sum = m.patch_norm ? tensor("patch sum", h) : out;
  pair.forward.push_back(with_weights(
      compute(b, "patches", product, Phase::kF, {pixels}, {patches}), use, weights, false));
  SegmentShape add = b.shape(SegmentKind::kPositionAdd, l, h, m.max_positions);
  std::vector<ParameterView> rows;
  if (m.position == model::PositionKind::kLearned)
    rows.push_back(view_of(unit, {"position.weight"}));
  if (m.class_token) rows.push_back(view_of(unit, {"class.weight"}));
  if (adds)
    pair.forward.push_back(
        with_weights(compute(b, "position", add, Phase::kF, {patches}, {sum}), use, rows, false));
  BufferRef d = b.stream_gradient(l, 0);
  for (Op& op : zero_part_ops(b, use)) pair.backward.push_back(std::move(op));
  if (m.patch_norm) {
    const NormPart norm(b, l, use, "embedding.norm", h);
    const BufferRef d_sum = tensor("d patches", h);
    pair.forward.push_back(norm.forward(sum, out));
    pair.backward.push_back(norm.backward(d, sum, d_sum, nullptr));
    d = d_sum;
  }
  if (adds)
    pair.backward.push_back(
        with_gradient(compute(b, "position", add, Phase::kBG, {d}, {}), use, rows));
  pair.backward.push_back(
      with_gradient(compute(b, "patches", product, Phase::kG, {d, pixels}, {}), use, weights));
  keep_alive_rules(b, pair, {out});
  return pair;
}

/// The decoder's tokens, looked up in the same table; returns what they become.
BufferRef decoder_embedding(Builder& b, const Layout& l, const SegmentShape& lookup,
                            const UnitUse& table, const std::vector<ParameterView>& view,
                            LayerPair& pair) {
  const BufferRef ids = token_buffer(b, "decoder ids", l, b.tokens(l)),
                  input = b.companion(l, false, 0);
  pair.forward.push_back(load(b, "load decoder tokens", SegmentKind::kLoadTokens, l, ids));
  pair.forward.push_back(with_weights(
      compute(b, "decoder embedding", lookup, Phase::kF, {ids}, {input}), table, view, false));
  if (l.tp > 1)
    pair.forward.push_back(
        all_reduce(b, "all_reduce(decoder embedding)", Stream::kTensor, b.tensor_group(l), input));
  pair.backward.push_back(with_gradient(compute(b, "decoder embedding", lookup, Phase::kBG,
                                                {b.companion_gradient(l, false, 0), ids}, {}),
                                        table, view));
  return input;
}

/// Learned positions added to the embedding `e`, and the norm of post-norm models behind them;
/// returns the gradient of `e`.
BufferRef positions(Builder& b, const Layout& l, BufferRef e, LayerPair& pair) {
  const model::ModelSpec& m = b.model();
  const std::int64_t bs = b.sequences(l), s = b.tokens(l), h = m.hidden;
  const BufferRef out = b.stream(l, 0), d = b.stream_gradient(l, 0);
  const UnitUse position = pair.units.back();
  const ParameterUnit& unit = b.program().units[position.state.unit];
  std::vector<ParameterView> views{view_of(unit, {"position.weight"})};
  if (m.type_vocab > 0) views.push_back(view_of(unit, {"type.weight"}));
  const BufferRef sum = m.post_norm ? b.local("e sum", l, {bs, s, h}, b.dtype()) : out;
  SegmentShape add = b.shape(SegmentKind::kPositionAdd, l, h, m.max_positions);
  add.token_parts = l.cp;
  add.token_stride = l.token_stride();
  pair.forward.push_back(
      with_weights(compute(b, "position", add, Phase::kF, {e}, {sum}), position, views, false));
  BufferRef gradient = d;
  if (m.post_norm) {
    const SegmentShape norm = b.shape(SegmentKind::kNorm, l, h, h);
    const NormBuffers n = norm_buffers(b, l, "embedding norm");
    const std::vector<ParameterView> nv = norm_views(b, position, "norm.weight", "norm.bias");
    gradient = b.local("de", l, {bs, s, h}, b.dtype());
    pair.forward.push_back(
        with_weights(compute(b, "embedding norm", norm, Phase::kF, {sum}, joined({out}, n.stats)),
                     position, nv, false));
    pair.backward.push_back(with_weights(
        compute(b, "embedding norm", norm, Phase::kBG, joined({d, sum}, n.stats), {gradient}),
        position, nv, true));
  }
  pair.backward.push_back(
      with_gradient(compute(b, "position", add, Phase::kBG, {gradient}, {}), position, views));
  return gradient;
}

}  // namespace

LayerPair embedding_pair(Builder& b, const LayerStrategy& v) {
  b.enter(0);
  if (reads_images(b.model())) return patch_embedding_pair(b, v);
  const model::ModelSpec& m = b.model();
  const Layout l(v);
  const std::int64_t bs = b.sequences(l), s = b.tokens(l), h = m.hidden;
  LayerPair pair;
  pair.units = embedding_units(b, v);
  const UnitUse table = pair.units.front();
  const BufferRef ids = token_buffer(b, "ids", l, s), out = b.stream(l, 0),
                  d = b.stream_gradient(l, 0);
  const bool learned = m.position == model::PositionKind::kLearned;
  const BufferRef e = learned ? b.local("e", l, {bs, s, h}, b.dtype()) : out;

  auto& f = pair.forward;
  auto& r = pair.backward;
  f.push_back(load(b, "load tokens", SegmentKind::kLoadTokens, l, ids));
  const SegmentShape lookup = vocabulary_shape(b, SegmentKind::kEmbedding, l, v.tp);
  const std::vector<ParameterView> table_view{
      view_of(b.program().units[table.state.unit], {kTable})};
  f.push_back(with_weights(compute(b, "embedding", lookup, Phase::kF, {ids}, {e}), table,
                           table_view, false));
  if (v.tp > 1)
    f.push_back(all_reduce(b, "all_reduce(embedding)", Stream::kTensor, b.tensor_group(l), e));
  std::vector<BufferRef> kept{out};
  if (b.has_companion()) kept.push_back(decoder_embedding(b, l, lookup, table, table_view, pair));
  const BufferRef gradient = learned ? positions(b, l, e, pair) : d;
  r.push_back(with_gradient(compute(b, "embedding", lookup, Phase::kBG, {gradient, ids}, {}), table,
                            table_view));
  std::vector<Op> zero;
  for (const UnitUse& u : pair.units)
    for (Op& op : zero_part_ops(b, u)) zero.push_back(std::move(op));
  r.insert(r.begin(), zero.begin(), zero.end());
  keep_alive_rules(b, pair, kept);
  return pair;
}

namespace {

/// Loss of a vocabulary split over tp: log Σ_j exp(x_j - m) - (x_target - m), m the row maximum;
/// maximum and sums are reduced over the tensor group between the three segments (Megatron-LM's
/// vocabulary-parallel cross-entropy).
void loss_ops(Builder& b, const Layout& l, int tp, BufferRef logits, std::vector<Op>& f) {
  const std::int64_t t = b.sequences(l) * target_tokens(b, l);
  const BufferRef targets = token_buffer(b, "targets", l, target_tokens(b, l)),
                  max = b.local("loss max", l, {t}, model::DType::kFloat32);
  const BufferRef stat = b.local("loss stat", l, {2, t}, model::DType::kFloat32);
  BufferDecl d;
  d.name = "loss";
  d.category = BufferCategory::kData;
  d.shape = {1};
  d.scope = Scope::kStep;
  d.persistent = true;
  const BufferRef loss{b.buffer(std::move(d)), 0};
  const GroupId tensor = b.tensor_group(l);
  f.push_back(load(b, "load targets", SegmentKind::kLoadTargets, l, targets));
  f.push_back(compute(b, "loss max", vocabulary_shape(b, SegmentKind::kLossMax, l, tp), Phase::kF,
                      {logits}, {max}));
  if (tp > 1)
    f.push_back(all_reduce(b, "all_reduce(loss max)", Stream::kTensor, tensor, max, Reduce::kMax));
  f.push_back(compute(b, "loss sum", vocabulary_shape(b, SegmentKind::kLossSum, l, tp), Phase::kF,
                      {logits, max, targets}, {stat}));
  if (tp > 1) f.push_back(all_reduce(b, "all_reduce(loss sum)", Stream::kTensor, tensor, stat));
  const SegmentShape s = vocabulary_shape(b, SegmentKind::kLoss, l, tp);
  f.push_back(compute(b, "loss", s, Phase::kF, {stat}, {}, {loss}));
  f.push_back(compute(b, "loss", s, Phase::kB, {max, stat, targets}, {}, {logits}));
}

}  // namespace

LayerPair head_pair(Builder& b, const LayerStrategy& v) {
  LayerPair pair;
  pair.units = head_units(b, v);
  const model::ModelSpec& m = b.model();
  const Layout l(v);
  const bool pools = reads_images(m);  // to one token: the class token, or the mean
  const std::int64_t bs = b.sequences(l), s = b.tokens(l), h = m.hidden,
                     rows = (m.vocab + v.tp - 1) / v.tp, targets = target_tokens(b, l);
  const UnitUse table = pair.units.front();

  auto& f = pair.forward;
  for (const UnitUse& u : pair.units)
    for (Op& op : zero_part_ops(b, u)) f.push_back(std::move(op));
  const BufferRef x = b.stream(l, 0), dx = b.stream_gradient(l, 0);
  const SegmentShape norm = b.shape(SegmentKind::kNorm, l, h, h);
  const NormBuffers n = m.post_norm ? NormBuffers{} : norm_buffers(b, l, "final norm");
  const BufferRef a = m.post_norm ? x : b.local("final a", l, {bs, s, h}, b.dtype());
  const BufferRef da = m.post_norm ? dx : b.local("final da", l, {bs, s, h}, b.dtype());
  if (!m.post_norm)
    f.push_back(with_weights(
        compute(b, "final norm", norm, Phase::kF, {x}, joined({a}, n.stats)), pair.units[1],
        norm_views(b, pair.units[1], "final_norm.weight", "final_norm.bias"), false));
  const BufferRef pooled = pools ? b.local("pooled", l, {bs, 1, h}, b.dtype()) : a,
                  d_pooled = pools ? b.local("d pooled", l, {bs, 1, h}, b.dtype()) : da;
  SegmentShape pool = b.shape(SegmentKind::kPool, l, h, h);
  pool.kv_tokens = m.class_token ? 1 : s;
  if (pools) f.push_back(compute(b, "pool", pool, Phase::kF, {a}, {pooled}));
  const BufferRef logits = b.local("logits", l, {bs, targets, rows}, b.dtype());
  SegmentShape product = vocabulary_shape(b, SegmentKind::kLogits, l, v.tp);
  product.bias = pools;
  const ParameterUnit& weights = b.program().units[table.state.unit];
  std::vector<ParameterView> view{
      view_of(weights, {m.tied_embeddings ? kTable : "lm_head.weight"})};
  if (product.bias) view.push_back(view_of(weights, {"lm_head.bias"}));
  f.push_back(with_weights(compute(b, "logits", product, Phase::kF, {pooled}, {logits}), table,
                           view, false));
  loss_ops(b, l, v.tp, logits, f);
  UnitUse one_gather = table;  // forward and backward follow at once: gathered once
  one_gather.weights_backward = table.weights_forward;
  f.push_back(with_weights(compute(b, "logits", product, Phase::kBG, {logits, pooled}, {d_pooled}),
                           one_gather, view, true));
  if (v.tp > 1)
    f.push_back(all_reduce(b, "all_reduce(da)", Stream::kTensor, b.tensor_group(l), d_pooled));
  if (pools) f.push_back(compute(b, "pool", pool, Phase::kB, {d_pooled}, {da}));
  if (!m.post_norm) {
    UnitUse final_once = pair.units[1];
    final_once.weights_backward = final_once.weights_forward;
    f.push_back(with_weights(
        compute(b, "final norm", norm, Phase::kBG, joined({da, x}, n.stats), {dx}), final_once,
        norm_views(b, pair.units[1], "final_norm.weight", "final_norm.bias"), true));
  }
  keep_alive_rules(b, pair, {dx});
  return pair;
}

}  // namespace orrery::plan

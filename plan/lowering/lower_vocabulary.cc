#include <optional>
#include <utility>

#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

namespace {

Parameter parameter(const std::string& name, Extents shape, Init init = kNormal) {
  Parameter p;
  p.name = name;
  p.shape = p.local_shape = std::move(shape);
  p.init = init;
  p.decay = p.shape.size() > 1;
  return p;
}

void add_norm(Parameters& to, const std::string& name, const ModelSpec& m, bool bias = true) {
  if (m.norm_gain) to.push_back(parameter(name + ".weight", {m.hidden}, kOne));
  if (bias && m.norm_bias) to.push_back(parameter(name + ".bias", {m.hidden}, kZero));
}

/// Rows of the table on each of tp ranks: a multiple of 128, as Megatron-LM pads them
/// (--make-vocab-size-divisible-by), since a device's products are several times slower at an odd
/// leading dimension. The last ranks hold the padding, and the loss masks it.
std::int64_t rows_of_rank(const ModelSpec& m, int tp) {
  constexpr std::int64_t kMultiple = 128;
  const std::int64_t all = kMultiple * tp;
  return (m.vocab + all - 1) / all * kMultiple;
}

Parameter table_parameter(const char* name, const ModelSpec& m, int tp, int uses) {
  Parameter p = parameter(name, {m.vocab, m.embedding_width()});
  p.local_shape[0] = rows_of_rank(m, tp);
  p.shard_dim = tp > 1 ? 0 : -1;
  p.uses = uses;
  return p;
}

/// Of an untied head: classes have a bias each.
Parameters head_parameters(const ModelSpec& m, int tp) {
  Parameters ps{table_parameter("lm_head.weight", m, tp, 1)};
  if (m.patch_features == 0 && !m.head_bias) return ps;
  ps.push_back(parameter("lm_head.bias", {m.vocab}, kZero));
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

bool reads_images(const ModelSpec& m) { return m.patch_features > 0; }

/// Tokens are hidden and predicted where they stand (BERT), not the next ones.
bool predicts_masked(const Builder& b) {
  return !b.model().causal && !reads_images(b.model()) && !b.has_companion();
}

UnitUse use_of(Builder& b, const LayerStrategy& v, const char* name, Parameters ps,
               const char* user = "embedding") {
  return b.use(b.unit(name, std::move(ps), v, Scope::kStep), user);
}

/// Images: the patch product; class token and positions; norm.
UnitUse patch_use(Builder& b, const LayerStrategy& v) {
  const ModelSpec& m = b.model();
  Parameters ps{parameter("embedding.patch.weight", {m.hidden, m.patch_features}),
                parameter("embedding.patch.bias", {m.hidden}, kZero)};
  if (m.position == model::PositionKind::kLearned)
    ps.push_back(parameter("embedding.position.weight", {m.max_positions, m.hidden}));
  if (m.class_token) ps.push_back(parameter("embedding.class.weight", {1, m.hidden}));
  if (m.patch_norm) add_norm(ps, "embedding.norm", m);
  return use_of(b, v, "patches", std::move(ps));
}

/// Tables of relative position biases: counted, held, and read by nothing (model/spec.h).
UnitUse relative_use(Builder& b, const LayerStrategy& v) {
  const ModelSpec& m = b.model();
  Parameters ps{parameter("encoder.relative.weight", {m.relative_buckets, m.heads}),
                parameter("decoder.relative.weight", {m.relative_buckets, m.heads})};
  for (Parameter& p : ps) p.uses = 0;
  return use_of(b, v, "relative", std::move(ps));
}

/// A table narrower than the blocks: products to their width and from it (OPT-350M).
bool narrow(const ModelSpec& m) { return m.embedding_hidden > 0; }
Op width_product(Builder& b, const Layout& l, const UnitUse& use, bool in, Phase phase,
                 BufferRefs reads, BufferRef to) {
  const ModelSpec& m = b.model();
  const std::int64_t w = m.embedding_width();
  const SegmentShape s =
      in ? b.shape(kLatentProduct, l, w, m.hidden) : b.shape(kLatentProduct, l, m.hidden, w);
  return with_weights(compute(b, in ? "widen" : "narrow", s, phase, std::move(reads), {to}), use,
                      {b.view(use, {in ? "embedding.widen.weight" : "embedding.narrow.weight"})});
}

/// Whether the embedding has more than its table.
bool has_position_unit(const ModelSpec& m) {
  return m.position == model::PositionKind::kLearned || m.embedding_norm || narrow(m);
}

/// Everything of the embedding but the table: positions, token types, norm, the product behind it.
UnitUse position_use(Builder& b, const LayerStrategy& v) {
  const ModelSpec& m = b.model();
  Parameters ps;
  if (m.position == model::PositionKind::kLearned)
    ps.push_back(parameter("embedding.position.weight", {m.max_positions, m.hidden}));
  if (m.type_vocab > 0) ps.push_back(parameter("embedding.type.weight", {m.type_vocab, m.hidden}));
  if (m.embedding_norm) add_norm(ps, "embedding.norm", m);
  if (narrow(m)) ps.push_back(parameter("embedding.widen.weight", {m.hidden, m.embedding_hidden}));
  return use_of(b, v, "position", std::move(ps));
}

/// Final norm; of a narrow table the product to its width; for BERT the pooler, which has
/// parameters but takes no part in this objective.
UnitUse final_use(Builder& b, const LayerStrategy& v) {
  const ModelSpec& m = b.model();
  Parameters ps;
  if (!m.post_norm) add_norm(ps, "final_norm", m, m.norm == model::NormKind::kLayerNorm);
  if (narrow(m)) ps.push_back(parameter("embedding.narrow.weight", {m.embedding_hidden, m.hidden}));
  if (m.pooler) {
    ps.push_back(parameter("pooler.weight", {m.hidden, m.hidden}));
    ps.push_back(parameter("pooler.bias", {m.hidden}, kZero));
    for (Parameter& p : std::span(ps).last(2)) p.uses = 0;
  }
  return use_of(b, v, "final", std::move(ps), "head");
}

bool has_final_unit(const ModelSpec& m) {
  return (!m.post_norm && (m.norm_gain || m.norm_bias)) || m.pooler || narrow(m);
}

/// Tokens of a sequence that have a target: an image has one class.
std::int64_t target_tokens(const Builder& b, const Layout& l) {
  return reads_images(b.model()) ? 1 : b.tokens(l);
}

BufferRef token_buffer(Builder& b, const char* name, const Layout& l, std::int64_t tokens) {
  return {b.buffer({.name = name + (" [" + l.tag()) + "]",
                    .category = BufferCategory::kData,
                    .dtype = kInt64,
                    .shape = {b.sequences(l), tokens},
                    .scope = Scope::kMicroBatch,
                    .unit = {}})};
}

SegmentShape vocabulary_shape(Builder& b, SegmentKind kind, const Layout& l) {
  SegmentShape s = b.shape(kind, l, b.model().embedding_width(), rows_of_rank(b.model(), l.tp));
  s.vocab = b.model().vocab;
  s.parts = l.tp;
  s.part_stride = l.tensor_stride();
  if (kind != kEmbedding) s.tokens = target_tokens(b, l);
  if (kind == kLossSum || kind == kLoss) s.causal = !predicts_masked(b);
  if (kind == kEmbedding) s.scale = b.model().embedding_scale;
  if (kind == kLogits) s.scale = b.model().logit_scale;
  if (kind == kLossMax || kind == kLossSum || kind == kLoss) s.cap = b.model().logit_cap;
  return s;
}

/// `to_encoder`: what the encoder of an encoder-decoder reads.
Op load(Builder& b, const std::string& name, SegmentKind kind, const Layout& l, BufferRef out,
        bool to_encoder = false) {
  SegmentShape s = b.shape(kind, l, 0, 0);
  s.dtype = b.decl(out).dtype;
  s.tokens = b.decl(out).elements() / s.sequences;
  s.part_stride = l.batch_stride();
  s.parts = l.dp;
  s.causal = !predicts_masked(b) && !to_encoder;
  if (b.has_companion()) s.kv_tokens = b.context().sequence;
  if (const ModelSpec& m = b.model(); reads_images(m)) {
    s.in = m.patch_features;
    s.vocab = m.vocab;
    s.kv_tokens = m.class_token ? 1 : 0;
  }
  b.share_tokens(s, l);
  Op op = compute(b, name, s, kF, {}, {out});
  op.stream = Stream::kHost;
  return op;
}

void keep_alive(Builder& b, LayerPair& pair, const BufferRefs& kept) {
  place_frees(b, pair, [&](const BufferRef& r) { return contains(kept, r); });
}

}  // namespace

bool shares_table(const Builder& b) { return b.model().tied_embeddings && b.context().stages == 1; }

UnitUses embedding_units(Builder& b, const LayerStrategy& v) {
  b.enter(0);
  if (reads_images(b.model())) return {patch_use(b, v)};
  UnitUse table = b.use(table_unit(b, v, false), "embedding");
  table.tied = b.model().tied_embeddings && !shares_table(b);
  UnitUses units{table};
  if (has_position_unit(b.model())) units.push_back(position_use(b, v));
  if (b.model().relative_buckets > 0) units.push_back(relative_use(b, v));
  return units;
}

UnitUses head_units(Builder& b, const LayerStrategy& v) {
  b.enter(b.program().spec.last_kind());
  const ModelSpec& m = b.model();
  UnitUse table =
      b.use(m.tied_embeddings ? table_unit(b, v, true)
                              : b.unit("lm_head", head_parameters(m, v.tp), v, Scope::kStep),
            "head");
  table.owned = !shares_table(b);
  table.tied = m.tied_embeddings && table.owned;
  UnitUses units{table};
  if (has_final_unit(m)) units.push_back(final_use(b, v));
  return units;
}

namespace {

/// y = norm(patches(pixels) + positions). The class token is a row of zero pixels; it and the
/// positions are added as rows.
LayerPair patch_embedding_pair(Builder& b, const LayerStrategy& v) {
  LayerPair pair;
  pair.units = embedding_units(b, v);
  const UnitUse use = pair.units.front();
  const ModelSpec& m = b.model();
  const Layout l(v);
  const std::int64_t h = m.hidden;
  const BufferRef pixels = b.tensor("pixels", l, m.patch_features), out = b.stream(l, 0);
  pair.forward.push_back(load(b, "load images", kLoadTokens, l, pixels));
  SegmentShape product = b.shape(kPatchProduct, l, m.patch_features, h);
  product.bias = true;
  const Views weights{b.view(use, {"patch.weight"}), b.view(use, {"patch.bias"})};
  const bool adds = m.position == model::PositionKind::kLearned || m.class_token;
  const BufferRef patches = adds || m.patch_norm ? b.tensor("patches", l, h) : out;
  BufferRef sum = patches;
  if (adds) sum = m.patch_norm ? b.tensor("patch sum", l, h) : out;
  pair.forward.push_back(
      with_weights(compute(b, "patches", product, kF, {pixels}, {patches}), use, weights));
  SegmentShape add = b.shape(kPositionAdd, l, h, m.max_positions);
  add.kv_tokens = m.class_token ? 1 : 0;
  Views rows;
  if (m.position == model::PositionKind::kLearned) rows.push_back(b.view(use, {"position.weight"}));
  if (m.class_token) rows.push_back(b.view(use, {"class.weight"}));
  if (adds)
    pair.forward.push_back(
        with_weights(compute(b, "position", add, kF, {patches}, {sum}), use, rows));
  BufferRef d = b.stream_gradient(l, 0);
  zero_parts(b, pair.units, pair.backward);
  if (m.patch_norm) {
    const NormPart norm(b, l, use, "embedding.norm", "embedding.norm", h);
    const BufferRef d_sum = b.tensor("d patches", l, h);
    pair.forward.push_back(norm.forward(sum, out));
    pair.backward.push_back(norm.backward(d, sum, d_sum));
    d = d_sum;
  }
  if (adds)
    pair.backward.push_back(with_gradient(compute(b, "position", add, kBG, {d}, {}), use, rows));
  pair.backward.push_back(
      with_gradient(compute(b, "patches", product, kG, {d, pixels}, {}), use, weights));
  keep_alive(b, pair, {out});
  return pair;
}

/// A look-up of tokens in the table, and behind it the sum over the tensor group.
/// `whose`: "" or "decoder ".
void look_up(Builder& b, const Layout& l, const std::string& whose, BufferRef ids, BufferRef to,
             LayerPair& pair) {
  const UnitUse& table = pair.units.front();
  const std::string name = whose + "embedding";
  const bool to_encoder = b.has_companion() && whose.empty();
  pair.forward.push_back(load(b, "load " + whose + "tokens", kLoadTokens, l, ids, to_encoder));
  pair.forward.push_back(
      with_weights(compute(b, name, vocabulary_shape(b, kEmbedding, l), kF, {ids}, {to}), table,
                   {b.view(table, {kTable})}));
  if (l.tp > 1) pair.forward.push_back(all_reduce(b, name, Stream::kTensor, b.tensor_group(l), to));
}
void look_up_backward(Builder& b, const Layout& l, const char* name, BufferRef d, BufferRef ids,
                      LayerPair& pair) {
  const UnitUse& table = pair.units.front();
  pair.backward.push_back(
      with_gradient(compute(b, name, vocabulary_shape(b, kEmbedding, l), kBG, {d, ids}, {}), table,
                    {b.view(table, {kTable})}));
}

/// Learned positions added to the embedding `e`, and the norm of models that have one behind them;
/// returns the gradient of `e`.
BufferRef positions(Builder& b, const Layout& l, BufferRef e, LayerPair& pair) {
  const ModelSpec& m = b.model();
  const BufferRef out = b.stream(l, 0), d = b.stream_gradient(l, 0);
  const UnitUse position = pair.units.back();
  const bool learned = m.position == model::PositionKind::kLearned, normed = m.embedding_norm;
  Views views;
  if (learned) views.push_back(b.view(position, {"position.weight"}));
  if (m.type_vocab > 0) views.push_back(b.view(position, {"type.weight"}));
  BufferRef sum = e;
  if (learned) sum = normed ? b.tensor("e sum", l, m.hidden) : out;
  SegmentShape add = b.shape(kPositionAdd, l, m.hidden, m.max_positions);
  b.share_tokens(add, l);
  if (learned)
    pair.forward.push_back(
        with_weights(compute(b, "position", add, kF, {e}, {sum}), position, views));
  BufferRef gradient = d;
  if (normed) {
    const NormPart norm(b, l, position, "embedding norm", "embedding.norm", m.hidden);
    gradient = b.tensor("de", l, m.hidden);
    pair.forward.push_back(norm.forward(sum, out));
    pair.backward.push_back(norm.backward(d, sum, gradient));
  }
  if (learned)
    pair.backward.push_back(
        with_gradient(compute(b, "position", add, kBG, {gradient}, {}), position, views));
  return gradient;
}

}  // namespace

LayerPair embedding_pair(Builder& b, const LayerStrategy& v) {
  b.enter(0);
  if (reads_images(b.model())) return patch_embedding_pair(b, v);
  const Layout l(v);
  LayerPair pair;
  pair.units = embedding_units(b, v);
  const BufferRef ids = token_buffer(b, "ids", l, b.tokens(l)), out = b.stream(l, 0),
                  d = b.stream_gradient(l, 0);
  const ModelSpec& m = b.model();
  const bool adds = m.position == model::PositionKind::kLearned || m.embedding_norm;
  const BufferRef e = adds ? b.tensor("e", l, m.hidden) : out;
  const BufferRef row = narrow(m) ? b.tensor("e narrow", l, m.embedding_hidden) : e;
  BufferRefs kept{out};
  look_up(b, l, "", ids, row, pair);
  if (narrow(m)) pair.forward.push_back(width_product(b, l, pair.units.back(), true, kF, {row}, e));
  if (b.has_companion()) {
    const BufferRef decoder_ids = token_buffer(b, "decoder ids", l, b.tokens(l));
    kept.push_back(b.companion(l, false, 0));
    look_up(b, l, "decoder ", decoder_ids, kept.back(), pair);
    look_up_backward(b, l, "decoder embedding", b.companion_gradient(l, false, 0), decoder_ids,
                     pair);
  }
  BufferRef d_row = adds ? positions(b, l, e, pair) : d;
  if (narrow(m)) {
    const BufferRef d_e = std::exchange(d_row, b.tensor("d e narrow", l, m.embedding_hidden));
    pair.backward.push_back(width_product(b, l, pair.units.back(), true, kBG, {d_e, row}, d_row));
  }
  look_up_backward(b, l, "embedding", d_row, ids, pair);
  if (m.frozen()) {
    SegmentShape end = vocabulary_shape(b, kEmbedding, l);
    end.in = m.hidden;  // the stream's, also of a narrow table
    pair.backward = {compute(b, "end of gradients", end, kB, {d}, {})};
  }
  zero_parts(b, pair.units, pair.backward);
  keep_alive(b, pair, kept);
  return pair;
}

BufferRef loss_buffer(Builder& b) {
  return {b.buffer({.name = "loss",
                    .category = BufferCategory::kData,
                    .shape = {1},
                    .scope = Scope::kStep,
                    .persistent = true,
                    .unit = {}})};
}

namespace {

/// Loss of a vocabulary split over tp: log Σ_j exp(x_j - m) - (x_target - m), m the row maximum;
/// maximum and sums are reduced over the tensor group between the three segments (Megatron-LM's
/// vocabulary-parallel cross-entropy).
void loss_ops(Builder& b, const Layout& l, BufferRef logits, Ops& f) {
  const std::int64_t t = b.sequences(l) * target_tokens(b, l);
  const BufferRef targets = token_buffer(b, "targets", l, target_tokens(b, l)),
                  max = b.local("loss max", l, {t}, kFloat32);
  const BufferRef stat = b.local("loss stat", l, {2, t}, kFloat32);
  const BufferRef loss = loss_buffer(b);
  const GroupId tensor = b.tensor_group(l);
  f.push_back(load(b, "load targets", kLoadTargets, l, targets));
  f.push_back(compute(b, "loss max", vocabulary_shape(b, kLossMax, l), kF, {logits}, {max}));
  if (l.tp > 1) {
    f.push_back(all_reduce(b, "loss max", Stream::kTensor, tensor, max));
    f.back().reduce = Reduce::kMax;
  }
  f.push_back(
      compute(b, "loss sum", vocabulary_shape(b, kLossSum, l), kF, {logits, max, targets}, {stat}));
  if (l.tp > 1) f.push_back(all_reduce(b, "loss sum", Stream::kTensor, tensor, stat));
  const SegmentShape s = vocabulary_shape(b, kLoss, l);
  f.push_back(compute(b, "loss", s, kF, {stat}, {}, {loss}));
  f.push_back(compute(b, "loss", s, kB, {max, stat, targets}, {}, {logits}));
}

/// Forward and backward follow at once: gathered once.
UnitUse gathered_once(UnitUse use) {
  use.weights_backward = use.weights_forward;
  return use;
}

}  // namespace

LayerPair head_pair(Builder& b, const LayerStrategy& v) {
  LayerPair pair;
  pair.units = head_units(b, v);
  const ModelSpec& m = b.model();
  const Layout l(v);
  const bool pools = reads_images(m);  // to one token: the class token, or the mean
  const std::int64_t bs = b.sequences(l), h = m.hidden;
  const UnitUse table = gathered_once(pair.units.front());

  Ops& f = pair.forward;
  zero_parts(b, pair.units, f);
  const BufferRef x = b.stream(l, 0), dx = b.stream_gradient(l, 0);
  std::optional<NormPart> norm;
  if (!m.post_norm)
    norm.emplace(b, l, gathered_once(pair.units.back()), "final norm", "final_norm", h);
  const BufferRef a = norm ? b.tensor("final a", l, h) : x;
  const BufferRef da = norm ? b.tensor("final da", l, h) : dx;
  if (norm) f.push_back(norm->forward(x, a));
  // what the logits read: one token of an image, or the width of the table
  const auto read = [&](const char* name, BufferRef all) {
    if (pools) return b.local(name, l, {bs, 1, h}, b.dtype());
    return narrow(m) ? b.tensor(name, l, m.embedding_hidden) : all;
  };
  const BufferRef pooled = read(pools ? "pooled" : "final narrow", a),
                  d_pooled = read(pools ? "d pooled" : "d final narrow", da);
  SegmentShape pool = b.shape(kPool, l, h, h);
  pool.kv_tokens = m.class_token ? 1 : b.tokens(l);
  if (pools) f.push_back(compute(b, "pool", pool, kF, {a}, {pooled}));
  const UnitUse last = gathered_once(pair.units.back());
  if (narrow(m)) f.push_back(width_product(b, l, last, false, kF, {a}, pooled));
  SegmentShape product = vocabulary_shape(b, kLogits, l);
  product.bias = pools || m.head_bias;
  const BufferRef logits = b.local("logits", l, {bs, target_tokens(b, l), product.out}, b.dtype());
  Views view{b.view(table, {m.tied_embeddings ? kTable : "lm_head.weight"})};
  if (product.bias) view.push_back(b.view(table, {"lm_head.bias"}));
  f.push_back(with_weights(compute(b, "logits", product, kF, {pooled}, {logits}), table, view));
  loss_ops(b, l, logits, f);
  f.push_back(
      with_weights(compute(b, "logits", product, kBG, {logits, pooled}, {d_pooled}), table, view));
  if (l.tp > 1) f.push_back(all_reduce(b, "da", Stream::kTensor, b.tensor_group(l), d_pooled));
  if (pools) f.push_back(compute(b, "pool", pool, kB, {d_pooled}, {da}));
  if (narrow(m)) f.push_back(width_product(b, l, last, false, kBG, {d_pooled, a}, da));
  if (norm) f.push_back(norm->backward(da, x, dx));
  freeze(b, f);
  keep_alive(b, pair, {dx});
  return pair;
}

}  // namespace orrery::plan

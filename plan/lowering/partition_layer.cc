/// \file
/// A partitioned layer, from the stream of one to the stream of the next.

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/lowering/partition_parts.h"

namespace orrery::plan {
namespace {

using enum Dimension;

/// Of a block, those with these ends of their names, in this order.
Parameters parameters_of(const ModelSpec& m, const std::vector<const char*>& names) {
  const Parameters all = block_parameters(m, 1);
  Parameters some;
  for (const char* name : names) {
    const auto at =
        std::ranges::find_if(all, [&](const Parameter& p) { return p.name.ends_with(name); });
    if (at != all.end()) some.push_back(*at);  // what the model has not, it does not have
  }
  return some;
}

/// Names as in plan/lowering/lower_block.cc, pre-norm:
///
///   a = norm1(x);  p = proj(values(softmax(scores(qkv(a)))));  y = x + p;  c = norm2(y);
///   x' = y + out(act(in(c)))
///
/// x, a and x' lie as the layer's stream does, y and c as the middle one.
class PartitionedLayer {
 public:
  PartitionedLayer(Builder& b, const LayerRun& run) : PartitionedLayer(b, run, run.partition) {}

  LayerPair build() {
    const Layout l(run_);
    x_ = stream_at(b_.stream(l, 0));
    x_next_ = stream_at(b_.stream(l, 1));
    dx_ = stream_at(b_.stream_gradient(l, 0));
    dx_next_ = stream_at(b_.stream_gradient(l, 1));
    forward();
    backward();
    UnitUses units;
    for (const PartitionedProduct* p : {&qkv_, &projection_, &mlp_in_, &mlp_out_})
      units.push_back(p->use());
    for (const PartitionedVectors* v : vectors())
      if (!v->empty()) units.push_back(v->use());
    if (run_.strategy.recompute == Recompute::kFull)
      insert_replays(
          f_, r_, [](const Op&) { return true; },
          [&](const BufferRef& w) { return backward_weights(units, w); });
    zero_parts(b_, units, r_);
    LayerPair pair{std::move(f_), std::move(r_), std::move(units)};
    place_frees(b_, pair,
                [&](const BufferRef& r) { return r == x_next_.buffer || r == dx_.buffer; });
    return pair;
  }

 private:
  PartitionedLayer(Builder& b, const LayerRun& run, const LayerPartition& partition)
      : b_(b),
        m_(b.model()),
        run_(run),
        grid_(b, Partition(partition.front()).bits(), run.strategy),
        stream_(partition[kStreamIn]),
        middle_(partition[kStreamMiddle]),
        activation_(partition[kActivationOf]),
        attention_(grid_, partition),
        qkv_(grid_,
             {"qkv", kQkv, m_.hidden, m_.qkv_features(),
              parameters_of(m_, {"attn.q.weight", "attn.k.weight", "attn.v.weight"})},
             partition[kQkvProduct]),
        projection_(grid_,
                    {"projection", kProjection, m_.heads * m_.head_dim, m_.hidden,
                     parameters_of(m_, {"attn.proj.weight"})},
                    partition[kOutProjection]),
        mlp_in_(grid_,
                {"mlp_in", kMlpIn, m_.hidden, m_.mlp_in_features(),
                 parameters_of(m_, {"mlp.gate.weight", "mlp.in.weight"})},
                partition[kMlpInProduct]),
        mlp_out_(grid_,
                 {"mlp_out", kMlpOut, m_.ffn, m_.hidden, parameters_of(m_, {"mlp.out.weight"})},
                 partition[kMlpOutProduct]),
        stream_vectors_(grid_, "stream",
                        parameters_of(m_, {"norm1.weight", "norm1.bias", "mlp.out.bias"}), stream_),
        middle_vectors_(grid_, "middle stream",
                        parameters_of(m_, {"norm2.weight", "norm2.bias", "attn.proj.bias"}),
                        middle_),
        qkv_bias_(grid_, "qkv bias",
                  parameters_of(m_, {"attn.q.bias", "attn.k.bias", "attn.v.bias"}),
                  qkv_.partition()),
        mlp_bias_(grid_, "mlp bias", parameters_of(m_, {"mlp.gate.bias", "mlp.in.bias"}),
                  mlp_in_.partition()),
        norm1_(grid_, "norm1", stream_, stream_vectors_),
        norm2_(grid_, "norm2", middle_, middle_vectors_) {}

  std::array<PartitionedVectors*, 4> vectors() {
    return {&stream_vectors_, &middle_vectors_, &qkv_bias_, &mlp_bias_};
  }
  static Layout64 layout_of_stream(const Partition& p) {
    return DeviceGrid::layout3(p, {kBatch, kTokens, kOut}, kF, 0);
  }
  PlacedTensor stream_at(BufferRef buffer) const {
    return {buffer, layout_of_stream(stream_), grid_.features(m_.hidden)};
  }
  /// Gate and up are cut each by itself.
  Extents mlp_sections() const { return m_.gated_mlp ? Extents{m_.ffn, m_.ffn} : Extents{m_.ffn}; }
  std::string middle_tag() const { return "middle stream " + to_string(middle_.sequence()); }
  std::string stream_tag() const { return "stream " + to_string(stream_.sequence()); }
  std::string activation_tag() const { return "activation " + to_string(activation_.sequence()); }

  /// Forward of a product, up to sums over id bits.
  PlacedTensor run(PartitionedProduct& product, const PlacedTensor& from, const std::string& name,
                   const std::string& to) {
    const PlacedTensor in = grid_.redistributed(name, from, product.input(), product.tag(), f_);
    return product.forward(in, to, f_);
  }
  PlacedTensor completed(PartitionedProduct& product, const PlacedTensor& sum,
                         const std::string& name, const Layout64& wanted, const std::string& of,
                         const Extents& sections = {}) {
    return grid_.completed(name, sum, product.output_sum(), wanted, of, f_, sections);
  }
  /// Backward of a product, whose output's gradient lies as it is wanted, to where its input's is.
  PlacedTensor run_back(PartitionedProduct& product, const PlacedTensor& d, const std::string& to,
                        const Layout64& wanted, const std::string& of) {
    const PlacedTensor sum = product.backward(d, to, r_);
    const PlacedTensor dx = grid_.completed(to, sum, product.gradient_sum(), wanted, of, r_);
    product.weight_gradient(r_);
    return dx;
  }
  PlacedTensor wanted_by(const PartitionedProduct& product, const PlacedTensor& d,
                         const std::string& name, const Extents& sections = {}) {
    return grid_.redistributed(name, d, product.output(), product.tag(), r_, sections);
  }

  // ---- biases ----
  SegmentShape bias_shape(const Partition& p, std::int64_t features) const {
    const std::int64_t local = features / p.slices(kOut);
    return grid_.shape(kBias, p, local, local);
  }
  void add_bias(const char* name, const PartitionedVectors& bias, const PartitionedProduct& product,
                const PlacedTensor& u) {
    if (bias.empty()) return;
    f_.push_back(bias.used(compute(b_, name, bias_shape(product.partition(), u.extents.back()), kF,
                                   {}, {}, {u.buffer})));
  }
  void bias_gradient(const char* name, const PartitionedVectors& bias,
                     const PartitionedProduct& product, const PlacedTensor& d) {
    if (bias.empty()) return;
    r_.push_back(bias.used(
        compute(b_, name, bias_shape(product.partition(), d.extents.back()), kG, {d.buffer}, {})));
  }
  Op residual(bool attention, const Partition& p, const PartitionedVectors& vectors, Phase phase,
              BufferRefs reads, BufferRefs writes) {
    const std::int64_t local = m_.hidden / p.slices(kOut);
    SegmentShape s = grid_.shape(kResidual, p, local, local);
    s.bias = attention ? m_.projection_bias : m_.mlp_bias;
    Op op = compute(b_, attention ? "residual1" : "residual2", s, phase, std::move(reads),
                    std::move(writes));
    if (!s.bias) return op;
    op = vectors.used(std::move(op), {attention ? "attn.proj.bias" : "mlp.out.bias"});
    if (phase != kF) op.weights.reset();
    return op;
  }
  SegmentShape activation_shape() const {
    const int parts = activation_.slices(kOut);
    return grid_.shape(kActivation, activation_, m_.mlp_in_features() / parts, m_.ffn / parts);
  }

  void forward() {
    for (PartitionedVectors* v : vectors()) v->begin(kF, f_);
    const PlacedTensor a = norm1_.forward(x_, "a", f_);
    const PlacedTensor qkv = run(qkv_, a, "a", "qkv");
    grid_.reduced("qkv", qkv.buffer, qkv_.output_sum(), f_);
    add_bias("qkv bias", qkv_bias_, qkv_, qkv);
    const PlacedTensor o = attention_.forward(qkv, f_);
    const Layout64 middle = layout_of_stream(middle_);
    const PlacedTensor p =
        completed(projection_, run(projection_, o, "o", "p"), "p", middle, middle_tag());
    const PlacedTensor x = grid_.redistributed("x", x_, middle, middle_tag(), f_);
    y_ = grid_.tensor("y", middle_tag(), middle, x.extents);
    f_.push_back(residual(true, middle_, middle_vectors_, kF, {x.buffer, p.buffer}, {y_.buffer}));
    const PlacedTensor c = norm2_.forward(y_, "c", f_);
    mlp_forward(c);
  }
  void mlp_forward(const PlacedTensor& c) {
    const PlacedTensor u = run(mlp_in_, c, "c", "u");
    const Layout64 wanted = layout_of_stream(activation_);
    if (mlp_bias_.empty()) {
      u_ = completed(mlp_in_, u, "u", wanted, activation_tag(), mlp_sections());
    } else {
      grid_.reduced("u", u.buffer, mlp_in_.output_sum(), f_);
      add_bias("mlp bias", mlp_bias_, mlp_in_, u);
      u_ = grid_.redistributed("u", u, wanted, activation_tag(), f_, mlp_sections());
    }
    const PlacedTensor g = grid_.tensor("g", activation_tag(), u_.layout, grid_.features(m_.ffn));
    f_.push_back(compute(b_, "activation", activation_shape(), kF, {u_.buffer}, {g.buffer}));
    const PlacedTensor q =
        completed(mlp_out_, run(mlp_out_, g, "g", "q"), "q", x_.layout, stream_tag());
    const PlacedTensor y = grid_.redistributed("y", y_, x_.layout, stream_tag(), f_);
    f_.push_back(
        residual(false, stream_, stream_vectors_, kF, {y.buffer, q.buffer}, {x_next_.buffer}));
  }

  void backward() {
    for (PartitionedVectors* v : vectors()) v->begin(kBG, r_);
    const PlacedTensor dc = mlp_backward();
    const PlacedTensor dx = grid_.redistributed("dx", dx_next_, y_.layout, middle_tag(), r_);
    const PlacedTensor dy = grid_.tensor("dy", middle_tag(), y_.layout, y_.extents);
    norm2_.backward(dc, dx, dy.buffer, r_);
    if (m_.projection_bias)
      r_.push_back(residual(true, middle_, middle_vectors_, kBG, {dy.buffer}, {}));
    const PlacedTensor d_o = run_back(projection_, wanted_by(projection_, dy, "dp"), "do",
                                      attention_.output(), attention_.output_tag());
    const PlacedTensor dqkv = attention_.backward(d_o, qkv_.output(), qkv_.tag(), r_);
    bias_gradient("qkv bias", qkv_bias_, qkv_, dqkv);
    const PlacedTensor da = run_back(qkv_, dqkv, "da", x_.layout, stream_tag());
    const PlacedTensor dy_read = grid_.redistributed("dy", dy, x_.layout, stream_tag(), r_);
    norm1_.backward(da, dy_read, dx_.buffer, r_);
    for (PartitionedVectors* v : vectors()) v->end_backward(r_);
  }
  PlacedTensor mlp_backward() {
    if (m_.mlp_bias)
      r_.push_back(residual(false, stream_, stream_vectors_, kBG, {dx_next_.buffer}, {}));
    const PlacedTensor dg =
        run_back(mlp_out_, wanted_by(mlp_out_, dx_next_, "dq"), "dg", u_.layout, activation_tag());
    const PlacedTensor du = grid_.tensor("du", activation_tag(), u_.layout, u_.extents);
    r_.push_back(
        compute(b_, "activation", activation_shape(), kB, {dg.buffer, u_.buffer}, {du.buffer}));
    const PlacedTensor d = wanted_by(mlp_in_, du, "du", mlp_sections());
    bias_gradient("mlp bias", mlp_bias_, mlp_in_, d);
    return run_back(mlp_in_, d, "dc", y_.layout, middle_tag());
  }

  Builder& b_;
  const ModelSpec& m_;
  const LayerRun& run_;
  DeviceGrid grid_;
  Partition stream_, middle_, activation_;
  PartitionedAttention attention_;
  PartitionedProduct qkv_, projection_, mlp_in_, mlp_out_;
  PartitionedVectors stream_vectors_, middle_vectors_, qkv_bias_, mlp_bias_;
  PartitionedNorm norm1_, norm2_;
  PlacedTensor x_, x_next_, dx_, dx_next_, y_, u_;
  Ops f_, r_;
};

}  // namespace

std::string partition_tag(const LayerRun& run) {
  std::string tag = "partition";
  for (const Sequence& s : run.partition) tag += " " + to_string(s);
  return tag + sharding_tag(run.strategy) +
         (run.strategy.recompute == Recompute::kNone ? "" : " recomputed");
}

LayerPair partition_pair(Builder& b, const LayerRun& run) {
  return PartitionedLayer(b, run).build();
}

Op redistributed_stream(Builder& b, const char* name, const Layout& from, const Layout& to,
                        BufferRef in, BufferRef out) {
  const Partition held(from.sequence()), wanted(to.sequence());
  const DeviceGrid grid(b, held.bits());
  const auto layout = [](const Partition& p) {
    return DeviceGrid::layout3(p, {kBatch, kTokens, kOut}, kF, 0);
  };
  const std::int64_t hidden = b.model().hidden;
  return grid.redistribution(name,
                             {{.held = layout(held),
                               .wanted = layout(wanted),
                               .extents = grid.features(hidden),
                               .held_row = hidden / held.slices(kOut),
                               .wanted_row = hidden / wanted.slices(kOut)}},
                             {in}, {out});
}

}  // namespace orrery::plan

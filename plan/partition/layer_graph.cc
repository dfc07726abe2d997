#include "plan/partition/layer_graph.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::plan {
namespace {

using enum Dimension;

/// How often an extent halves.
int halvings(std::int64_t extent) {
  return std::min(std::countr_zero(static_cast<std::uint64_t>(extent)), kMostBits);
}

std::vector<Connection> connections_of(const model::ModelSpec& m, std::int64_t sequences,
                                       std::int64_t tokens) {
  const std::int64_t hidden = m.hidden, q = m.heads * m.head_dim, mlp_in = m.mlp_in_features();
  const std::int64_t t = sequences * tokens, pairs = t * tokens * m.heads,
                     keys = t * m.kv_heads * m.head_dim;
  using Dimensions = std::vector<Dimension>;
  const Dimensions out{kBatch, kTokens, kOut}, in{kBatch, kTokens, kIn};
  const Dimensions by_head{kBatch, kTokens, kHeads}, keys_by_head{kBatch, kKeys, kHeads};
  const Dimensions scores{kBatch, kTokens, kHeads, kKeys};
  return {{kStreamIn, kQkvProduct, t * hidden, out, in},
          {kQkvProduct, kScoreProduct, t * q, out, by_head},
          {kQkvProduct, kScoreProduct, keys, out, keys_by_head},
          {kScoreProduct, kSoftmaxOf, pairs, scores, scores},
          {kQkvProduct, kValueProduct, keys, out, keys_by_head},
          {kSoftmaxOf, kValueProduct, pairs, scores, scores},
          {kValueProduct, kOutProjection, t * q, by_head, in},
          {kOutProjection, kStreamMiddle, t * hidden, out, out},
          {kStreamIn, kStreamMiddle, t * hidden, out, out},
          {kStreamMiddle, kMlpInProduct, t * hidden, out, in},
          {kMlpInProduct, kActivationOf, t * mlp_in, out, out},
          {kActivationOf, kMlpOutProduct, t * m.ffn, out, in},
          {kMlpOutProduct, kStreamOut, t * hidden, out, out},
          {kStreamMiddle, kStreamOut, t * hidden, out, out}};
}

}  // namespace

bool has_layer_graph(const model::ModelSpec& model) {
  return model.kinds() == 1 && model.experts == 0 && !model.cross_attention && model.window == 0 &&
         model.plain_attention();
}

LayerGraph layer_graph(const model::ModelSpec& m, std::int64_t sequences, std::int64_t tokens,
                       int skews) {
  ORRERY_CHECK(has_layer_graph(m), "layers of {}", m.name);
  LayerGraph g{.sequences = sequences, .tokens = tokens, .operators = {}, .connections = {}};
  const int b = halvings(sequences), s = halvings(tokens), heads = halvings(m.kv_heads);
  const auto stream = [&](std::string_view name) {
    return Operator{name,
                    OperatorKind::kStream,
                    m.hidden,
                    m.hidden,
                    {.dimensions = {kBatch, kTokens, kOut, kReplicas},
                     .limits = {b, s, halvings(m.hidden), kMostBits},
                     .primitives = skews > 0,
                     .skews = skews,
                     .least_skew = 1}};
  };
  const auto linear = [&](std::string_view name, std::int64_t in, std::int64_t out, int out_bits,
                          model::SegmentKind segment) {
    return Operator{name,
                    OperatorKind::kLinear,
                    in,
                    out,
                    {.dimensions = {kBatch, kTokens, kIn, kOut},
                     .limits = {b, s, halvings(in), out_bits},
                     .primitives = true,
                     .skews = skews},
                    segment};
  };
  const auto attention = [&](std::string_view name, OperatorKind kind) {
    SequenceSpace space{{kBatch, kTokens, kHeads}, {b, s, heads}};
    if (kind != OperatorKind::kSoftmax) {
      space.dimensions.push_back(kKeys);
      space.limits.push_back(s);
    }
    return Operator{name, kind, 0, 0, std::move(space)};
  };
  const std::int64_t hidden = m.hidden, q = m.heads * m.head_dim, mlp_in = m.mlp_in_features();
  g.operators = {stream("stream"),
                 linear("qkv", hidden, m.qkv_features(), heads, model::SegmentKind::kQkv),
                 attention("scores", OperatorKind::kScores),
                 attention("softmax", OperatorKind::kSoftmax),
                 attention("values", OperatorKind::kValues),
                 linear("projection", q, hidden, halvings(hidden), model::SegmentKind::kProjection),
                 stream("stream"),
                 linear("mlp in", hidden, mlp_in, halvings(m.ffn), model::SegmentKind::kMlpIn),
                 Operator{"activation",
                          OperatorKind::kActivation,
                          mlp_in,
                          m.ffn,
                          {.dimensions = {kBatch, kTokens, kOut},
                           .limits = {b, s, halvings(m.ffn)},
                           .primitives = skews > 0,
                           .skews = skews,
                           .least_skew = 1}},
                 linear("mlp out", m.ffn, hidden, halvings(hidden), model::SegmentKind::kMlpOut),
                 stream("stream")};
  g.connections = connections_of(m, sequences, tokens);
  return g;
}

}  // namespace orrery::plan

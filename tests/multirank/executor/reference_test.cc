// What one process trains is what the model's formulas say: loss and gradients against the same
// model written with LibTorch's own operations, in fp64 and with its autograd.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "executor/runtime/interpreter.h"
#include "executor/state/data.h"
#include "reference_fixture.h"
#include "tests/support/scan_reference.h"
#include "tests/support/small_kinds.h"

namespace orrery::executor::testing {
namespace {

using model::ModelSpec;

/// x + the attention of T5 of norm(x) over `over` (undefined: over norm(x) itself).
at::Tensor attention_of_t5(const ModelSpec& m, const Named& p, const std::string& name,
                           const std::string& norm, const at::Tensor& x, at::Tensor over,
                           bool causal) {
  const at::Tensor a = rms_norm(m, p, norm, x);
  if (!over.defined()) over = a;
  const auto projected = [&](const char* which, const at::Tensor& from) {
    return heads(m, at::linear(from, p.at(name + which)));
  };
  const at::Tensor q = projected(".q.weight", a), k = projected(".k.weight", over),
                   v = projected(".v.weight", over);
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2));
  if (causal) scores = scores.masked_fill(at::ones_like(scores).triu(1).to(at::kBool), -INFINITY);
  const at::Tensor o = at::matmul(at::softmax(scores, -1), v).transpose(1, 2).flatten(2);
  return x + at::linear(o, p.at(name + ".proj.weight"));
}

/// Ids of the looked-at step: what the encoder reads, the decoder reads, and the targets, as
/// `first` says: of a text of 2 s + 1 tokens the place of the first.
at::Tensor text_of_step(const ModelSpec& m, std::int64_t first) {
  const std::int64_t s = m.max_positions;
  const TokenData data = TokenData::open("", m.vocab, 2 * s).value();
  std::vector<std::int64_t> ids(as_index(kSequences * 2 * s));
  const Batch batch{.seed = kSeed,
                    .step = kStep,
                    .global_batch = kSequences,
                    .sequences = kSequences,
                    .tokens = 2 * s};
  const auto read =
      data.read(batch, first > s ? TokenData::What::kTargets : TokenData::What::kTokens, ids);
  ORRERY_CHECK(read.has_value());
  return at::tensor(ids).view({kSequences, 2 * s}).narrow(1, first > s ? s : first, s);
}

at::Tensor t5_loss(const ModelSpec& m, const Named& p) {
  const at::Tensor table = p.at("embedding.token.weight");
  at::Tensor x = at::embedding(table, text_of_step(m, 0)), encoded;
  for (std::int64_t l = 0; l < m.layers; ++l) {
    const std::string block = "blocks." + std::to_string(l) + ".";
    const ModelSpec kind = m.of_kind(m.kind_of(l));
    if (kind.entry == model::BlockEntry::kEncoderEnd) {
      encoded = rms_norm(m, p, block + "encoder_norm", x);
      x = at::embedding(table, text_of_step(m, m.max_positions));
    }
    x = attention_of_t5(m, p, block + "attn", block + "norm1", x, {}, kind.causal);
    if (kind.cross_attention)
      x = attention_of_t5(m, p, block + "cross", block + "cross.norm", x, encoded, false);
    const at::Tensor u =
        at::linear(rms_norm(m, p, block + "norm2", x), p.at(block + "mlp.in.weight"));
    x = x + at::linear(u.relu(), p.at(block + "mlp.out.weight"));
  }
  const at::Tensor a = rms_norm(m, p, "final_norm", x) * m.logit_scale;
  const at::Tensor logits = at::linear(a, table).narrow(-1, 0, m.vocab);
  return at::cross_entropy_loss(logits.flatten(0, 1),
                                text_of_step(m, m.max_positions + 1).flatten());
}

TEST(Reference, T5IsItsFormulas) {
  ModelSpec m = tests::small_t5();
  expect_reference(m, t5_loss);
  m.logit_scale = 0.125;  // 64^-1/2: as one that shares the embedding is read from a file
  expect_reference(m, t5_loss);
}

/// What the scan of a block makes of a.
at::Tensor scanned(const ModelSpec& m, const Named& p, const std::string& block, std::int64_t layer,
                   const at::Tensor& a) {
  model::SegmentShape s;
  s.sequences = a.size(0);
  s.tokens = a.size(1);
  s.heads = m.scan.heads;
  s.head_dim = m.scan.head_dim;
  s.kv_heads = m.scan.groups;
  s.state = m.scan.state;
  s.kernel = m.scan.kernel;
  s.in = m.qkv_features();
  s.out = m.mixed_features();
  s.delta = m.mixer == model::Mixer::kDeltaNet;
  s.epsilon = m.norm_epsilon;
  const auto joined = [&](const std::vector<const char*>& names) {
    std::vector<at::Tensor> parts;
    for (const char* name : names) parts.push_back(p.at(block + "attn." + name).flatten());
    return at::cat(parts);
  };
  std::vector<at::Tensor> weights;
  if (s.kernel > 0) weights.push_back(joined({"taps.x.weight", "taps.b.weight", "taps.c.weight"}));
  if (m.mixer == model::Mixer::kMamba2)
    weights.push_back(joined({"taps.x.bias", "taps.b.bias", "taps.c.bias", "decay", "skip",
                              "steps.bias", "gain.weight"}));
  if (s.delta) weights.push_back(joined({"decay", "steps.bias"}));
  if (m.mixer != model::Mixer::kMamba2) weights.push_back(joined({"gain.weight"}));
  std::vector<at::Tensor> u;
  for (const char* part : {"z", "x", "b", "c", "steps"})
    if (part[0] != 's' || s.kernel > 0)
      u.push_back(at::linear(a, p.at(block + "attn." + part + ".weight")));
  return tests::ScanReference(s, at::cat(u, 2), weights, layer, m.layers).output();
}

/// Of the looked-at step, of a decoder.
at::Tensor text(const ModelSpec& m, TokenData::What what) {
  const std::int64_t tokens = m.max_positions;
  std::vector<std::int64_t> ids(as_index(kSequences * tokens));
  const Batch batch{.seed = kSeed,
                    .step = kStep,
                    .global_batch = kSequences,
                    .sequences = kSequences,
                    .tokens = tokens};
  ORRERY_CHECK(TokenData::open("", m.vocab, tokens).value().read(batch, what, ids).has_value());
  return at::tensor(ids).view({kSequences, tokens});
}

at::Tensor text_loss(const ModelSpec& m, const at::Tensor& logits) {
  return at::cross_entropy_loss(logits.narrow(-1, 0, m.vocab).flatten(0, 1),
                                text(m, TokenData::What::kTargets).flatten());
}

/// What the output projection of a block of that number and name reads, of its normed input.
using Mixed = std::function<at::Tensor(std::int64_t, const std::string&, const at::Tensor&)>;

/// What its MLP makes of its normed input.
using Mlp = std::function<at::Tensor(const std::string&, const at::Tensor&)>;

/// The MLP with parameters behind that name.
at::Tensor gated_mlp(const Named& p, const std::string& name, const at::Tensor& a) {
  const at::Tensor gate = at::linear(a, p.at(name + "gate.weight")),
                   up = at::linear(a, p.at(name + "in.weight"));
  return at::linear(at::silu(gate) * up, p.at(name + "out.weight"));
}

/// x + proj(mixed(norm1(x))), then, where there is an MLP, x + mlp(norm2(x)).
at::Tensor decoder_loss(const ModelSpec& m, const Named& p, const Mixed& mixed, const Mlp& mlp) {
  const at::Tensor table = p.at("embedding.token.weight");
  at::Tensor x = at::embedding(table, text(m, TokenData::What::kTokens));
  for (std::int64_t l = 0; l < m.layers; ++l) {
    const std::string block = "blocks." + std::to_string(l) + ".";
    const at::Tensor o = mixed(l, block, rms_norm(m, p, block + "norm1", x));
    x = x + at::linear(o, p.at(block + "attn.proj.weight"));
    if (!m.has_mlp()) continue;
    x = x + mlp(block, rms_norm(m, p, block + "norm2", x));
  }
  const at::Tensor& head = m.tied_embeddings ? table : p.at("lm_head.weight");
  return text_loss(m, at::linear(rms_norm(m, p, "final_norm", x), head));
}

at::Tensor decoder_loss(const ModelSpec& m, const Named& p, const Mixed& mixed) {
  return decoder_loss(m, p, mixed, [&](const std::string& block, const at::Tensor& a) {
    return gated_mlp(p, block + "mlp.", a);
  });
}

at::Tensor scan_loss(const ModelSpec& m, const Named& p) {
  return decoder_loss(m, p, [&](std::int64_t l, const std::string& block, const at::Tensor& a) {
    return scanned(m, p, block, l, a);
  });
}

/// norm1(x + attention(x)), then norm2(x + mlp(x)), between the products of a narrow table.
at::Tensor opt_loss(const ModelSpec& m, const Named& p) {
  const at::Tensor table = p.at("embedding.token.weight");
  at::Tensor x = at::linear(at::embedding(table, text(m, TokenData::What::kTokens)),
                            p.at("embedding.widen.weight")) +
                 p.at("embedding.position.weight");
  for (std::int64_t l = 0; l < m.layers; ++l) {
    const std::string block = "blocks." + std::to_string(l) + ".";
    const auto projected = [&](const char* which) {
      return heads(m, product(p, block + which, x));
    };
    at::Tensor scores = at::matmul(projected("attn.q"), projected("attn.k").transpose(-1, -2)) /
                        std::sqrt(real(m.head_dim));
    scores = scores.masked_fill(at::ones_like(scores).triu(1).to(at::kBool), -INFINITY);
    const at::Tensor o =
        at::matmul(at::softmax(scores, -1), projected("attn.v")).transpose(1, 2).flatten(2);
    x = layer_norm(m, p, block + "norm1", x + product(p, block + "attn.proj", o));
    const at::Tensor g = product(p, block + "mlp.in", x).relu();
    x = layer_norm(m, p, block + "norm2", x + product(p, block + "mlp.out", g));
  }
  return text_loss(m, at::linear(at::linear(x, p.at("embedding.narrow.weight")), table));
}

TEST(Reference, OptWithANarrowTableIsItsFormulas) {
  expect_reference(tests::small_opt(), opt_loss);
}

/// The halves of the first `dims` of the last dimension's numbers turned into each other, of x
/// [b, n, s, d], by the angle of their place.
at::Tensor turned(const ModelSpec& m, const at::Tensor& x, std::int64_t dims) {
  const auto type = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor pair = at::arange(dims / 2, type) * (-2.0 / real(dims));
  const at::Tensor angle = at::outer(at::arange(x.size(2), type), at::pow(m.rope_theta, pair));
  const at::Tensor a = x.narrow(-1, 0, dims / 2), b = x.narrow(-1, dims / 2, dims / 2);
  return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(),
                  x.narrow(-1, dims, x.size(-1) - dims)},
                 -1);
}

/// Rotary attention under the mask, of all heads alike.
at::Tensor rotary_attention(const ModelSpec& m, const Named& p, const std::string& attn,
                            const at::Tensor& a) {
  const auto projected = [&](const char* which) {
    return heads(m, at::linear(a, p.at(attn + which)));
  };
  const at::Tensor q = turned(m, projected("q.weight"), m.head_dim),
                   k = turned(m, projected("k.weight"), m.head_dim);
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(real(m.head_dim));
  scores = scores.masked_fill(at::ones_like(scores).triu(1).to(at::kBool), -INFINITY);
  return at::matmul(at::softmax(scores, -1), projected("v.weight")).transpose(1, 2).flatten(2);
}

/// Llama 4: an expert reads its token times the sigmoid of its logit, beside an expert of all.
at::Tensor llama4_loss(const ModelSpec& m, const Named& p) {
  const auto mixture = [&](const std::string& block, const at::Tensor& a) {
    const at::Tensor l = at::linear(a, p.at(block + "router.weight"));
    const auto chosen = l.topk(m.experts_per_token, -1);
    const at::Tensor gates = at::sigmoid(
        at::full_like(l, -INFINITY).scatter(-1, std::get<1>(chosen), std::get<0>(chosen)));
    at::Tensor sum = gated_mlp(p, block + "mlp.", a);
    for (std::int64_t e = 0; e < m.experts; ++e) {
      Named of_expert;
      for (const char* which : {"gate.weight", "in.weight", "out.weight"})
        of_expert.all[which] = p.at(block + "experts." + which).select(0, e);
      sum = sum + gated_mlp(of_expert, "", a * gates.narrow(-1, e, 1));
    }
    return sum;
  };
  const auto mixed = [&](std::int64_t, const std::string& block, const at::Tensor& a) {
    return rotary_attention(m, p, block + "attn.", a);
  };
  return decoder_loss(m, p, mixed, mixture);
}

TEST(Reference, ExpertsOfWeightedInputsAreTheirFormulas) {
  for (const std::int64_t choices : {1, 2})
    expect_reference(tests::small_llama4(choices), llama4_loss);
}

/// I of model::Indexer, [b, s, s], of the block's input and the queries' latent.
at::Tensor index_scores(const ModelSpec& m, const Named& p, const std::string& attn,
                        const at::Tensor& a, const at::Tensor& t) {
  const auto& [n, e, keys] = m.indexer;
  const at::Tensor q = at::linear(t, p.at(attn + "index_q.weight"))
                           .view({a.size(0), a.size(1), n, e})
                           .transpose(1, 2);
  const at::Tensor k =
      at::layer_norm(at::linear(a, p.at(attn + "index_k.weight")), {e},
                     p.at(attn + "index_norm.weight"), p.at(attn + "index_norm.bias"), 1e-6)
          .unsqueeze(1);
  const at::Tensor products =
      at::matmul(turned(m, q, m.rope_dim), turned(m, k, m.rope_dim).transpose(-1, -2)).relu();
  const at::Tensor w = at::linear(a, p.at(attn + "index_w.weight")).transpose(1, 2);
  return (products * w.unsqueeze(-1)).sum(1) / std::sqrt(real(n * e));
}

/// What latent attention makes of a, over the keys that its indexer chooses; `learning` gets the
/// divergence of the indexer's softmax from the heads', of every query.
at::Tensor chosen_attention(const ModelSpec& m, const Named& p, const std::string& attn,
                            const at::Tensor& a, at::Tensor& learning) {
  const std::int64_t plain = m.head_dim - m.rope_dim, s = a.size(1);
  const auto by_head = [&](const at::Tensor& x) {
    return x.view({a.size(0), s, m.heads, -1}).transpose(1, 2);
  };
  const at::Tensor t = rms_norm(m, p, attn + "q_latent",
                                at::linear(a, p.at(attn + "q_down.weight"))),
                   c = rms_norm(m, p, attn + "kv_latent",
                                at::linear(a, p.at(attn + "kv_down.weight")));
  const at::Tensor q = by_head(at::linear(t, p.at(attn + "q.weight"))),
                   kv = by_head(at::linear(c, p.at(attn + "kv_up.weight")));
  const at::Tensor rotated =
      turned(m, at::linear(a, p.at(attn + "rotated.weight")).unsqueeze(1), m.rope_dim);
  at::Tensor scores =
      at::matmul(q.narrow(-1, 0, plain), kv.narrow(-1, 0, plain).transpose(-1, -2)) +
      at::matmul(turned(m, q.narrow(-1, plain, m.rope_dim), m.rope_dim), rotated.transpose(-1, -2));
  const at::Tensor later = at::ones({s, s}, at::kDouble).triu(1).to(at::kBool);
  const at::Tensor index =
      index_scores(m, p, attn, a.detach(), t.detach()).masked_fill(later, -INFINITY);
  const at::Tensor least =
      std::get<0>(at::topk(index.detach(), m.indexer.keys)).narrow(-1, m.indexer.keys - 1, 1);
  const at::Tensor unseen = index.lt(least).logical_or(later);
  scores = (scores / std::sqrt(real(m.head_dim))).masked_fill(unseen.unsqueeze(1), -INFINITY);
  const at::Tensor shares = at::softmax(scores, -1);
  const at::Tensor target = shares.detach().mean(1);
  learning = learning - (target * at::log_softmax(index.masked_fill(unseen, -1e9), -1)).sum();
  return at::matmul(shares, kv.narrow(-1, plain, m.value_dim)).transpose(1, 2).flatten(2);
}

/// The loss of the text, with the gradients of the indexers' as well.
at::Tensor sparse_loss(const ModelSpec& m, const Named& p) {
  at::Tensor learning = at::zeros({}, at::kDouble);
  const at::Tensor loss =
      decoder_loss(m, p, [&](std::int64_t, const std::string& block, const at::Tensor& a) {
        return chosen_attention(m, p, block + "attn.", a, learning);
      });
  learning = learning / real(kSequences * m.max_positions);
  return loss + learning - learning.detach();
}

TEST(Reference, AttentionBehindAnIndexerIsItsFormulas) {
  expect_reference(tests::small_sparse(), sparse_loss);
}

/// The first kind of block of a catalog model alone, with a dense MLP where it has a mixture.
ModelSpec first_kind(const char* name) {
  ModelSpec m = model::find_model(name).value().of_kind(0);
  m.runs.clear();
  m.order.clear();
  m.layers = 4;
  m.experts = m.experts_per_token = m.shared_ffn = 0;
  m.max_positions = 32;
  return m;
}

TEST(Reference, Mamba2IsItsFormulas) { expect_reference(first_kind("mamba2-tiny"), scan_loss); }
TEST(Reference, GatedDeltaNetIsItsFormulas) {
  expect_reference(first_kind("qwen3-next-tiny"), scan_loss);
}
TEST(Reference, LightningAttentionIsItsFormulas) {
  expect_reference(first_kind("minimax-tiny"), scan_loss);
}

}  // namespace
}  // namespace orrery::executor::testing

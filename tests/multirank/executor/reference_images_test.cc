// Images and the formulas of their models (reference_fixture.h).
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "executor/state/images.h"
#include "reference_fixture.h"
#include "tests/support/small_kinds.h"

namespace orrery::executor::testing {
namespace {

using model::ModelSpec;

/// [n, w, w]: of a window of side r, by rows, the bias of two places' difference.
at::Tensor window_biases(const ModelSpec& m, const at::Tensor& table) {
  const auto side = static_cast<std::int64_t>(std::sqrt(real(m.window)));
  std::vector<at::Tensor> columns;
  for (std::int64_t i = 0; i < m.window; ++i)
    for (std::int64_t j = 0; j < m.window; ++j)
      columns.push_back(table.select(
          1, (i / side - j / side + side - 1) * (2 * side - 1) + i % side - j % side + side - 1));
  return at::stack(columns, 1).view({m.heads, m.window, m.window});
}

/// Of images [b, r, r, h], x + attention(norm1(x)) over all or in windows, these shifted,
/// then x + mlp(norm2(x)): Swin's own way, rolled and cut (arXiv 2103.14030, section 3.2).
at::Tensor block_of_images(const ModelSpec& m, const Named& p, const std::string& block,
                           at::Tensor x, std::int64_t shift) {
  const std::int64_t side = x.size(1), tokens = m.window > 0 ? m.window : side * x.size(2),
                     w = m.window > 0 ? static_cast<std::int64_t>(std::sqrt(real(tokens))) : 0;
  const auto cut = [&](const at::Tensor& image) {
    if (w == 0) return image.flatten(1, 2);
    return image.view({-1, side / w, w, side / w, w, image.size(-1)})
        .permute({0, 1, 3, 2, 4, 5})
        .reshape({-1, tokens, image.size(-1)});
  };
  const auto joined = [&](const at::Tensor& windows) {
    if (w == 0) return windows.view(x.sizes());
    return windows.view({-1, side / w, side / w, w, w, m.hidden})
        .permute({0, 1, 3, 2, 4, 5})
        .reshape(x.sizes());
  };
  const at::Tensor a =
      cut(at::roll(layer_norm(m, p, block + "norm1", x), {-shift, -shift}, {1, 2}));
  const at::Tensor q = heads(m, product(p, block + "attn.q", a)),
                   k = heads(m, product(p, block + "attn.k", a)),
                   v = heads(m, product(p, block + "attn.v", a));
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(real(m.head_dim));
  if (m.window > 0) scores = scores + window_biases(m, p.at(block + "attn.relative.weight"));
  if (shift > 0) {
    at::Tensor part = at::zeros({1, side, side, 1});
    const std::int64_t ends[] = {0, side - w, side - shift, side};
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j)
        part.slice(1, ends[i], ends[i + 1]).slice(2, ends[j], ends[j + 1]).fill_(3 * i + j);
    const at::Tensor of_window = cut(part).squeeze(-1);
    const at::Tensor apart = of_window.unsqueeze(1).ne(of_window.unsqueeze(2)).unsqueeze(1);
    scores = scores.masked_fill(apart.repeat({kSequences, 1, 1, 1}), -INFINITY);
  }
  const at::Tensor o = at::matmul(at::softmax(scores, -1), v).transpose(1, 2).flatten(2);
  x = x + at::roll(joined(product(p, block + "attn.proj", o)), {shift, shift}, {1, 2});
  const at::Tensor u = product(p, block + "mlp.in", layer_norm(m, p, block + "norm2", x));
  return x + product(p, block + "mlp.out", at::gelu(u));
}

/// Patches as the product makes them, [b, s, h].
at::Tensor embedded_patches(const ModelSpec& m, const Named& p) {
  at::Tensor pixels = at::zeros({kSequences, m.max_positions, m.patch_features});
  const ImageBatch batch{.seed = kSeed,
                         .first = kStep * kSequences,
                         .images = kSequences,
                         .classes = m.vocab,
                         .patch_features = m.patch_features,
                         .blank_tokens = m.class_token ? 1 : 0};
  make_pixels(batch, {pixels.mutable_data_ptr<float>(), as_index(pixels.numel())});
  return product(p, "embedding.patch", pixels.to(at::kDouble));
}

/// Of x [b, h], what the head reads of every image.
at::Tensor class_loss(const ModelSpec& m, const Named& p, const at::Tensor& x) {
  std::vector<std::int64_t> classes(as_index(kSequences));
  make_classes(
      {.seed = kSeed, .first = kStep * kSequences, .images = kSequences, .classes = m.vocab},
      classes);
  const at::Tensor logits = product(p, "lm_head", x).narrow(-1, 0, m.vocab);
  at::Tensor targets = at::zeros({kSequences}, at::TensorOptions().dtype(at::kLong));
  for (std::int64_t i = 0; i < kSequences; ++i) targets[i] = classes[as_index(i)];
  return at::cross_entropy_loss(logits, targets);
}

at::Tensor vit_loss(const ModelSpec& m, const Named& p) {
  const at::Tensor patches = embedded_patches(m, p),
                   token = at::zeros({m.max_positions, 1}, at::kDouble);
  token[0] = 1;
  at::Tensor x = patches + at::matmul(token, p.at("embedding.class.weight")) +
                 p.at("embedding.position.weight");
  x = x.unsqueeze(1);
  for (std::int64_t l = 0; l < m.layers; ++l)
    x = block_of_images(m, p, "blocks." + std::to_string(l) + ".", x, 0);
  return class_loss(m, p, layer_norm(m, p, "final_norm", x).select(2, 0).squeeze(1));
}

/// [r, r]: which token lies where, as four become one so many times: token t becomes 4 t to 4 t
/// + 3.
at::Tensor places(std::int64_t side, int merges) {
  const std::int64_t coarse = side >> merges;
  at::Tensor at_place = at::arange(coarse * coarse, at::kLong).view({coarse, coarse});
  for (int level = 0; level < merges; ++level) {
    at::Tensor finer = at::zeros({2 * at_place.size(0), 2 * at_place.size(1)}, at::kLong);
    for (int i = 0; i < 4; ++i)
      finer.slice(0, i % 2, std::nullopt, 2)
          .slice(1, i / 2, std::nullopt, 2)
          .copy_(4 * at_place + i);
    at_place = finer;
  }
  return at_place;
}

/// Images of 8 x 8 patches, then of 4 x 4.
at::Tensor swin_loss(const ModelSpec& m, const Named& p) {
  at::Tensor x = layer_norm(m, p, "embedding.norm", embedded_patches(m, p));
  x = x.index_select(1, places(8, 1).flatten()).view({kSequences, 8, 8, m.hidden});
  std::int64_t block_of_stage = 0;
  for (std::int64_t l = 0; l < m.layers; ++l, ++block_of_stage) {
    const ModelSpec kind = m.of_kind(m.kind_of(l));
    const std::string block = "blocks." + std::to_string(l) + ".";
    if (kind.entry == model::BlockEntry::kPatchMerging) {  // four neighbours
      std::vector<at::Tensor> four;
      for (int i = 0; i < 4; ++i)
        four.push_back(x.slice(1, i % 2, std::nullopt, 2).slice(2, i / 2, std::nullopt, 2));
      x = at::linear(layer_norm(m, p, block + "merge.norm", at::cat(four, -1)),
                     p.at(block + "merge.weight"));
      block_of_stage = 0;
    }
    const auto window = static_cast<std::int64_t>(std::sqrt(real(kind.window)));
    x = block_of_images(kind, p, block, x, block_of_stage % 2 == 1 ? window / 2 : 0);
  }
  return class_loss(m, p, layer_norm(m, p, "final_norm", x).mean(at::IntArrayRef({1, 2})));
}

TEST(Reference, SwinIsItsFormulas) { expect_reference(tests::small_swin(), swin_loss); }

TEST(Reference, ViTIsItsFormulas) { expect_reference(tests::small_vit(), vit_loss); }

}  // namespace
}  // namespace orrery::executor::testing

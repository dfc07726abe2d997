// What one process trains is what the model's formulas say: loss and gradients against the same
// model written with LibTorch's own operations, in fp64 and with its autograd.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "executor/runtime/interpreter.h"
#include "executor/state/images.h"
#include "plan/lowering/lower.h"
#include "tests/support/small_kinds.h"

namespace orrery::executor {
namespace {

using model::ModelSpec;

constexpr std::int64_t kImages = 3, kStep = 2;  // whose gradients are looked at
constexpr std::uint64_t kSeed = 5;

/// Tensors by name ("blocks.2.norm1.weight"), as they stand on the one rank.
class Named {
 public:
  std::map<std::string, at::Tensor> all;
  const at::Tensor& at(const std::string& name) const {
    const auto found = all.find(name);
    ORRERY_CHECK(found != all.end(), "no parameter '{}'", name);
    return found->second;
  }
};

std::string of_layer(std::string name, std::int64_t layer) {
  const std::string place = "{layer}";
  if (const auto at = name.find(place); at != std::string::npos)
    name.replace(at, place.size(), std::to_string(layer));
  return name;
}

/// The persistent tensors of a category, fp64; those that something reads.
Named held(const plan::Program& program, const Interpreter& trained,
           plan::BufferCategory category) {
  Named named;
  for (const auto& p : program.classes[0].persistent) {
    const plan::BufferDecl& decl = program.buffers[p.buffer];
    if (decl.category != category || !decl.unit) continue;
    const at::Tensor flat = trained.persistent(p.buffer, p.layer).to(at::kDouble).clone();
    for (const plan::Parameter& parameter : program.units[*decl.unit].parameters)
      if (parameter.uses > 0)
        named.all[of_layer(parameter.name, p.layer)] =
            flat.narrow(0, parameter.offset, elements_of(parameter.local_shape))
                .view(parameter.local_shape)
                .clone();
  }
  return named;
}

/// A bias of keys moves all scores of a query alike, so its gradient is zero: it is measured
/// against that of the queries' bias.
std::string measure_of(std::string name) {
  const std::string keys = "attn.k.bias";
  if (name.ends_with(keys)) name.replace(name.size() - keys.size(), keys.size(), "attn.q.bias");
  return name;
}

/// One model's loss of a batch, from its parameters.
using Loss = at::Tensor(const ModelSpec&, const Named&);

/// A step of the interpreter behind two others, and the same by `loss`.
void expect_reference(const ModelSpec& m, Loss* loss) {
  const plan::Plan plan = plan::uniform_plan(m, "local", 1,
                                             {.micro_batch = kImages,
                                              .global_batch = kImages,
                                              .precision = model::Precision::kFloat32})
                              .value();
  const plan::Program program = plan::lower(plan, m).value();
  RunOptions options;
  options.seed = kSeed;
  options.optimizer.learning_rate = 1e-2;  // away from biases of zero and gains of one
  Site site = open_site("cpu", "self", 1).value();
  const auto trained =
      Interpreter::create(program, *site.communicator, nullptr, site, options).value();
  for (int step = 0; step < kStep; ++step) ASSERT_TRUE(trained->step(step, false));
  Named parameters = held(program, *trained, plan::BufferCategory::kParameter);
  for (auto& [name, p] : parameters.all) p.requires_grad_(true);
  ASSERT_TRUE(trained->step(kStep, false));
  const at::Tensor expected = loss(m, parameters);
  expected.backward();
  EXPECT_NEAR(trained->loss_part() / expected.item<double>(), 1, 1e-5);
  const Named gradients = held(program, *trained, plan::BufferCategory::kGradient);
  EXPECT_EQ(gradients.all.size(), parameters.all.size());
  double largest = 0;
  for (const auto& [name, p] : parameters.all) {
    const at::Tensor& g = p.grad();
    ASSERT_TRUE(g.defined()) << name;
    const double scale = parameters.at(measure_of(name)).grad().norm().item<double>(),
                 off = (gradients.at(name) - g).norm().item<double>() / scale;
    EXPECT_GT(scale, 0) << name;
    EXPECT_LE(off, 1e-5) << name;
    largest = std::max(largest, off);
  }
  std::printf("%s: loss %.1e, gradients %.1e\n", m.name.c_str(),
              std::abs(trained->loss_part() / expected.item<double>() - 1), largest);
}

at::Tensor layer_norm(const ModelSpec& m, const Named& p, const std::string& name,
                      const at::Tensor& x) {
  return at::layer_norm(x, {x.size(-1)}, p.at(name + ".weight"), p.at(name + ".bias"),
                        m.norm_epsilon);
}

/// [b, s, h] as [b, n, s, d].
at::Tensor heads(const ModelSpec& m, const at::Tensor& x) {
  return x.view({x.size(0), x.size(1), m.heads, m.head_dim}).transpose(1, 2);
}

at::Tensor product(const Named& p, const std::string& name, const at::Tensor& x) {
  return at::linear(x, p.at(name + ".weight"), p.at(name + ".bias"));
}

/// x + attention(norm1(x)), then x + mlp(norm2(x)).
at::Tensor block_of_images(const ModelSpec& m, const Named& p, const std::string& block,
                           at::Tensor x) {
  const at::Tensor a = layer_norm(m, p, block + "norm1", x);
  const at::Tensor q = heads(m, product(p, block + "attn.q", a)),
                   k = heads(m, product(p, block + "attn.k", a)),
                   v = heads(m, product(p, block + "attn.v", a));
  const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(real(m.head_dim));
  const at::Tensor o = at::matmul(at::softmax(scores, -1), v).transpose(1, 2).flatten(2);
  x = x + product(p, block + "attn.proj", o);
  const at::Tensor u = product(p, block + "mlp.in", layer_norm(m, p, block + "norm2", x));
  return x + product(p, block + "mlp.out", at::gelu(u));
}

/// Patches as the product makes them, [b, s, h].
at::Tensor embedded_patches(const ModelSpec& m, const Named& p) {
  at::Tensor pixels = at::zeros({kImages, m.max_positions, m.patch_features});
  const ImageBatch batch{.seed = kSeed,
                         .first = kStep * kImages,
                         .images = kImages,
                         .classes = m.vocab,
                         .patch_features = m.patch_features,
                         .blank_tokens = m.class_token ? 1 : 0};
  make_pixels(batch, {pixels.mutable_data_ptr<float>(), as_index(pixels.numel())});
  return product(p, "embedding.patch", pixels.to(at::kDouble));
}

/// Of x [b, h], what the head reads of every image.
at::Tensor class_loss(const ModelSpec& m, const Named& p, const at::Tensor& x) {
  std::vector<std::int64_t> classes(as_index(kImages));
  make_classes({.seed = kSeed, .first = kStep * kImages, .images = kImages, .classes = m.vocab},
               classes);
  const at::Tensor logits = product(p, "lm_head", x).narrow(-1, 0, m.vocab);
  at::Tensor targets = at::zeros({kImages}, at::TensorOptions().dtype(at::kLong));
  for (std::int64_t i = 0; i < kImages; ++i) targets[i] = classes[as_index(i)];
  return at::cross_entropy_loss(logits, targets);
}

at::Tensor vit_loss(const ModelSpec& m, const Named& p) {
  const at::Tensor patches = embedded_patches(m, p),
                   token = at::zeros({m.max_positions, 1}, at::kDouble);
  token[0] = 1;
  at::Tensor x = patches + at::matmul(token, p.at("embedding.class.weight")) +
                 p.at("embedding.position.weight");
  for (std::int64_t l = 0; l < m.layers; ++l)
    x = block_of_images(m, p, "blocks." + std::to_string(l) + ".", x);
  return class_loss(m, p, layer_norm(m, p, "final_norm", x).select(1, 0));
}

TEST(Reference, ViTIsItsFormulas) { expect_reference(tests::small_vit(), vit_loss); }

}  // namespace
}  // namespace orrery::executor

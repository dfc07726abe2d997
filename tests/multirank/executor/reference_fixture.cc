#include "reference_fixture.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "executor/runtime/interpreter.h"
#include "executor/state/data.h"
#include "plan/lowering/lower.h"

namespace orrery::executor::testing {

using model::ModelSpec;

namespace {

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

}  // namespace

void expect_reference(const ModelSpec& m, Loss* loss) {
  const plan::Plan plan = plan::uniform_plan(m, "local", 1,
                                             {.micro_batch = kSequences,
                                              .global_batch = kSequences,
                                              .precision = model::Precision::kFloat32})
                              .value();
  const plan::Program program = plan::lower(plan, m).value();
  RunOptions options;
  options.seed = kSeed;
  options.optimizer.learning_rate = 1e-2;  // away from biases of zero and gains of one
  Site site = open_site("cpu", "self", 1).value();
  std::optional<TokenData> data;
  if (!reads_images(program)) data = TokenData::open("", m.vocab, tokens_of_text(program)).value();
  const auto trained =
      Interpreter::create(program, *site.communicator, data ? &*data : nullptr, site, options)
          .value();
  for (int step = 0; step < kStep; ++step) ASSERT_TRUE(trained->step(step, false));
  Named parameters = held(program, *trained, plan::BufferCategory::kParameter);
  for (auto& [name, p] : parameters.all) p.requires_grad_(true);
  ASSERT_TRUE(trained->step(kStep, false));
  const at::Tensor expected = loss(m, parameters);
  expected.backward();
  EXPECT_NEAR(trained->loss_part() / expected.item<double>(), 1, 1e-5);
  const Named gradients = held(program, *trained, plan::BufferCategory::kGradient);
  EXPECT_EQ(gradients.all.size(), parameters.all.size());
  double square = 0, largest = 0;
  for (const auto& [name, p] : parameters.all) {
    ASSERT_TRUE(p.grad().defined()) << name;
    square += p.grad().square().sum().item<double>();
  }
  for (const auto& [name, p] : parameters.all) {
    const double own = p.grad().norm().item<double>(),
                 off = (gradients.at(name) - p.grad()).norm().item<double>() /
                       std::max(own, std::sqrt(square) / 100);
    EXPECT_GT(own, 0) << name;
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

at::Tensor heads(const ModelSpec& m, const at::Tensor& x) {
  return x.view({x.size(0), x.size(1), m.heads, m.head_dim}).transpose(1, 2);
}

at::Tensor product(const Named& p, const std::string& name, const at::Tensor& x) {
  return at::linear(x, p.at(name + ".weight"), p.at(name + ".bias"));
}

at::Tensor rms_norm(const ModelSpec& m, const Named& p, const std::string& name,
                    const at::Tensor& x) {
  const at::Tensor mean = x.square().mean(-1, true);
  return x * (mean + m.norm_epsilon).rsqrt() * p.at(name + ".weight");
}

}  // namespace orrery::executor::testing

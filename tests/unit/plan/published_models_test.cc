// Models as published: the parameters that their publishers count, and Programs that hold as many.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <vector>

#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "tests/support/published_models.h"

namespace orrery::plan {
namespace {

using ::testing::HasSubstr;

TEST(PublishedModels, HaveTheParametersThatTheirPublishersCount) {
  int read = 0;
  for (const tests::PublishedModel& published : tests::published_models()) {
    const auto model = model::read_hf_config(published.config, published.name);
    if (!published.refused.empty()) {
      ASSERT_FALSE(model.has_value()) << published.name;
      EXPECT_THAT(base::to_string(model.error()), HasSubstr(published.refused)) << published.name;
      continue;
    }
    ASSERT_TRUE(model.has_value()) << published.name << base::to_string(model.error());
    EXPECT_EQ(model->parameters(), published.parameters) << published.name;
    ++read;
  }
  EXPECT_EQ(read, 121);
}

/// Elements of the units that the state of a rank alone holds, without the vocabulary's padding: of
/// each layer, of the rest once.
std::int64_t held_elements(const Program& program) {
  const auto elements = [](const std::vector<std::int64_t>& shape) {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
  };
  std::int64_t sum = 0;
  for (const ParameterUnit& unit : program.units) {
    for (const Parameter& p : unit.parameters) sum += elements(p.shape) - elements(p.local_shape);
  }
  for (const auto& persistent : program.classes.front().persistent) {
    const BufferDecl& decl = program.buffers[persistent.buffer];
    if (decl.category == BufferCategory::kParameter && decl.dtype == model::DType::kFloat32)
      sum += decl.elements();
  }
  return sum;
}

Plan small_plan(const model::ModelSpec& model, int tp) {
  UniformOptions o{.tp = tp,
                   .sequence_parallel = tp > 1,
                   .recompute = tp > 1 ? Recompute::kFull : Recompute::kNone,
                   .global_batch = 1,
                   .sequence = model.patch_features > 0 ? 0 : 256,
                   .precision = model::Precision::kFloat32};
  auto plan = uniform_plan(model, "local", 1, o);
  EXPECT_TRUE(plan.has_value()) << model.name << base::to_string(plan.error());
  return plan.value_or(Plan{});
}

TEST(PublishedModels, MakeProgramsThatHoldAndPassTheCheck) {
  for (const tests::PublishedModel& published : tests::published_models()) {
    if (!published.refused.empty()) continue;
    const model::ModelSpec model = *model::read_hf_config(published.config, published.name);
    for (const int tp : {1, 2}) {
      const bool divides = model.heads % 2 == 0 && model.kv_heads % 2 == 0 &&
                           (!model.scans() || model.scan.groups % 2 == 0);
      if (tp > 1 && (model.qk_norm == model::QkNorm::kWhole || model.indexed() || !divides))
        continue;
      if (tp > 1 && model.patch_features > 0) continue;  // an odd number of tokens
      const auto program = lower(small_plan(model, tp), model);
      ASSERT_TRUE(program.has_value()) << model.name << base::to_string(program.error());
      const std::vector<Fault> faults = check(*program);
      EXPECT_TRUE(faults.empty()) << model.name << " tp " << tp << ": " << faults.size() << ", "
                                  << faults.front().message;
      if (tp == 1) {
        EXPECT_EQ(held_elements(*program), published.parameters) << model.name;
      }
    }
  }
}

}  // namespace
}  // namespace orrery::plan

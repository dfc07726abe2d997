// Blocks whose products multiply below bf16: what is kept, gathered and added, by hand.
#include <gtest/gtest.h>

#include "tests/unit/plan/layer_templates.h"

namespace orrery::plan {
namespace {

using model::Precision;

LayerContext context(Precision precision) {
  LayerContext c;
  c.precision = precision;
  c.sequence = 64;
  c.micro_batch_sequences = 4;
  c.micro_batches = 2;
  c.global_batch = 8;
  return c;
}
LayerTemplates block(Precision precision, const LayerStrategy& strategy = {},
                     const char* name = "gpt2-tiny") {
  return lower_block(model::find_model(name).value(), strategy, context(precision));
}
const BufferDecl& buffer(const LayerTemplates& t, std::string_view name) {
  for (const BufferDecl& b : t.program.buffers)
    if (b.name.substr(0, b.name.find(" [")) == name) return b;
  ADD_FAILURE() << "no " << name;
  return *t.program.buffers.begin();
}
const model::SegmentShape& shape_of(const LayerTemplates& t, TemplateId id, std::string_view name) {
  return t.program.segments[op_of(t, id, name).segment];
}

TEST(LowerPrecision, KeepsQuantisedWhatNormsAndActivationsMake) {
  const LayerTemplates t = block(Precision::kFp8Delayed), bf16 = block(Precision::kBFloat16);
  for (const char* name : {"a", "c", "g"}) {
    EXPECT_EQ(buffer(t, name).dtype, model::DType::kFloat8) << name;
    EXPECT_EQ(2 * buffer(t, name).bytes(), buffer(bf16, name).bytes()) << name;
  }
  for (const char* name : {"qkv", "o", "u", "y", "x"})
    EXPECT_EQ(buffer(t, name).dtype, model::DType::kBFloat16) << name;
  // attention's output serves its backward too: quantised for the product alone
  EXPECT_FALSE(shape_of(t, t.forward, "qkv").quantises_input);
  EXPECT_TRUE(shape_of(t, t.forward, "projection").quantises_input);
  EXPECT_EQ(shape_of(t, t.forward, "norm1").format, model::Format::kFp8Delayed);
  EXPECT_EQ(shape_of(t, t.forward, "attention").format, model::Format::kNone);
  EXPECT_EQ(shape_of(bf16, bf16.forward, "qkv").format, model::Format::kNone);
}

TEST(LowerPrecision, WeightsHaveTwoCopiesUnlessTheyAreGathered) {
  const auto m = model::find_model("gpt2-tiny").value();
  const std::int64_t weights = 4 * m.hidden * m.hidden + 2 * m.hidden * m.ffn;
  const auto added = [](Precision p, const LayerStrategy& s) {
    return persistent_bytes(block(p, s)) - persistent_bytes(block(Precision::kBFloat16, s));
  };
  EXPECT_EQ(added(Precision::kFp8Current, {}), 2 * weights);
  EXPECT_EQ(added(Precision::kMxFp8, {}), 2 * weights * 33 / 32);
  EXPECT_EQ(added(Precision::kNvFp4, {}), 2 * weights * 18 / 32);
  EXPECT_EQ(added(Precision::kFp8Current, {.tp = 2}), 2 * weights / 2);
  const LayerStrategy sharded{.dp = 4, .zero = 3};
  EXPECT_EQ(added(Precision::kFp8Current, sharded), 0);
  const LayerTemplates t = block(Precision::kFp8Current, sharded);
  EXPECT_TRUE(shape_of(t, t.forward, "qkv").quantises_weights);
  EXPECT_FALSE(shape_of(block(Precision::kFp8Current), t.forward, "qkv").quantises_weights);
}

TEST(LowerPrecision, SequenceParallelismGathersQuantised) {
  const LayerStrategy s{.tp = 2, .sequence_parallel = true};
  const LayerTemplates t = block(Precision::kFp8Delayed, s), bf16 = block(Precision::kBFloat16, s);
  EXPECT_EQ(2 * op_of(t, t.forward, "all_gather(a)").bytes,
            op_of(bf16, bf16.forward, "all_gather(a)").bytes);
  EXPECT_EQ(op_of(t, t.forward, "reduce_scatter(p)").bytes,
            op_of(bf16, bf16.forward, "reduce_scatter(p)").bytes);
}

// A router reads what a norm makes.
TEST(LowerPrecision, MixturesQuantiseRowsInTheirProducts) {
  const LayerTemplates t = block(Precision::kFp8Block, {}, "mixtral-tiny");
  EXPECT_EQ(buffer(t, "c").dtype, model::DType::kBFloat16);
  EXPECT_EQ(buffer(t, "rows").dtype, model::DType::kBFloat16);
  EXPECT_EQ(buffer(t, "expert g").dtype, model::DType::kFloat8Blocks);
  EXPECT_TRUE(shape_of(t, t.forward, "expert_in").quantises_input);
  EXPECT_FALSE(shape_of(t, t.forward, "expert_out").quantises_input);
}

// In pieces backward runs whole products, for the input beside the gather and for the weights
// beside the scatter.
TEST(LowerPieces, WeightGradientsRunBesideTheScatter) {
  const LayerTemplates t =
      block(Precision::kBFloat16, {.tp = 2, .sequence_parallel = true, .tensor_pieces = 4});
  std::vector<std::string> order;
  for (const Op& op : t.program.templates[t.backward].ops)
    if (op.name == "qkv" || op.name == "all_gather(a)" || op.name == "reduce_scatter(da)")
      order.push_back(op.name + (op.kind == OpKind::kCompute
                                     ? std::string(" ") + std::string(model::to_string(op.phase))
                                     : std::string()));
  EXPECT_EQ(order,
            (std::vector<std::string>{"all_gather(a)", "qkv B", "reduce_scatter(da)", "qkv G"}));
  EXPECT_EQ(shape_of(t, t.forward, "qkv 1/4").pieces, 4);
}

}  // namespace
}  // namespace orrery::plan

/// Activations and optimizer states on the host: what is copied, what stays on the device, and what
/// a missing copy is.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"
#include "plan/program/stream_refs.h"
#include "tests/unit/plan/mutant.h"

namespace orrery::plan {
namespace {

model::ModelSpec llama() { return model::find_model("llama-tiny").value(); }

UniformOptions options() {
  return {.recompute = Recompute::kOffload, .micro_batch = 2, .global_batch = 8, .sequence = 64};
}

Plan plan_of(const UniformOptions& o) { return uniform_plan(llama(), "test", 1, o).value(); }

LayerTemplates block(Recompute recompute) {
  LayerContext c;
  c.precision = model::Precision::kBFloat16;
  c.sequence = 64;
  c.micro_batch_sequences = 2;
  c.micro_batches = 4;
  c.global_batch = 8;
  return lower_block(llama(), {.recompute = recompute}, c);
}

TEST(Offload, CopiesAllThatALayerKeepsOutAndBack) {
  const LayerTemplates kept = block(Recompute::kNone), there = block(Recompute::kOffload);
  const Op &out = there.program.templates[there.forward].ops.back(),
           &in = there.program.templates[there.gather_backward].ops.back();
  ASSERT_EQ(out.kind, OpKind::kCopy);
  ASSERT_EQ(in.kind, OpKind::kCopy);
  EXPECT_EQ(out.stream, Stream::kCopyOut);
  EXPECT_EQ(in.stream, Stream::kCopyIn);
  EXPECT_EQ(out.reads, out.frees);
  EXPECT_EQ(in.reads, out.writes);
  EXPECT_EQ(in.writes, out.reads);
  EXPECT_EQ(in.frees, in.reads);
  // What a forward leaves, but for the input of the next layer, and its own input, which is as
  // large.
  const std::int64_t left = template_memory(kept.program, kept.forward).delta_bytes;
  EXPECT_EQ(out.bytes, left);
  EXPECT_EQ(copied_bytes(there.program, there.program.templates[there.forward]), out.bytes);
  EXPECT_EQ(template_memory(there.program, there.forward).delta_bytes, left);
}

TEST(Offload, HoldsTwoLayersOnTheDeviceHoweverManyThereAre) {
  auto deep = llama();
  std::int64_t before = 0, slope = 0;
  for (const std::int64_t layers : {4, 8, 12}) {
    deep.layers = layers;
    const Program program = lower(uniform_plan(deep, "test", 1, options()).value(), deep).value();
    const StaticMemory m = static_memory(program, program.classes[0]);
    EXPECT_EQ(m.host_bytes % layers, 0);
    const std::int64_t beside = m.peak_bytes - m.persistent_bytes;
    EXPECT_EQ(beside, layers == 4 ? beside : before);
    before = beside;
    slope = m.host_bytes / layers;
  }
  EXPECT_GT(slope, 0);
}

TEST(Offload, TheCheckerFindsACopyThatIsMissing) {
  for (const int pp : {1, 2}) {
    UniformOptions o = options();
    o.pp = pp;
    const Program program = lower(plan_of(o), llama()).value();
    EXPECT_TRUE(check(program).empty());
    Mutant without_in(program), without_out(program), twice(program), wrong(program);
    without_in.drop(0, without_in.named(0, "copy_in(activations)"));
    EXPECT_TRUE(without_in.has(FaultKind::kReadAfterFree));
    without_out.drop(0, without_out.named(0, "copy_out(activations)"));
    EXPECT_TRUE(without_out.has(FaultKind::kReadBeforeWrite));
    twice.repeat(0, twice.named(0, "copy_in(activations)"));
    EXPECT_TRUE(twice.has(FaultKind::kDoubleWrite));
    Op& swapped = wrong.edit(0, wrong.named(0, "copy_out(activations)"));
    std::swap(swapped.writes[0], swapped.reads[0]);
    EXPECT_TRUE(wrong.has(FaultKind::kOperandMismatch));
  }
}

/// Those that `wanted` accepts, by their place in issue order.
template <class Wanted>  // bool(const Op&)
std::vector<std::uint32_t> issued(const Expansion& x, Wanted wanted) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < x.ops.size(); ++i)
    if (wanted(*x.ops[i].op)) found.push_back(i);
  return found;
}

TEST(Offload, AThirdForwardWaitsForTheFirstCopy) {
  const Program program = lower(plan_of(options()), llama()).value();
  const StreamRefs refs(program);
  const Expansion x = expand(program, program.classes[0], refs);
  const auto forwards =
      issued(x, [](const Op& op) { return op.kind == OpKind::kCompute && op.acquire; });
  const auto copies = issued(x, copies_out);
  ASSERT_EQ(forwards.size(), copies.size());
  for (std::size_t i = 2; i < forwards.size(); ++i)
    EXPECT_TRUE(std::ranges::count(x.dependencies_of(forwards[i]), copies[i - 2]) == 1) << i;
}

// fp32 moments and masters: 12 bytes a parameter of a rank's shard.
TEST(Offload, CopiesTheStatesOfALayerInBeforeItsUpdateAndOutBehind) {
  LayerContext c;
  c.sequence = 64;
  c.micro_batch_sequences = 2;
  c.global_batch = 2;
  const LayerTemplates t = lower_block(llama(), {.dp = 2, .zero = 1, .states = States::kHost}, c);
  const std::vector<Op>& ops = t.program.templates[t.update].ops;
  ASSERT_EQ(ops.size(), 3);
  const Op &in = ops[0], &adamw = ops[1], &out = ops[2];
  EXPECT_EQ(in.stream, Stream::kCopyIn);
  EXPECT_EQ(out.stream, Stream::kCopyOut);
  const ParameterUnit& unit = t.program.units[*adamw.unit];
  EXPECT_EQ(in.bytes, 12 * unit.padded / 2);
  EXPECT_EQ(out.bytes, in.bytes);
  EXPECT_EQ(out.reads, in.writes);
  EXPECT_EQ(out.frees, in.writes);
  // and waits for the gradient
  ASSERT_EQ(in.reads.size(), in.writes.size() + 1);
  EXPECT_EQ(in.reads.back(), adamw.reads.front());
  EXPECT_EQ(std::vector(in.reads.begin(), in.reads.end() - 1), out.updates);
  EXPECT_EQ(std::vector(adamw.updates.begin() + 1, adamw.updates.end()), in.writes);
  EXPECT_EQ(template_memory(t.program, t.update).peak_bytes, in.bytes);
}

/// Bytes beside persistent ones when the last update runs, and those of its layer's states.
std::pair<std::int64_t, std::int64_t> beside_last_update(const Program& program) {
  const std::vector<std::int64_t> alive = memory_by_op(program, program.classes[0]);
  std::size_t index = 0, last = 0;
  std::int64_t bytes = 0;
  for_each_op(program, program.classes[0], [&](const OpInstance& o) {
    if (o.op->name == "adamw") last = index;
    if (o.op->name == "copy_in(states)") bytes = o.op->bytes;
    ++index;
  });
  return {alive[last] - static_memory(program, program.classes[0]).persistent_bytes, bytes};
}

TEST(Offload, HoldsTheStatesOfTwoLayersOnTheDeviceHoweverManyThereAre) {
  auto deep = llama();
  UniformOptions o = options();
  for (const std::int64_t layers : {4, 8}) {
    deep.layers = layers;
    o.states = States::kDevice;
    Plan plan = uniform_plan(deep, "test", 1, o).value();
    plan.stages[0].runs[0].strategy.recompute = Recompute::kNone;
    const Program here = lower(plan, deep).value();
    plan.stages[0].runs[0].strategy.states = States::kHost;
    const Program there = lower(plan, deep).value();
    const StaticMemory a = static_memory(there, there.classes[0]),
                       b = static_memory(here, here.classes[0]);
    EXPECT_EQ(a.persistent_bytes + a.host_bytes, b.persistent_bytes);
    EXPECT_EQ(b.host_bytes, 0);
    EXPECT_LT(a.peak_bytes, b.peak_bytes);
    const auto [bytes, layer] = beside_last_update(there);
    // The head, whose states are on the device, is the last; the last layer's go out meanwhile.
    EXPECT_EQ(bytes, layer);
    plan.vocabulary.states = States::kHost;
    const Program all = lower(plan, deep).value();
    const auto [both, head] = beside_last_update(all);
    EXPECT_EQ(both, layer + head);
  }
}

/// Of the first layer, on the host.
std::vector<BufferRef> program_states(const Program& program) {
  std::vector<BufferRef> found;
  for (const Template& t : program.templates)
    for (const Op& op : t.ops)
      if (op.name == "copy_out(states)" && found.empty()) found = op.updates;
  return found;
}

TEST(Offload, TheCheckerFindsACopyOfStatesThatIsMissing) {
  UniformOptions o = options();
  o.recompute = Recompute::kNone;
  o.states = States::kHost;
  const Program program = lower(plan_of(o), llama()).value();
  EXPECT_TRUE(check(program).empty());
  Mutant without_in(program), without_out(program), short_by_one(program), on_host(program),
      waits(program);
  without_in.drop(0, without_in.named(0, "copy_in(states)"));
  EXPECT_TRUE(without_in.has(FaultKind::kReadBeforeWrite));
  without_out.drop(0, without_out.named(0, "copy_out(states)"));
  EXPECT_TRUE(without_out.has(FaultKind::kLeak));
  short_by_one.edit(0, short_by_one.named(0, "copy_out(states)")).reads.pop_back();
  EXPECT_TRUE(short_by_one.has(FaultKind::kOperandMismatch));
  // An update of what is on the host, and a copy that waits for what is no gradient.
  const std::vector<BufferRef> there = program_states(program);
  on_host.edit(0, on_host.named(0, "adamw")).updates[1] = there.front();
  EXPECT_TRUE(on_host.has(FaultKind::kOperandMismatch));
  Op& in = waits.edit(0, waits.named(0, "copy_in(states)"));
  in.reads.back() = in.reads.front();
  EXPECT_TRUE(waits.has(FaultKind::kOperandMismatch));
}

// Hybrid sharding sums what its ranks own behind all micro-batches, unit by unit; the copy stands
// behind all of these, and in front of all updates.
TEST(Offload, StatesComeWhenTheGradientsOfAllUnitsAreComplete) {
  auto mixture = llama();
  mixture.experts = 4;
  mixture.experts_per_token = 2;
  LayerContext c;
  c.sequence = 64;
  c.micro_batch_sequences = 8;
  c.micro_batches = 2;
  c.global_batch = 16;
  for (const LayerStrategy& s :
       {LayerStrategy{.dp = 8, .grad_reduce = GradReduce::kEnd, .states = States::kHost},
        LayerStrategy{.dp = 8,
        .zero = 2,
        .grad_reduce = GradReduce::kMicroBatch,
        .shard = 2,
        .states = States::kHost}}) {
    const LayerTemplates t = lower_block(mixture, s, c);
    std::vector<OpKind> kinds;
    for (const Op& op : t.program.templates[t.update].ops) kinds.push_back(op.kind);
    using enum OpKind;
    EXPECT_EQ(kinds, (std::vector{kCollective, kCollective, kCopy, kCompute, kCompute, kCopy}))
        << to_string(s);
  }
}

// The copy of a layer waits for its gradient, and for the copy back of the layer before the last.
TEST(Offload, StatesComeWhenTheGradientAndARoomAreThere) {
  UniformOptions o = options();
  o.recompute = Recompute::kNone;
  o.states = States::kHost;
  const Program program = lower(plan_of(o), llama()).value();
  const StreamRefs refs(program);
  const Expansion x = expand(program, program.classes[0], refs);
  const auto in = issued(x, [](const Op&op) { return op.name == "copy_in(states)"; }),
             out = issued(x, copies_out);
  ASSERT_EQ(in.size(), out.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto before = x.dependencies_of(in[i]);
    const auto computes = [&](std::uint32_t b) { return x.ops[b].op->kind == OpKind::kCompute; };
    EXPECT_TRUE(std::ranges::any_of(before, computes)) << i;
    if (i < 2) continue;
    EXPECT_EQ(std::ranges::count(before, out[i - 2]), 1) << i;
  }
}

TEST(Offload, IsNoWayOfPartitionsSlicesAndEmbeddings) {
  Plan p = plan_of(options());
  p.vocabulary.recompute = Recompute::kOffload;
  EXPECT_FALSE(validate(p, llama()).empty());
  p = plan_of({.dp = 2,
               .zero = 3,
               .recompute = Recompute::kOffload,
               .micro_batch = 2,
               .global_batch = 8,
               .sequence = 64});
  EXPECT_TRUE(validate(p, llama()).empty());
  p.stages[0].runs[0].strategy.slices = 2;
  const base::Diagnostics faults = validate(p, llama());
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults.front().message.find("recompute is offload with slices"), std::string::npos);
}

}  // namespace
}  // namespace orrery::plan

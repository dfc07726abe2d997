// Partitioned layers as Programs: every message that the algebra lists and no other, the sums that
// it asks for, and conventional splits that send what the conventional lowering sends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/json.h"
#include "check_programs.h"
#include "mutant.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "plan/partition/layer_graph.h"
#include "plan/program/memory.h"
#include "plan/program/messages.h"
#include "small_program.h"

namespace orrery::plan {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Texts = std::array<const char*, 10>;  // by LayerOperator

LayerPartition partition(const Texts& texts) {
  LayerPartition p;
  for (const char* text : texts) p.push_back(parse_sequence(text).value());
  return p;
}

Plan partitioned_plan(const model::ModelSpec& model, const LayerStrategy& vocabulary,
                      const Texts& texts, std::int64_t micro_batches = 2) {
  Plan p = small_plan(model,
                      {.micro_batch = 8 / micro_batches, .precision = model::Precision::kFloat32});
  p.vocabulary = vocabulary;
  p.stages[0].runs[0].strategy = {.dp = vocabulary.ranks()};
  p.stages[0].runs[0].partition = partition(texts);
  return p;
}

Program lowered(const Plan& plan, const model::ModelSpec& model) {
  auto program = lower(plan, model);
  ORRERY_CHECK(program.has_value(), "{}", base::to_string(program.error()));
  return *std::move(program);
}

void expect_correct(const Program& p) {
  for (const Fault& f : check(p)) ADD_FAILURE() << f.message;
}

constexpr LayerStrategy kFour{.dp = 4}, kEight{.tp = 2, .dp = 4};
const Texts kWholeLayer{"M,K", "P2x2", "B,H", "B,M", "H,L", "P2x2", "K,M", "P2x2", "B,K", "P2x2"};

TEST(LowerPartition, ProgramsAreCorrect) {
  for (const bool llama : {false, true}) {
    const model::ModelSpec m = small_model(llama);
    expect_correct(lowered(partitioned_plan(m, kFour, kWholeLayer), m));
    expect_correct(lowered(partitioned_plan(m, kEight,
                                            {"B,P2x2+1", "K,P2x2", "B,H,L", "B,M,M", "H,L,M",
                                             "N,P2x2+1", "R,M,K", "P2x2,N", "M,P2x2+1", "P2x2,K"}),
                           m));
  }
}

/// As the layers of `sharding` have their states, gradients and activations.
Plan sharded_plan(const model::ModelSpec& model, const LayerStrategy& vocabulary,
                  const Texts& texts, std::int64_t micro_batches, const LayerStrategy& sharding) {
  Plan p = partitioned_plan(model, vocabulary, texts, micro_batches);
  LayerStrategy& s = p.stages[0].runs[0].strategy;
  s.zero = sharding.zero;
  s.recompute = sharding.recompute;
  s.grad_reduce = sharding.grad_reduce;
  return p;
}

// rows of a primitive, devices of splits and both share blocks here
const Texts kSharing{"B,R,M",  "B,P2x2", "B,H,H",  "-",     "B,H,H",
                     "N,P2x2", "R,M,K",  "M,P2x2", "B,B,K", "B,P2x2+1"};

TEST(LowerPartition, ShardedAndRecomputedProgramsAreCorrect) {
  for (const bool llama : {false, true})
    for (const std::int64_t micro_batches : {1, 2})
      for (int zero = 0; zero <= 3; ++zero)
        for (const Recompute recompute : {Recompute::kNone, Recompute::kFull})
          for (const GradReduce reduce :
               {GradReduce::kStep, GradReduce::kMicroBatch, GradReduce::kEnd}) {
            if (reduce == GradReduce::kMicroBatch && zero < 2) continue;
            const model::ModelSpec m = small_model(llama);
            SCOPED_TRACE(fmt::format("zero {} recompute {} reduce {} micro-batches {}", zero,
                                     to_string(recompute), to_string(reduce), micro_batches));
            expect_correct(
                lowered(sharded_plan(m, kEight, kSharing, micro_batches,
                                     {.zero = zero, .recompute = recompute, .grad_reduce = reduce}),
                        m));
          }
}

TEST(LowerPartition, StatesAreShardedOverTheDevicesOfABlock) {
  const model::ModelSpec m = small_model();
  for (int zero = 0; zero <= 3; ++zero) {
    const Program p = lowered(
        sharded_plan(
            m, kEight, kSharing, 2,
            {.zero = zero, .grad_reduce = zero >= 2 ? GradReduce::kMicroBatch : GradReduce::kStep}),
        m);
    int found = 0;
    for (const BufferDecl& b : p.buffers) {
      // M,P2x2: two devices have the same block of 32 x 64 / 4
      if (!b.persistent || b.name.find(" of mlp_in [partition") == std::string::npos) continue;
      int sharded_from = 1;  // zero stage
      if (b.name.starts_with("parameter")) sharded_from = 3;
      if (b.name.starts_with("gradient")) sharded_from = 2;
      EXPECT_EQ(b.elements(), 32 * 64 / 4 / (zero < sharded_from ? 1 : 2))
          << b.name << " zero " << zero;
      ++found;
    }
    EXPECT_EQ(found, 4) << zero;
  }
}

TEST(LowerPartition, RecomputedLayersKeepTheirInputAlone) {
  const model::ModelSpec m = small_model(true);
  for (const Texts& texts : {kWholeLayer, Texts{"P2x2+1", "P2x2+1", "H,H", "H,H", "H,H", "P2x2",
                                                "P2x2+1", "P2x2+1", "P2x2+1", "B,M"}}) {
    const Program p =
        lowered(sharded_plan(m, kFour, texts, 2, {.zero = 3, .recompute = Recompute::kFull}), m);
    expect_correct(p);
    std::vector<BufferRef> kept;
    for (const Template& t : p.templates) {
      if (!t.name.starts_with("block[partition") || !t.name.ends_with(".forward")) continue;
      for (const Op& op : t.ops) kept.insert(kept.end(), op.writes.begin(), op.writes.end());
      for (const Op& op : t.ops)
        for (const BufferRef& dead : op.frees) std::erase(kept, dead);
    }
    ASSERT_EQ(kept.size(), 1U);
    EXPECT_EQ(kept.front().layer_offset, 1);  // what goes on to the next layer
  }
}

/// Of the forward and backward templates of the partitioned layers, those with this name.
std::vector<Op> ops_with(const Program& p, const std::string& part) {
  std::vector<Op> found;
  for (const Template& t : p.templates)
    if (t.name.starts_with("block[partition"))
      for (const Op& op : t.ops)
        if (op.name.find(part) != std::string::npos) found.push_back(op);
  return found;
}

std::int64_t elements_sent(const Program& p, const std::vector<Op>& ops) {
  std::int64_t sum = 0;
  for (const Op& op : ops)
    if (states_messages(op))
      for (const Message& m : messages_of(p, op, p.classes.front()).all) sum += m.bytes / 4;
  return sum;
}

// 6 (S - 1) + 2 messages a device, 2 (S - 1)(|I| + |W| + |dO|) + 2 |W| elements of one block each.
TEST(LowerPartition, PrimitivesSendWhatTheAlgebraCounts) {
  const model::ModelSpec m = small_model();
  const Program p = lowered(partitioned_plan(m, kFour, kWholeLayer), m);
  const std::vector<Op> shifts = ops_with(p, "shift(mlp_in ");
  ASSERT_EQ(shifts.size(), 6 * (2 - 1) + 2);
  for (const Op& op : shifts)
    EXPECT_EQ(messages_of(p, op, p.classes.front()).all.size(), 4) << op.name;
  const std::int64_t tokens = 4 * 16, i = tokens * 32 / 4, o = tokens * 64 / 4, w = 32 * 64 / 4;
  EXPECT_EQ(elements_sent(p, shifts), 4 * (2 * (i + w + o) + 2 * w));
}

TEST(LowerPartition, NestedPrimitivesSendWhatTheAlgebraCounts) {
  const model::ModelSpec m = small_model();
  const Texts texts{"B,B,M,K", "B,B,M,M", "B,B,H,L",   "B,B,M,M", "B,H,H,M",
                    "B,B,M,M", "B,M,M,K", "P2x2,P2x2", "M,K,M,K", "B,B,M,M"};
  const Program p = lowered(partitioned_plan(m, {.tp = 2, .dp = 8}, texts, 1), m);
  expect_correct(p);
  const Partition nested(parse_sequence("P2x2,P2x2").value());
  std::size_t listed = 0;
  for (const Phase phase : {Phase::kF, Phase::kB, Phase::kG})
    for (int t = 0; t < nested.steps(); ++t) listed += moves(nested, phase, t).size();
  EXPECT_EQ(ops_with(p, "shift(mlp_in ").size(), listed);
}

TEST(LowerPartition, EveryStepOfAProductOverlapsTheMovesForTheNext) {
  const model::ModelSpec m = small_model();
  const Program p = lowered(partitioned_plan(m, kFour, kWholeLayer), m);
  for (const Op& op : ops_with(p, "shift(")) EXPECT_EQ(op.stream, Stream::kTensor) << op.name;
  std::vector<int> steps;
  for (const Op& op : ops_with(p, "mlp_in ")) {
    if (op.kind != OpKind::kCompute || op.phase != Phase::kF) continue;
    steps.push_back(op.temporal_step);
    EXPECT_EQ(op.writes.size(), op.temporal_step == 0 ? 1 : 0);
    EXPECT_EQ(op.updates.size(), op.temporal_step == 0 ? 0 : 1);
  }
  EXPECT_THAT(steps, testing::ElementsAre(0, 1));
}

TEST(LowerPartition, ChangesOfLayoutSendWhatTheLayoutsCount) {
  const model::ModelSpec m = small_model();
  const LayerPartition layer = partition(kWholeLayer);
  const Program p = lowered(partitioned_plan(m, kFour, kWholeLayer), m);
  constexpr std::array kOutput{Dimension::kBatch, Dimension::kTokens, Dimension::kOut},
      kInput{Dimension::kBatch, Dimension::kTokens, Dimension::kIn};
  const Partition stream(layer[kStreamIn]), qkv(layer[kQkvProduct]);
  const Traffic t =
      traffic(layout_of(stream, kOutput, Phase::kF, 0), layout_of(qkv, kInput, Phase::kF, 0), 2, 2);
  const std::vector<Op> a = ops_with(p, "redistribute(a)");
  ASSERT_FALSE(a.empty());
  EXPECT_EQ(elements_sent(p, {a.front()}), t.in_hosts * (4 * 16 * 32) >> kShareBits);
}

/// What the collectives of one layer bring a rank, in bytes of the whole tensor.
std::int64_t reduced_bytes(const Program& p, std::string_view layer, std::size_t* count) {
  std::int64_t sum = 0;
  for (const Template& t : p.templates) {
    if (!t.name.starts_with(layer)) continue;
    for (const Op& op : t.ops) {
      if (op.kind != OpKind::kCollective || p.groups[op.group].size == 1) continue;
      if (states_messages(op)) {
        EXPECT_THAT(messages_of(p, op, p.classes.front()).all, IsEmpty()) << op.name;
        continue;
      }
      EXPECT_EQ(op.collective, Collective::kAllReduce) << op.name;
      sum += op.bytes * p.groups[op.group].size;
      ++*count;
    }
  }
  return sum;
}

TEST(LowerPartition, TensorParallelismByIdBitsSendsWhatTheConventionalLoweringSends) {
  for (const bool llama : {false, true}) {
    const model::ModelSpec m = small_model(llama);
    const Program bits = lowered(
        partitioned_plan(m, {.tp = 4},
                         {"R,R", "K,K", "H,H", "H,H", "H,H", "N,N", "R,R", "K,K", "K,K", "N,N"}),
        m);
    expect_correct(bits);
    Plan conventional =
        small_plan(m, {.tp = 4, .micro_batch = 4, .precision = model::Precision::kFloat32});
    const Program plain = lowered(conventional, m);
    std::size_t by_bits = 0, by_name = 0;
    EXPECT_EQ(reduced_bytes(bits, "block[partition", &by_bits),
              reduced_bytes(plain, "block[", &by_name));
    EXPECT_EQ(by_bits, by_name);
    EXPECT_EQ(by_bits, 4U);
  }
}

TEST(LowerPartition, DataAndTensorParallelismReduceTheSameGradients) {
  const model::ModelSpec m = small_model(true);
  const Program bits = lowered(
      partitioned_plan(m, {.tp = 2, .dp = 2},
                       {"B,R", "B,K", "B,H", "B,H", "B,H", "B,N", "B,R", "B,K", "B,K", "B,N"}),
      m);
  const Program plain = lowered(
      small_plan(m, {.tp = 2, .dp = 2, .micro_batch = 2, .precision = model::Precision::kFloat32}),
      m);
  std::size_t count = 0;
  EXPECT_EQ(reduced_bytes(bits, "block[partition", &count), reduced_bytes(plain, "block[", &count));
}

TEST(LowerPartition, RanksHoldTheirBlocksAlone) {
  const model::ModelSpec m = small_model();
  const Program p = lowered(partitioned_plan(m, kFour, kWholeLayer), m);
  for (const ParameterUnit& u : p.units) {
    if (!u.name.starts_with("mlp_in")) continue;
    EXPECT_EQ(u.elements, 32 * 64 / 4);
    EXPECT_EQ(p.groups[u.data_group].size, 1);
    EXPECT_EQ(u.parameters.front().uses, 2);
  }
}

TEST(LowerPartition, GroupsOfScatteredBitsAreTheirOwn) {
  const Group scattered = Group::of_bits("", 0b1010), together = Group::of_bits("", 0b0110);
  EXPECT_EQ(scattered.size, 4);
  EXPECT_EQ(scattered.base(0b1111), 0b0101);
  EXPECT_EQ(scattered.index(0b1101), 0b10);
  EXPECT_EQ(scattered.member(0b0101, 0b11), 0b1111);
  EXPECT_EQ(scattered.span(), 16);
  EXPECT_EQ(together, (Group{"", 4, 2}));
  EXPECT_EQ(Group::of_bits("", 0).size, 1);
}

// ---- planted faults ----

TEST(CheckPartition, MissingStepIsCaught) {
  const model::ModelSpec m = small_model();
  const Program p = lowered(partitioned_plan(m, kFour, kWholeLayer), m);
  for (const char* name : {"mlp_in 1", "projection 1"}) {
    Mutant forward(p);
    forward.drop(0, forward.first(0, [&](const OpInstance& o) {
      return o.op->name == name && o.op->phase == Phase::kF;
    }));
    EXPECT_CAUGHT(forward, FaultKind::kNeverReduced);
    Mutant gradient(p);
    gradient.drop(0, gradient.first(0, [&](const OpInstance& o) {
      return o.op->name == name && o.op->phase == Phase::kG;
    }));
    EXPECT_CAUGHT(gradient, FaultKind::kContributionMissing);
  }
}

TEST(CheckPartition, SumOverOtherDevicesIsCaught) {
  const model::ModelSpec m = small_model();
  Program p =
      lowered(partitioned_plan(
                  m, kFour, {"B,R", "B,K", "B,H", "B,H", "B,H", "B,N", "B,R", "B,K", "B,K", "B,N"}),
              m);
  const GroupId other = p.groups.push_back(Group::of_bits("other", 0b10));
  Mutant m1(p);
  m1.edit(0, m1.named(0, "all_reduce(p)")).group = other;
  EXPECT_CAUGHT(m1, FaultKind::kNeverReduced);
  Mutant m2(p);
  m2.drop(0, m2.named(0, "all_reduce(p)"));
  EXPECT_CAUGHT(m2, FaultKind::kNeverReduced);
}

TEST(CheckPartition, SendersThatAreNoPermutationAreCaught) {
  const model::ModelSpec m = small_model();
  const Program p = lowered(partitioned_plan(m, kFour, kWholeLayer), m);
  Mutant mutant(p);
  Op& shift = mutant.edit(
      0, mutant.first(0, [](const OpInstance& o) { return o.op->name.starts_with("shift("); }));
  shift.senders[0] = shift.senders[1];
  EXPECT_CAUGHT(mutant, FaultKind::kWrongPeer);
}

TEST(CheckPartition, RedistributionOfAnotherSizeIsCaught) {
  const model::ModelSpec m = small_model();
  Program p = lowered(partitioned_plan(m, kFour, kWholeLayer), m);
  Mutant mutant(p);
  mutant.edit(0, mutant.named(0, "redistribute(a)")).bytes += 4;
  EXPECT_CAUGHT(mutant, FaultKind::kSizeMismatch);
  Redistribution& r = p.redistributions[*ops_with(p, "redistribute(a)").front().redistribution];
  r.tensors.front().extents[2] *= 2;
  EXPECT_FALSE(check(p).empty());
}

// ---- plans ----

TEST(PartitionedPlan, ReadsWhatItWrites) {
  const model::ModelSpec m = small_model();
  const Plan plan = partitioned_plan(m, kFour, kWholeLayer);
  const auto read =
      read_plan(base::Node::parse_text(base::to_text(to_json(plan)), "plan.json").value());
  ASSERT_TRUE(read) << base::to_string(read.error());
  EXPECT_EQ(*read, plan);
  Plan sharded = plan;
  sharded.stages[0].runs[0].strategy = {
      .dp = 4, .zero = 2, .recompute = Recompute::kFull, .grad_reduce = GradReduce::kMicroBatch};
  EXPECT_EQ(read_plan(base::Node::parse_text(base::to_text(to_json(sharded)), "plan.json").value())
                .value(),
            sharded);
}

std::string faults_of(const Plan& plan, const model::ModelSpec& m) {
  const base::Diagnostics faults = validate(plan, m);
  return faults.empty() ? "" : base::to_string(faults);
}

TEST(PartitionedPlan, NamesWhatCannotBe) {
  const model::ModelSpec m = small_model();
  const auto with = [&](std::size_t op, const char* text) {
    Texts texts = kWholeLayer;
    texts[op] = text;
    return faults_of(partitioned_plan(m, kFour, texts), m);
  };
  EXPECT_EQ(with(kQkvProduct, "P2x2"), "");
  EXPECT_THAT(with(kQkvProduct, "K"), HasSubstr("takes 1 id bits of 2"));
  EXPECT_THAT(with(kQkvProduct, "H,K"), HasSubstr("has no dimension H"));
  EXPECT_THAT(with(kScoreProduct, "P2x2"), HasSubstr("no product of a matrix"));
  EXPECT_THAT(with(kSoftmaxOf, "L,B"), HasSubstr("has no dimension L"));
  const auto sharded = [&](const LayerStrategy& s) {
    Plan plan = partitioned_plan(m, kFour, kWholeLayer);
    plan.stages[0].runs[0].strategy = s;
    return faults_of(plan, m);
  };
  EXPECT_EQ(sharded({.dp = 4, .zero = 3}), "");
  EXPECT_THAT(sharded({.tp = 4}), HasSubstr("in place of degrees"));
  EXPECT_THAT(sharded({.dp = 4, .recompute = Recompute::kSelective}),
              HasSubstr("recomputation 'selective'"));
  EXPECT_THAT(sharded({.dp = 4, .zero = 1, .grad_reduce = GradReduce::kMicroBatch}),
              HasSubstr("grad_reduce is micro_batch with zero = 1"));
  Plan split = partitioned_plan(m, kFour, kWholeLayer);
  split.schedule = Schedule::kZeroBubbleH1;
  EXPECT_THAT(faults_of(split, m), HasSubstr("splits the backward"));
}

}  // namespace
}  // namespace orrery::plan

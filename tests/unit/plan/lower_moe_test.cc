// Blocks of experts: operations, bytes and states by hand, and the checker's view of their rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"
#include "tests/unit/plan/layer_templates.h"
#include "tests/unit/plan/mutant.h"
#include "tests/unit/plan/small_program.h"

namespace orrery::plan {
namespace {

using testing::ElementsAre;
using testing::IsSupersetOf;

model::ModelSpec mixtral() {
  model::ModelSpec m = model::find_model("mixtral-tiny").value();
  m.capacity_factor = 1.25;
  return m;
}
model::ModelSpec with_shared_expert() {
  model::ModelSpec m = mixtral();
  m.shared_ffn = 96;
  return m;
}

/// Four sequences of 64 tokens: an expert takes 64 * 2 / 8 * 1.25 = 20 rows of each.
LayerContext context(std::int64_t micro_batches = 4) {
  LayerContext c;
  c.precision = model::Precision::kFloat32;
  c.sequence = 64;
  c.micro_batch_sequences = 4;
  c.micro_batches = micro_batches;
  c.global_batch = 4 * micro_batches;
  return c;
}
std::vector<std::string> names(const LayerTemplates& t, TemplateId id) {
  std::vector<std::string> all;
  for (const Op& op : t.program.templates[id].ops)
    all.push_back((op.recomputed ? "again " : "") + op.name);
  return all;
}

TEST(LowerExperts, OneRankRoutesAndExchangesNothing) {
  const LayerTemplates t = lower_block(mixtral(), {}, context());
  EXPECT_THAT(names(t, t.forward),
              ElementsAre("norm1", "qkv", "attention", "projection", "residual1", "norm2", "router",
                          "dispatch", "expert_in", "expert_activation", "expert_out", "combine",
                          "residual2"));
  EXPECT_THAT(
      names(t, t.backward),
      ElementsAre("combine", "expert_out", "expert_activation", "expert_in", "dispatch", "router",
                  "add(router dc)", "norm2", "projection", "attention", "qkv", "norm1"));
}

TEST(LowerExperts, RowsTravelTwiceEachWay) {
  const LayerTemplates t = lower_block(mixtral(), {.tp = 2, .dp = 2, .ep = 2}, context());
  EXPECT_THAT(
      names(t, t.forward),
      ElementsAre("norm1", "qkv", "attention", "projection", "all_reduce(p)", "residual1", "norm2",
                  "router", "dispatch", "all_to_all(rows)", "expert_in", "expert_activation",
                  "expert_out", "all_to_all(rows out)", "combine", "all_reduce(q)", "residual2"));
  EXPECT_THAT(names(t, t.backward),
              ElementsAre("combine", "all_reduce(dgates)", "all_to_all(d rows out)", "expert_out",
                          "expert_activation", "expert_in", "all_to_all(d rows)", "dispatch",
                          "all_reduce(dc)", "router", "add(router dc)", "norm2", "projection",
                          "attention", "qkv", "all_reduce(da)", "norm1"));
  const Op& sent = op_of(t, t.forward, "all_to_all(rows)");
  EXPECT_EQ(sent.bytes, 2 * 8 * 20 * 128 * 4);  // two sequences, eight experts of 20 rows, fp32
  EXPECT_EQ(sent.stream, Stream::kTensor);
  EXPECT_EQ(t.program.groups[sent.group], (Group{"expert", 2, 2}));
  const model::SegmentShape& in = t.program.segments[op_of(t, t.forward, "expert_in").segment];
  EXPECT_EQ(in.token_count(), 2 * 8 * 20);  // rows of both ranks, for four of the experts
  EXPECT_EQ(in.experts, 4);
  EXPECT_EQ(in.out, 2 * 176 / 2);
}

// Llama 4: gates' gradients come of what went to the experts, so they are summed behind dispatch.
TEST(LowerExperts, GatesOfInputsGoToDispatch) {
  model::ModelSpec m = mixtral();
  m.routing = {.sigmoid = true, .normalised = false, .of_inputs = true};
  const LayerTemplates t = lower_block(m, {.tp = 2, .dp = 2, .ep = 2}, context());
  EXPECT_THAT(names(t, t.backward),
              ElementsAre("combine", "all_to_all(d rows out)", "expert_out", "expert_activation",
                          "expert_in", "all_to_all(d rows)", "dispatch", "all_reduce(dgates)",
                          "all_reduce(dc)", "router", "add(router dc)", "norm2", "projection",
                          "attention", "qkv", "all_reduce(da)", "norm1"));
  EXPECT_EQ(op_of(t, t.forward, "dispatch").reads.size(), 3U);
  EXPECT_EQ(op_of(t, t.forward, "combine").reads.size(), 2U);
  EXPECT_EQ(op_of(t, t.backward, "dispatch").writes.size(), 2U);
}

TEST(LowerExperts, SequenceParallelRoutesItsOwnTokens) {
  const LayerTemplates t =
      lower_block(mixtral(), {.tp = 2, .dp = 2, .sequence_parallel = true, .ep = 2}, context());
  EXPECT_THAT(names(t, t.forward),
              ElementsAre("norm1", "all_gather(a)", "qkv", "attention", "projection",
                          "reduce_scatter(p)", "residual1", "norm2", "router", "all_gather(c)",
                          "all_gather(gates)", "all_gather(choice)", "dispatch", "all_to_all(rows)",
                          "expert_in", "expert_activation", "expert_out", "all_to_all(rows out)",
                          "combine", "reduce_scatter(q)", "residual2"));
  EXPECT_EQ(t.program.segments[op_of(t, t.forward, "router").segment].tokens, 32);
  EXPECT_EQ(t.program.segments[op_of(t, t.forward, "dispatch").segment].tokens, 64);
  // The router's gradient is of this rank's tokens alone: it is summed with those of the norms, 2 *
  // 128 + 8 * 128 numbers.
  EXPECT_EQ(op_of(t, t.sync, "all_reduce(replicated gradients)").slice_elements, 2 * 128 + 8 * 128);
}

// Rows of 32 numbers travel, not of 128; the shared expert reads what the block's norm makes.
TEST(LowerExperts, InALatentSendItsRowsAndSumTheSharedOneApart) {
  model::ModelSpec m = with_shared_expert();
  m.shared_gate = false;
  m.expert_hidden = 32;
  const LayerTemplates t =
      lower_block(m, {.tp = 2, .dp = 2, .sequence_parallel = true, .ep = 2}, context());
  EXPECT_THAT(
      names(t, t.forward),
      ElementsAre("norm1", "all_gather(a)", "qkv", "attention", "projection", "reduce_scatter(p)",
                  "residual1", "norm2", "router", "all_gather(c)", "to_latent",
                  "all_gather(latent)", "all_gather(gates)", "all_gather(choice)", "dispatch",
                  "all_to_all(rows)", "shared_in", "shared_activation", "shared_out",
                  "reduce_scatter(shared z)", "expert_in", "expert_activation", "expert_out",
                  "all_to_all(rows out)", "combine", "reduce_scatter(latent out)", "from_latent",
                  "add(shared z)", "residual2"));
  EXPECT_EQ(op_of(t, t.forward, "all_to_all(rows)").bytes, 2 * 8 * 20 * 32 * 4);
  EXPECT_EQ(op_of(t, t.forward, "all_gather(latent)").bytes, 2 * 64 * 32 * 4);
  const model::SegmentShape& in = t.program.segments[op_of(t, t.forward, "expert_in").segment];
  EXPECT_EQ(in.in, 32);
  // The router's gradient, those of both products and of the norms are sums over the tensor group.
  EXPECT_EQ(op_of(t, t.sync, "all_reduce(replicated gradients)").slice_elements,
            2 * 128 + 8 * 128 + 2 * 32 * 128);
}

// Each tensor rank sends its own half of the tokens, 64 / 2 * 2 / 8 * 1.25 = 10 rows an expert, to
// experts that stand whole on one of four neighbours.
TEST(LowerExperts, FoldedExpertsTakeTheTokensOfEachTensorRank) {
  const LayerStrategy folded{
      .tp = 2, .dp = 4, .zero = 1, .sequence_parallel = true, .ep = 4, .folded = true};
  const LayerTemplates t = lower_block(mixtral(), folded, context());
  EXPECT_THAT(names(t, t.forward),
              ElementsAre("norm1", "all_gather(a)", "qkv", "attention", "projection",
                          "reduce_scatter(p)", "residual1", "norm2", "router", "dispatch",
                          "all_to_all(rows)", "expert_in", "expert_activation", "expert_out",
                          "all_to_all(rows out)", "combine", "residual2"));
  EXPECT_THAT(names(t, t.backward),
              ElementsAre("combine", "all_to_all(d rows out)", "expert_out", "expert_activation",
                          "expert_in", "all_to_all(d rows)", "dispatch", "router", "add(router dc)",
                          "norm2", "all_gather(dp)", "projection", "attention",
                          "again all_gather(a)", "qkv", "reduce_scatter(da)", "norm1"));
  const Op& sent = op_of(t, t.forward, "all_to_all(rows)");
  EXPECT_EQ(sent.bytes, 1 * 8 * 10 * 128 * 4);
  EXPECT_EQ(t.program.groups[sent.group], (Group{"expert", 4, 1}));
  const model::SegmentShape& in = t.program.segments[op_of(t, t.forward, "expert_in").segment];
  EXPECT_EQ(in.token_count(), 8 * 10);
  EXPECT_EQ(in.experts, 2);
  EXPECT_EQ(in.out, 2 * 176);
  const ParameterUnit& experts = t.program.units[UnitId(1)];
  EXPECT_EQ(t.program.groups[experts.data_group], (Group{"expert data", 2, 4}));
  EXPECT_EQ(experts.elements, 2 * 67584);
}

// Both split as much: eight ranks hold each expert once, whole or in halves.
TEST(LowerExperts, FoldingSplitsExpertsAsFarAsTensorParallelismDoes) {
  const LayerStrategy halves{.tp = 2, .dp = 4, .sequence_parallel = true, .ep = 4};
  LayerStrategy whole = halves;
  whole.ep = 8;
  whole.folded = true;
  EXPECT_EQ(persistent_bytes(lower_block(mixtral(), whole, context())),
            persistent_bytes(lower_block(mixtral(), halves, context())));
}

TEST(LowerExperts, ASharedExpertStaysSplitWhereTheOthersAreFolded) {
  for (const bool gate : {false, true}) {
    model::ModelSpec m = with_shared_expert();
    m.shared_gate = gate;
    const LayerTemplates t = lower_block(
        m, {.tp = 2, .dp = 2, .sequence_parallel = true, .ep = 4, .folded = true}, context());
    EXPECT_THAT(names(t, t.forward),
                IsSupersetOf({"all_gather(c)", "shared_out", "reduce_scatter(shared z)"}));
    EXPECT_THAT(names(t, t.backward), IsSupersetOf({"reduce_scatter(shared dc)"}));
    EXPECT_EQ(t.program.segments[op_of(t, t.forward, "shared_in").segment].tokens, 64);
    EXPECT_EQ(t.program.segments[op_of(t, t.forward, "combine").segment].tokens, 32);
  }
}

TEST(LowerExperts, ASharedExpertRunsWhileRowsTravel) {
  const LayerTemplates t = lower_block(with_shared_expert(), {.dp = 2, .ep = 2}, context());
  EXPECT_THAT(names(t, t.forward),
              IsSupersetOf({"all_to_all(rows)", "shared_in", "shared_activation", "shared_out"}));
  EXPECT_THAT(names(t, t.backward),
              IsSupersetOf({"shared_out", "shared_activation", "shared_in", "add(shared dc)"}));
  EXPECT_EQ(t.program.segments[op_of(t, t.forward, "combine").segment].gates(), 3);
}

TEST(LowerExperts, FullRecomputationSendsTheRowsAgain) {
  const LayerTemplates t =
      lower_block(mixtral(), {.dp = 2, .recompute = Recompute::kFull, .ep = 2}, context());
  int exchanges = 0;
  for (const std::string& n : names(t, t.backward))
    exchanges += n.find("all_to_all") == std::string::npos ? 0 : 1;
  EXPECT_EQ(exchanges, 4);
  // its input alone
  EXPECT_EQ(template_memory(t.program, t.forward).delta_bytes, 2 * 64 * 128 * 4);
}

// Block: 4 * 128^2 + 8 * 128 + 2 * 128 = 66816 parameters beside eight experts of 3 * 128 * 176 =
// 67584; 16 bytes each in fp32.
TEST(LowerExperts, ExpertsLiveOnOneOfEpRanks) {
  for (const int ep : {1, 2, 4}) {
    const LayerTemplates t = lower_block(mixtral(), {.dp = 4, .ep = ep}, context());
    EXPECT_EQ(persistent_bytes(t), 16 * (66816 + 8 / ep * 67584)) << ep;
  }
  EXPECT_EQ(mixtral().block_parameters(), 66816 + 8 * 67584);
}

TEST(LowerExperts, TheirGradientsAreReducedOverTheOtherReplicas) {
  const LayerTemplates t =
      lower_block(mixtral(), {.tp = 2, .dp = 4, .zero = 1, .ep = 2}, context());
  ASSERT_EQ(t.program.units.size(), 2u);
  const ParameterUnit &block = t.program.units[UnitId(0)], &experts = t.program.units[UnitId(1)];
  EXPECT_EQ(t.program.groups[block.data_group], (Group{"data", 4, 2}));
  EXPECT_EQ(t.program.groups[experts.data_group], (Group{"expert data", 2, 4}));
  EXPECT_THAT(names(t, t.sync),
              ElementsAre("reduce_scatter(gradient)", "reduce_scatter(gradient)"));
  EXPECT_EQ(experts.elements, 4 * 67584 / 2);
  // Parameters and gradients whole, moments and over the owners: block 66816 - 1280 replicated,
  // halved, + 1280.
  const std::int64_t own = (66816 - 1280) / 2 + 1280, expert = experts.elements;
  EXPECT_EQ(persistent_bytes(t), 8 * own + 8 * own / 4 + 8 * expert + 8 * expert / 2);
}

TEST(LowerExperts, ExpertsThatLieOnAllReplicasAreNotReduced) {
  const LayerTemplates t = lower_block(mixtral(), {.dp = 4, .zero = 3, .ep = 4}, context(1));
  EXPECT_THAT(names(t, t.gather_forward), ElementsAre("all_gather(weights)"));  // the block's
  EXPECT_THAT(names(t, t.sync), ElementsAre("reduce_scatter(gradient)", "accumulate(gradient)"));
  EXPECT_THAT(names(t, t.update), ElementsAre("adamw", "adamw"));
}

// ---- the checker ----

Program small_mixture(int tp = 1, bool of_inputs = false) {
  model::ModelSpec m = small_model(true);
  m.experts = 4;
  m.experts_per_token = 2;
  m.routing.of_inputs = of_inputs;
  return small_program(m, {.tp = tp, .dp = 4, .ep = 2});
}
BufferRef named(const Program& p, const std::string& start) {
  for (const BufferId id : p.buffers.ids())
    if (p.buffers[id].name.starts_with(start)) return {id, 0};
  ADD_FAILURE() << "no buffer " << start;
  return {};
}

TEST(CheckExperts, CorrectProgramsHaveNoFaults) {
  for (const int tp : {1, 2})
    for (const bool of_inputs : {false, true})
      EXPECT_TRUE(check(small_mixture(tp, of_inputs)).empty()) << tp;
}

// Dispatch's backward reads what it sent: it is there again, also where nothing else reads it.
TEST(CheckExperts, GatesOfInputsFindTheirTokensInEveryRecomputation) {
  model::ModelSpec m = small_model(true);
  m.experts = 4;
  m.experts_per_token = 2;
  m.routing.of_inputs = true;
  for (const bool parallel : {false, true})
    for (const Recompute recompute :
         {Recompute::kNone, Recompute::kSelective, Recompute::kFull, Recompute::kOperator})
      EXPECT_TRUE(check(small_program(m, {.tp = 2,
                                          .dp = 4,
                                          .ep = 2,
                                          .sequence_parallel = parallel,
                                          .recompute = recompute}))
                      .empty())
          << to_string(recompute) << parallel;
}

TEST(CheckExperts, AnExpertThatReadsItsOwnRanksRowsMissesTokens) {
  const Program p = small_mixture();
  Mutant m(p);
  m.edit(0, m.named(0, "expert_in")).reads = {named(p, "rows sent")};
  EXPECT_TRUE(m.has(FaultKind::kContributionMissing));
}

TEST(CheckExperts, RowsGoBackOverTheGroupTheyCameFrom) {
  const Program p = small_mixture();
  Mutant m(p);
  const std::size_t i =
      m.first(0, [](const OpInstance& o) { return o.op->name == "all_to_all(rows out)"; });
  for (const GroupId g : p.groups.ids())
    if (p.groups[g].name == "expert data") m.edit(0, i).group = g;
  EXPECT_TRUE(m.has(FaultKind::kContributionMissing));
}

TEST(CheckExperts, ReplicasThatNoGroupReachesAreMissing) {
  Program p = small_mixture();
  for (const UnitId u : p.units.ids())
    if (p.units[u].strategy.ep > 1) p.groups[p.units[u].data_group].size = 1;
  EXPECT_TRUE(Mutant(p).has(FaultKind::kContributionMissing));
}

TEST(CheckExperts, PartialRowsMakePartialGates) {
  for (const bool of_inputs : {false, true}) {
    const Program p = small_mixture(2, of_inputs);
    Mutant m(p);
    m.drop(0, m.first(0, [](const OpInstance& o) { return o.op->name == "all_reduce(dgates)"; }));
    EXPECT_TRUE(m.has(FaultKind::kNeverReduced)) << of_inputs;
  }
}

TEST(CheckExperts, AWholeSumIsNotAddedToAPartialOne) {
  const Program p = small_mixture(2);
  Mutant m(p);
  const std::size_t reduced =
      m.first(0, [](const OpInstance& o) { return o.op->name == "all_reduce(dc)"; });
  const std::size_t sum =
      m.first(0, [](const OpInstance& o) { return o.op->name == "add(router dc)"; });
  m.move(0, reduced, sum);
  EXPECT_TRUE(m.has(FaultKind::kNeverReduced));
}

}  // namespace
}  // namespace orrery::plan

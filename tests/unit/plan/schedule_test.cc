// Orders of passes: worked examples, and every schedule against its definition pass by pass.
#include "plan/program/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>
#include <string>
#include <tuple>

#include "tests/unit/plan/small_program.h"

namespace orrery::plan {
namespace {

using testing::HasSubstr;

void walk(const std::vector<PassNode>& order, std::int64_t variable, std::vector<PassNode>& out) {
  for (const PassNode& n : order) {
    if (n.body.empty()) {
      out.push_back(n);
      out.back().micro_batch += variable;
    }
    for (std::int64_t i = n.begin; i < n.end; i += n.step) walk(n.body, i, out);
  }
}
std::vector<PassNode> unrolled(const std::vector<PassNode>& order) {
  std::vector<PassNode> out;
  walk(order, 0, out);
  return out;
}

/// "F0.1 B0.0": kind, chunk, micro-batch; ' marks the last.
std::string text(const std::vector<PassNode>& passes) {
  std::string all;
  for (const PassNode& n : passes)
    all += fmt::format("{}{}{}.{}{}", all.empty() ? "" : " ", "FBW"[static_cast<int>(n.kind)],
                       n.chunk, n.micro_batch, n.last ? "'" : "");
  return all;
}
std::string order(Schedule s, int rank, int ranks, int chunks, std::int64_t m) {
  return text(unrolled(pass_order(s, rank, ranks, chunks, m)));
}

TEST(PassOrder, OneForwardOneBackwardWarmsUpByTheStagesBehind) {
  EXPECT_EQ(order(Schedule::k1F1B, 0, 3, 1, 4), "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3'");
  EXPECT_EQ(order(Schedule::k1F1B, 2, 3, 1, 2), "F0.0 B0.0 F0.1 B0.1'");
  EXPECT_EQ(order(Schedule::kGPipe, 1, 2, 1, 2), "F0.0 F0.1 B0.0 B0.1'");
}

// Groups of p = 2 micro-batches; rank 0 warms up with 2 (p - 1) + (v - 1) p = 4 forwards, rank 1
// with 2.
TEST(PassOrder, InterleavedSendsGroupsThroughAllChunks) {
  EXPECT_EQ(order(Schedule::kInterleaved, 1, 2, 2, 2), "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1' B0.0 B0.1'");
  EXPECT_EQ(order(Schedule::kInterleaved, 0, 2, 2, 2), "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1' B0.0 B0.1'");
  EXPECT_EQ(order(Schedule::kInterleaved, 0, 2, 2, 4),
            "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3' B0.2 B0.3'");
}

// Weights wait for `rank` more backwards, so that every rank holds p micro-batches, and fill the
// end.
TEST(PassOrder, ZeroBubbleDelaysWeightsByTheRank) {
  EXPECT_EQ(order(Schedule::kZeroBubbleH1, 0, 2, 1, 3),
            "F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2' W0.2'");
  EXPECT_EQ(order(Schedule::kZeroBubbleH1, 1, 2, 1, 3),
            "F0.0 B0.0 F0.1 B0.1 W0.0 F0.2 B0.2' W0.1 W0.2'");
  // fewer micro-batches than ranks
  EXPECT_EQ(order(Schedule::kZeroBubbleH1, 3, 4, 1, 2), "F0.0 B0.0 F0.1 B0.1' W0.0 W0.1'");
  EXPECT_EQ(order(Schedule::kZeroBubbleH1, 2, 4, 1, 2), "F0.0 F0.1 B0.0 W0.0 B0.1' W0.1'");
}

// Two ranks: rank 0 has the ends of the model, rank 1 the turn.
TEST(PassOrder, ZeroBubbleVAlternatesTheArmsOfTheV) {
  EXPECT_EQ(order(Schedule::kZeroBubbleV, 0, 2, 2, 3),
            "F0.0 F0.1 F0.2 F1.0 B1.0 W1.0 F1.1 B1.1 W1.1 B0.0 W0.0 F1.2 B1.2' W1.2' B0.1 W0.1 "
            "B0.2' W0.2'");
  EXPECT_EQ(order(Schedule::kZeroBubbleV, 1, 2, 2, 3),
            "F0.0 F1.0 F0.1 F1.1 B1.0 W1.0 F0.2 B0.0 W0.0 F1.2 B1.1 W1.1 B0.1 B1.2' B0.2' W0.1 "
            "W1.2' W0.2'");
}
TEST(PassOrder, DualPipeVPutsAForwardBesideABackward) {
  EXPECT_EQ(order(Schedule::kDualPipeV, 0, 2, 2, 4),
            "F0.0 F0.1 F0.2 F1.0 B1.0 W1.0 F1.1 F0.3 B1.1 W1.1 F1.2 B0.0 W0.0 B1.2 W1.2 F1.3 B0.1 "
            "W0.1 B1.3' W1.3' B0.2 W0.2 B0.3' W0.3'");
  EXPECT_EQ(order(Schedule::kDualPipeV, 1, 2, 2, 4),
            "F0.0 F1.0 F0.1 F1.1 F0.2 B1.0 W1.0 F1.2 B0.0 W0.0 F0.3 B1.1 W1.1 F1.3 B0.1 W0.1 B1.2 "
            "W1.2 B0.2 W0.2 B1.3' B0.3' W1.3' W0.3'");
}

/// Pass by pass, as Megatron-LM numbers them.
std::vector<PassNode> interleaved_by_definition(std::int64_t rank, std::int64_t p, std::int64_t v,
                                                std::int64_t m) {
  const auto pass = [&](std::int64_t k, bool forward) {
    PassNode n;
    const std::int64_t chunk = k % (p * v) / p;
    n.kind = forward ? PassKind::kForward : PassKind::kBackward;
    n.chunk = static_cast<int>(forward ? chunk : v - 1 - chunk);
    n.micro_batch = k / (p * v) * p + k % p;
    n.last = !forward && n.micro_batch == m - 1;
    return n;
  };
  const std::int64_t total = m * v, warm = std::min(total, 2 * (p - rank - 1) + (v - 1) * p);
  std::vector<PassNode> all;
  for (std::int64_t k = 0; k < warm; ++k) all.push_back(pass(k, true));
  for (std::int64_t i = 0; i < total - warm; ++i)
    all.insert(all.end(), {pass(warm + i, true), pass(i, false)});
  for (std::int64_t k = total - warm; k < total; ++k) all.push_back(pass(k, false));
  return all;
}

TEST(PassOrder, InterleavedIsItsDefinitionForAnySize) {
  for (int p = 2; p <= 5; ++p)
    for (int v = 2; v <= 4; ++v)
      for (int groups = 1; groups <= 5; ++groups)
        for (int rank = 0; rank < p; ++rank)
          EXPECT_EQ(order(Schedule::kInterleaved, rank, p, v, p * groups),
                    text(interleaved_by_definition(rank, p, v, p * groups)))
              << "p " << p << " v " << v << " m " << p * groups << " rank " << rank;
}

// Forward, backward and weights of a micro-batch once and in this order; the last of each kind is
// marked; micro-batches in flight as stated.
TEST(PassOrder, EveryPassRunsOnceInOrderAndHoldsNoMoreThanStated) {
  for (const Schedule s : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kZeroBubbleH1})
    for (int p = 1; p <= 6; ++p)
      for (int m = 1; m <= 9; ++m)
        for (int rank = 0; rank < p; ++rank) {
          std::map<std::int64_t, int> state;  // by micro-batch: passes done
          int full = 0, most_full = 0, held = 0, most_held = 0;
          for (const PassNode& n : unrolled(pass_order(s, rank, p, 1, m))) {
            EXPECT_EQ(state[n.micro_batch]++, static_cast<int>(n.kind));
            EXPECT_EQ(n.last, n.kind != PassKind::kForward && n.micro_batch == m - 1);
            full += n.kind == PassKind::kForward ? 1 : n.kind == PassKind::kBackward ? -1 : 0;
            held += n.kind == PassKind::kForward ? 1 : n.kind == PassKind::kWeight ? -1 : 0;
            most_full = std::max(most_full, full);
            most_held = std::max(most_held, held);
          }
          EXPECT_EQ(state.size(), static_cast<std::size_t>(m));
          for (const auto& [micro_batch, done] : state)
            EXPECT_EQ(done, s == Schedule::kZeroBubbleH1 ? 3 : 2) << micro_batch;
          EXPECT_EQ(most_full, s == Schedule::kGPipe ? m : std::min(p - rank, m));
          if (s == Schedule::kZeroBubbleH1) {
            EXPECT_LE(most_held, std::min(p, m));
          }
        }
}

// The same for both arms of a V; a rank holds stashes of 2 p (ZB-V) or 2 p + 1 (DualPipeV)
// chunks until their backward.
TEST(PassOrder, EveryPassOfAVRunsOnceInOrderAndHoldsNoMoreThanStated) {
  for (const Schedule s : {Schedule::kZeroBubbleV, Schedule::kDualPipeV})
    for (int p = 2; p <= 7; ++p)
      for (int m = 1; m <= 3 * p; ++m)
        for (int rank = 0; rank < p; ++rank) {
          std::map<std::pair<int, std::int64_t>, int> state;  // by chunk, micro-batch: passes done
          std::map<std::pair<int, PassKind>, std::int64_t> next;  // micro-batches come in turn
          int full = 0, most_full = 0;
          for (const PassNode& n : unrolled(pass_order(s, rank, p, 2, m))) {
            EXPECT_EQ((state[{n.chunk, n.micro_batch}]++), static_cast<int>(n.kind));
            EXPECT_EQ((next[{n.chunk, n.kind}]++), n.micro_batch);
            EXPECT_EQ(n.last, n.kind != PassKind::kForward && n.micro_batch == m - 1);
            full += n.kind == PassKind::kForward ? 1 : n.kind == PassKind::kBackward ? -1 : 0;
            most_full = std::max(most_full, full);
          }
          EXPECT_EQ(state.size(), static_cast<std::size_t>(2 * m));
          for (const auto& [pass, done] : state) EXPECT_EQ(done, 3) << pass.second;
          const int stated = s == Schedule::kZeroBubbleV ? 2 * p : 2 * p + 1;
          if (m >= 2 * p)
            EXPECT_EQ(most_full, stated) << to_string(s) << " p " << p << " rank " << rank;
          else
            EXPECT_LE(most_full, stated) << to_string(s) << " p " << p << " rank " << rank;
        }
}

std::size_t size_of(const std::vector<PassNode>& order) {
  std::size_t n = order.size();
  for (const PassNode& node : order) n += size_of(node.body);
  return n;
}

TEST(PassOrder, DoesNotGrowWithMicroBatches) {
  for (const Schedule s : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kInterleaved,
                           Schedule::kZeroBubbleH1, Schedule::kZeroBubbleV, Schedule::kDualPipeV}) {
    const int chunks = s == Schedule::kInterleaved ? 3 : 1 + is_v_shaped(s);
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(size_of(pass_order(s, rank, 4, chunks, 64)),
                size_of(pass_order(s, rank, 4, chunks, 4096)));
  }
}

std::string validation(int pp, int v, std::int64_t m, Schedule schedule) {
  model::ModelSpec model = small_model(true);
  model.layers = 8;
  Plan plan = small_plan(model, {.pp = 2, .global_batch = 12});
  plan.stages.assign(static_cast<std::size_t>(pp * v),
                     {.runs = {{.count = 8 / (pp * v), .strategy = plan.vocabulary}}});
  plan.virtual_stages = v;
  plan.schedule = schedule;
  plan.micro_batches = m;
  return base::to_string(validate(plan, model));
}

TEST(InterleavedPlan, NeedsWholeGroupsOfMicroBatchesAndARealPipeline) {
  EXPECT_EQ(validation(2, 2, 4, Schedule::kInterleaved), "");
  EXPECT_THAT(validation(2, 2, 3, Schedule::kInterleaved),
              HasSubstr("in groups of 2: use a multiple of 2 that divides global_batch"));
  EXPECT_THAT(validation(4, 2, 3, Schedule::kInterleaved),
              HasSubstr("in groups of 4: use a multiple of 4"));
  EXPECT_THAT(validation(1, 2, 4, Schedule::kInterleaved),
              HasSubstr("2 virtual stages on one pipeline rank"));
  EXPECT_THAT(validation(2, 2, 4, Schedule::k1F1B),
              HasSubstr("schedule 1f1b with virtual_stages = 2"));
  EXPECT_THAT(validation(2, 1, 4, Schedule::kInterleaved),
              HasSubstr("schedule interleaved with virtual_stages = 1"));
}

TEST(PlanInAV, NeedsTwoStagesARankAndARealPipeline) {
  for (const Schedule s : {Schedule::kZeroBubbleV, Schedule::kDualPipeV}) {
    EXPECT_EQ(validation(4, 2, 3, s), "");
    EXPECT_THAT(validation(2, 1, 4, s), HasSubstr("with virtual_stages = 1"));
    EXPECT_THAT(validation(2, 4, 4, s), HasSubstr("with virtual_stages = 4"));
    EXPECT_THAT(validation(1, 2, 4, s), HasSubstr("2 virtual stages on one pipeline rank"));
  }
}

}  // namespace
}  // namespace orrery::plan

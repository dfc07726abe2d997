// Planted faults: each kind is caught by its name, and what the fault was planted in is correct.
#include "plan/check/check.h"

#include <gtest/gtest.h>

#include "tests/unit/plan/check_programs.h"

namespace orrery::plan {
namespace {

TEST(Check, CorrectProgramsHaveNoFaults) {
  for (const bool llama : {false, true}) {
    for (const int pp : {1, 2, 4}) {
      for (const int zero : {0, 1, 2, 3}) {
        const Program p = small_program(small_model(llama), {.tp = 2,
                                                             .pp = pp,
                                                             .dp = 2,
                                                             .zero = zero,
                                                             .sequence_parallel = true,
                                                             .recompute = Recompute::kFull});
        EXPECT_EQ(text_of(check(p)), "") << "llama " << llama << " pp " << pp << " zero " << zero;
      }
    }
  }
}

/// One rank's tokens against the keys of two in a ring.
Program ring() {
  Plan plan = small_plan(small_model(), {.dp = 2});
  plan.vocabulary.dp = plan.stages[0].runs[0].strategy.dp = 1;
  plan.vocabulary.cp = plan.stages[0].runs[0].strategy.cp = 2;
  return *lower(plan, small_model());
}

TEST(Check, AttentionOverSomeKeysMayNotBeRead) {
  const Program p = ring();
  Mutant m(p);
  EXPECT_EQ(text_of(m.faults()), "");
  m.drop(0, m.named(0, "merge 1"));
  EXPECT_CAUGHT(m, FaultKind::kNeverReduced);
}

TEST(Check, AttentionMayNotMergeTheSameKeysTwice) {
  const Program p = ring();
  Mutant m(p);
  const SegmentId own = m.ops(0)[m.named(0, "attention 0")].op->segment;
  m.edit(0, m.named(0, "attention 1")).segment = own;
  EXPECT_CAUGHT(m, FaultKind::kReducedTwice);
}

Program pieces() {
  return small_program(small_model(), {.tp = 2, .sequence_parallel = true, .tensor_pieces = 2});
}

TEST(Check, WhatIsMadeInPiecesMayNotBeReadBeforeTheLast) {
  const Program p = pieces();
  for (const char* last : {"qkv 2/2", "reduce_scatter(p 2/2)"}) {
    Mutant m(p);
    EXPECT_EQ(text_of(m.faults()), "");
    m.drop(0, m.named(0, last));
    EXPECT_CAUGHT(m, FaultKind::kNeverReduced);
  }
}

TEST(Check, APieceIsMadeOnce) {
  const Program p = pieces();
  for (const char* last : {"qkv 2/2", "reduce_scatter(p 2/2)"}) {
    Mutant m(p);
    m.repeat(0, m.named(0, last));
    EXPECT_CAUGHT(m, FaultKind::kReducedTwice);
  }
}

TEST(Check, APieceHasItsShareOfABuffer) {
  const Program p = pieces();
  Mutant m(p);
  m.edit(0, m.named(0, "all_gather(a 2/2)")).pieces = 4;
  EXPECT_CAUGHT(m, FaultKind::kSizeMismatch);
}

TEST(Check, DroppedReceiveLeavesASendUnmatched) {
  const Program p = pipeline();
  Mutant m(p);
  m.drop(1, exchange(m, 1, Stream::kForwardReceive));
  EXPECT_CAUGHT(m, FaultKind::kUnmatchedSend);
}

TEST(Check, DroppedSendLeavesAReceiveUnmatched) {
  const Program p = pipeline();
  Mutant m(p);
  m.drop(1, exchange(m, 1, Stream::kBackwardSend));
  EXPECT_CAUGHT(m, FaultKind::kUnmatchedReceive);
}

TEST(Check, SendToTheStageAfterNextIsAWrongPeer) {
  const Program p = small_program(small_model(true), {.tp = 2, .pp = 4});
  Mutant m(p);
  m.edit(0, exchange(m, 0, Stream::kForwardSend)).legs[0].peer_offset *= 2;
  EXPECT_CAUGHT(m, FaultKind::kWrongPeer);
}

TEST(Check, PeerOutsideTheWorldIsAWrongPeer) {
  const Program p = pipeline();
  Mutant m(p);
  m.edit(0, exchange(m, 0, Stream::kForwardSend)).legs[0].peer_offset = -1;
  EXPECT_CAUGHT(m, FaultKind::kWrongPeer);
}

TEST(Check, SendsInAnotherOrderThanTheReceivesMeetTheWrongMicroBatch) {
  const Program p = pipeline(Schedule::kGPipe);
  Mutant m(p);
  const auto sends =
      m.all(0, [](const OpInstance& o) { return is_exchange(o, Stream::kForwardSend); });
  m.swap(0, sends[0], sends[1]);
  EXPECT_CAUGHT(m, FaultKind::kWrongPeer);
}

TEST(Check, ReceiveOfAnotherSizeIsCaught) {
  const Program p = pipeline();
  Mutant m(p);
  const std::size_t receive = exchange(m, 1, Stream::kForwardReceive);
  Op& op = m.edit(1, receive);
  for (const BufferId b : p.buffers.ids()) {
    if (p.buffers[b].bytes() != p.buffers[op.legs[0].buffer.buffer].bytes())
      op.legs[0].buffer.buffer = b;
  }
  EXPECT_CAUGHT(m, FaultKind::kSizeMismatch);
}

TEST(Check, CollectiveOfAnotherSizeThanItsBufferIsCaught) {
  const Program p = data_parallel();
  Mutant m(p);
  m.edit(0, gradient_reduction(m, 0)).bytes += 4;
  EXPECT_CAUGHT(m, FaultKind::kSizeMismatch);
}

TEST(Check, OneStreamForBothDirectionsDeadlocksUnder1F1B) {
  const Program p = pipeline();
  Mutant m(p);
  for (const std::size_t c : {0U, 1U}) {
    for (const std::size_t i :
         m.all(c, [](const OpInstance& o) { return o.op->kind == OpKind::kExchange; }))
      m.edit(c, i).stream = Stream::kHost;
  }
  EXPECT_CAUGHT(m, FaultKind::kDeadlock);
}

TEST(Check, GatherWithoutAnEarlierReleaseDeadlocks) {
  const Program p = data_parallel(3);
  Mutant m(p);
  for (const std::size_t i :
       m.all(0, [](const OpInstance& o) { return o.op->release.has_value(); }))
    m.edit(0, i).release.reset();
  EXPECT_CAUGHT(m, FaultKind::kDeadlock);
}

TEST(Check, SecondFreeIsCaught) {
  const Program p = pipeline();
  Mutant m(p);
  const std::size_t i = m.first(0, [](const OpInstance& o) { return !o.op->frees.empty(); });
  Op& op = m.edit(0, i);
  op.frees.push_back(op.frees[0]);
  EXPECT_CAUGHT(m, FaultKind::kDoubleFree);
}

TEST(Check, ReadAfterFreeIsCaught) {
  const Program p = pipeline();
  Mutant m(p);
  Op& norm = m.edit(0, m.named(0, "norm1"));
  norm.frees.push_back(norm.reads[0]);  // the residual still needs it
  EXPECT_CAUGHT(m, FaultKind::kReadAfterFree);
}

TEST(Check, FreeOfPersistentStateIsCaught) {
  const Program p = data_parallel();
  Mutant m(p);
  Op& adamw = m.edit(0, m.named(0, "adamw"));
  adamw.frees.push_back(adamw.updates[0]);
  EXPECT_CAUGHT(m, FaultKind::kReadAfterFree);
}

TEST(Check, ReadBeforeWriteIsCaught) {
  const Program p = pipeline();
  Mutant m(p);
  m.drop(0, m.named(0, "qkv"));
  EXPECT_CAUGHT(m, FaultKind::kReadBeforeWrite);
}

TEST(Check, WriteOfALiveBufferIsCaught) {
  const Program p = pipeline();
  Mutant m(p);
  m.repeat(0, m.named(0, "mlp_in"));
  EXPECT_CAUGHT(m, FaultKind::kDoubleWrite);
}

TEST(Check, BufferThatNothingFreesIsALeak) {
  const Program p = pipeline();
  Mutant m(p);
  m.edit(0, m.first(0, [](const OpInstance& o) { return !o.op->frees.empty(); })).frees.clear();
  EXPECT_CAUGHT(m, FaultKind::kLeak);
}

TEST(Check, BackwardBeforeItsForwardIsCaught) {
  const Program p = pipeline();
  Mutant m(p);
  m.move(1, m.named(1, "qkv", Phase::kBG), 0);
  EXPECT_CAUGHT(m, FaultKind::kBackwardBeforeForward);
}

TEST(Check, BackwardWithoutAForwardIsCaught) {
  const Program p = pipeline();
  Mutant m(p);
  const std::size_t backward = m.named(1, "qkv", Phase::kBG);
  const OpInstance wanted = m.ops(1)[backward];
  for (std::size_t i = backward; i-- > 0;) {
    const OpInstance& o = m.ops(1)[i];
    if (o.layer == wanted.layer && o.micro_batch == wanted.micro_batch &&
        o.op->kind == OpKind::kCompute && o.op->phase == Phase::kF)
      m.drop(1, i);
  }
  EXPECT_CAUGHT(m, FaultKind::kBackwardBeforeForward);
}

TEST(Check, PartialSumThatIsReadUnreducedIsCaught) {
  for (const bool sequence_parallel : {false, true}) {
    const Program p =
        small_program(small_model(), {.tp = 2, .sequence_parallel = sequence_parallel});
    Mutant m(p);
    Op& projection = m.edit(0, m.named(0, "projection"));
    const std::size_t reduction = m.first(0, [&](const OpInstance& o) {
      return o.op->kind == OpKind::kCollective &&
             (o.op->updates == projection.writes || o.op->reads == projection.writes);
    });
    m.edit(0, reduction).reduce = Reduce::kMax;  // completes nothing
    EXPECT_CAUGHT(m, FaultKind::kNeverReduced);
  }
}

TEST(Check, SecondSumOfAnActivationIsCaught) {
  const Program p = small_program(small_model(), {.tp = 2});
  Mutant m(p);
  m.repeat(0, m.named(0, "all_reduce(p)"));
  EXPECT_CAUGHT(m, FaultKind::kReducedTwice);
}

TEST(Check, MissingOperandIsCaught) {
  const Program p = pipeline();
  Mutant m(p);
  m.edit(0, m.named(0, "attention", Phase::kB)).reads.pop_back();
  EXPECT_CAUGHT(m, FaultKind::kOperandMismatch);
}

TEST(Check, OperandsInAnotherOrderAreCaught) {
  const Program p = pipeline();
  Mutant m(p);
  Op& op = m.edit(0, m.named(0, "mlp_in", Phase::kBG));
  std::swap(op.reads[0], op.reads[1]);
  EXPECT_CAUGHT(m, FaultKind::kOperandMismatch);
}

TEST(Check, ViewOutsideItsUnitIsCaught) {
  const Program p = pipeline();
  Mutant m(p);
  m.edit(0, m.named(0, "mlp_out")).views[0].offset += 1 << 20;
  EXPECT_CAUGHT(m, FaultKind::kOperandMismatch);
}

/// Two ranks and one buffer each for a sum and a maximum over both.
Program two_collectives() {
  Program p;
  const BufferId a = p.buffers.push_back({.name = "a",
                                          .category = BufferCategory::kGradient,
                                          .shape = {4},
                                          .scope = Scope::kStep,
                                          .persistent = true,
                                          .unit = {}});
  const GroupId both = p.groups.push_back({"both", 2, 1});
  std::vector<Op> ops(2);
  for (Op& op : ops) {
    op.kind = OpKind::kCollective;
    op.stream = Stream::kTensor;
    op.group = both;
    op.bytes = 16;
    op.updates = {{a}};
  }
  ops[0].name = "sum";
  ops[1].name = "maximum";
  ops[1].reduce = Reduce::kMax;
  return two_ranks(std::move(p), ops, ops);
}

TEST(Check, CollectivesInTheSameOrderOnBothRanksAreCorrect) {
  EXPECT_EQ(text_of(check(two_collectives())), "");
}

TEST(Check, SwappedCollectivesAreCaught) {
  const Program p = two_collectives();
  Mutant m(p);
  m.swap(1, 0, 1);
  EXPECT_CAUGHT(m, FaultKind::kCollectiveOrder);
}

TEST(Check, CollectiveThatOneRankLeavesOutIsCaught) {
  const Program p = two_collectives();
  Mutant m(p);
  m.drop(1, 1);
  EXPECT_CAUGHT(m, FaultKind::kCollectiveOrder);
}

// Each receives on one stream what the other sends on it after a receive on another: streams
// progress, one thread per rank does not.
TEST(Check, ThreadsThatBothReceiveFirstDeadlockThoughTheirStreamsDoNot) {
  Program p;
  const BufferId out = p.buffers.push_back(
      {.name = "out", .shape = {4}, .scope = Scope::kStep, .persistent = true, .unit = {}});
  const BufferId in =
      p.buffers.push_back({.name = "in", .shape = {4}, .scope = Scope::kStep, .unit = {}});
  const auto ops = [&](int peer, Stream receives, Stream sends) {
    Op receive, send;
    receive.kind = send.kind = OpKind::kExchange;
    receive.stream = receives;
    send.stream = sends;
    receive.name = "receive";
    send.name = "send";
    receive.legs = {{false, peer, {in}}};
    receive.writes = receive.frees = {{in}};
    send.legs = {{true, peer, {out}}};
    send.reads = {{out}};
    return std::vector<Op>{receive, send};
  };
  std::vector<Op> first = ops(1, Stream::kBackwardReceive, Stream::kForwardSend);
  const std::vector<Op> second = ops(-1, Stream::kForwardReceive, Stream::kBackwardSend);
  const std::vector<Fault> faults = check(two_ranks(p, first, second));
  ASSERT_EQ(faults.size(), 2U) << text_of(faults);
  EXPECT_EQ(faults[0].kind, FaultKind::kDeadlock);
  EXPECT_EQ(faults[0].message,
            "operation 0 'receive' (layer 0, micro-batch 0) of stage 0 waits for its counterpart "
            "operation 1 'send' "
            "(layer 0, micro-batch 0) of stage 1, when every rank runs its operations in turn");
  std::swap(first[0], first[1]);
  EXPECT_EQ(text_of(check(two_ranks(p, first, second))), "");
}

/// Two ranks that exchange one buffer each way, on one stream; each receives first.
TEST(Check, TwoRanksThatBothReceiveFirstDeadlock) {
  Program p;
  const BufferId out = p.buffers.push_back(
      {.name = "out", .shape = {4}, .scope = Scope::kStep, .persistent = true, .unit = {}});
  const BufferId in =
      p.buffers.push_back({.name = "in", .shape = {4}, .scope = Scope::kStep, .unit = {}});
  const auto ops = [&](int peer) {
    Op receive, send;
    receive.kind = send.kind = OpKind::kExchange;
    receive.stream = send.stream = Stream::kHost;
    receive.name = "receive";
    send.name = "send";
    receive.legs = {{false, peer, {in}}};
    receive.writes = receive.frees = {{in}};
    send.legs = {{true, peer, {out}}};
    send.reads = {{out}};
    return std::vector<Op>{receive, send};
  };
  const Program receive_first = two_ranks(p, ops(1), ops(-1));
  const std::vector<Fault> faults = check(receive_first);
  ASSERT_EQ(faults.size(), 2U) << text_of(faults);
  EXPECT_EQ(faults[0].kind, FaultKind::kDeadlock);
  EXPECT_EQ(faults[0].message,
            "operation 0 'receive' (layer 0, micro-batch 0) of stage 0 waits for its counterpart "
            "operation 1 'send' "
            "(layer 0, micro-batch 0) of stage 1");

  std::vector<Op> at_once = ops(1), other = ops(-1);
  // one exchange with both legs posts them together
  for (std::vector<Op>* list : {&at_once, &other}) {
    (*list)[0].legs.push_back((*list)[1].legs[0]);
    (*list)[0].reads = (*list)[1].reads;
    list->pop_back();
  }
  EXPECT_EQ(text_of(check(two_ranks(p, at_once, other))), "");
}

}  // namespace
}  // namespace orrery::plan

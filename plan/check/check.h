#pragma once
#include "plan/program/expand.h"

namespace orrery::plan {

enum class FaultKind : std::uint8_t {
  kCollectiveOrder,  // ranks of a group issue different collectives, or in a different order
  kUnmatchedSend,
  kUnmatchedReceive,
  kWrongPeer,
  kSizeMismatch,
  kDeadlock,  // nothing can progress
  kReadBeforeWrite,
  kReadAfterFree,
  kDoubleFree,
  kDoubleWrite,
  kLeak,
  kBackwardBeforeForward,
  kContributionMissing,
  kContributionRepeated,
  kReducedTwice,
  kNeverReduced,
  kOperandMismatch,  // operands of a segment do not have the shapes of its table
};

struct Fault {
  FaultKind kind;
  int stage = 0;
  std::int64_t op = -1;  // issue index in the class
  std::string message;   // one sentence: names operation, buffer, layer, micro-batch
};

/// The unrolled step of every class; tests plant faults here.
struct CheckedProgram {
  const Program* program = nullptr;
  std::vector<std::vector<OpInstance>> classes;
};
CheckedProgram unroll_all(const Program& program);

/// Proves without running: sends match receives, groups issue collectives in one order, nothing
/// waits in a cycle (with every stream on its own, and with one thread per rank that runs in issue
/// order), a micro-batch's forward precedes its backward, every contribution of a micro-batch to a
/// gradient reaches its owner exactly once, buffers are written before read, freed once, never read
/// after, and nothing but persistent state outlives the step; partial sums of split products are
/// completed exactly once before they are read; operands fit the table of model/segment.h. Empty =
/// correct. Of one kind in one class the first 16 are reported. Near linear in the number of
/// operations.
std::vector<Fault> check(const CheckedProgram& step);
std::vector<Fault> check(const Program& program);

}  // namespace orrery::plan

#pragma once
/// \file
/// Messages of the collectives that state who sends to whom: shifts in an order of their own, and
/// changes of layout.
#include <cstdint>
#include <vector>

#include "plan/program/program.h"

namespace orrery::plan {

struct Message {
  int from = 0, to = 0;  // world ranks, never the same
  std::int64_t bytes = 0;
};

/// All at once. Each is so many units of `unit_bytes`, and no rank receives more than `units`.
struct Messages {
  std::vector<Message> all;
  std::int64_t unit_bytes = 0, units = 0;  // 0: there are none
};

/// Whether an operation states its messages one by one.
inline bool states_messages(const Op& op) {
  return op.kind == OpKind::kCollective && (!op.senders.empty() || op.redistribution.has_value());
}
/// Between ranks of a class. @pre states_messages(op).
Messages messages_of(const Program& program, const Op& op, const RankClass& rank_class);

/// Bytes that a change of layout brings to the device that receives most.
std::int64_t most_received_bytes(const Redistribution& redistribution, model::DType dtype);

}  // namespace orrery::plan

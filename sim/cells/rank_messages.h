#pragma once
/// \file
/// Every message of a step: which ranks it joins, what it loads, what it costs on its own.
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "base/numbers.h"
#include "costmodel/cost_model.h"
#include "plan/program/program.h"
#include "sim/step/prepared_step.h"

namespace orrery::sim {

template <typename Key>
std::uint32_t number_of(std::map<Key, std::uint32_t>& numbers, const Key& key) {
  return numbers.try_emplace(key, as_u32(numbers.size())).first->second;
}

/// Sorts by link; the flows of each link become one load.
void add_up(std::vector<costmodel::LinkLoad>& links);

/// One collective of one group, or one exchange from a rank to another.
struct Message {
  std::uint32_t kind = 0;  // messages of one kind differ in their ranks only
  bool exchange = false;
  std::vector<std::uint32_t> ranks;  // of a group; sender, receiver
  costmodel::Transfer transfer;      // links ascending; rate alone, for its own flows
};

class RankMessages {
 public:
  /// Of all ranks. @pre `step` is prepared from `program` by `cost`, without errors; all outlive
  /// this object.
  RankMessages(const plan::Program& program, const costmodel::CostModel& cost,
               const PreparedStep& step);

  [[nodiscard]] const std::vector<Message>& all() const { return messages_; }
  [[nodiscard]] std::uint32_t collective(const plan::Op& op, std::uint32_t rank) const;
  /// The message of a leg that sends.
  [[nodiscard]] std::uint32_t exchange(const plan::Op& op, std::size_t leg,
                                       std::uint32_t rank) const;

 private:
  /// What tells messages apart but their ranks: operation (-1: exchange), group size, stride or
  /// rank distance, id bits, bytes, stream, index of the leg; the operation where it states its
  /// messages itself.
  using Kind = std::tuple<int, int, int, std::uint32_t, std::int64_t, int, int, const plan::Op*>;
  [[nodiscard]] Kind kind_of(const plan::Op& op) const;
  [[nodiscard]] Kind kind_of(const plan::Op& op, const plan::Leg& leg) const;
  Message& of_group(std::uint32_t kind, const plan::Group& group, int rank);
  void add_stated(const plan::RankClass& stage, const plan::Op& op);
  void add_collective(const plan::RankClass& stage, const plan::Op& op);
  void add_exchange(const plan::RankClass& stage, const plan::Op& op, const plan::Leg& leg);
  void add_part(Message& message, const costmodel::Transfer& part, const costmodel::Transfer& stage,
                bool library);
  void finish(Message& message);

  const plan::Program& program_;
  const costmodel::CostModel& cost_;
  std::map<Kind, std::uint32_t> kinds_;
  // (kind, first rank or sender)
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> index_;
  std::vector<Message> messages_;
};

}  // namespace orrery::sim

#pragma once
/// \file
/// Links that the operations of a Program's rank classes load: found once for each group of ranks,
/// whatever the bytes, and on one host for each class where that says all.
///
/// Where blocks of hosts are copies of each other, classes are equally many whole blocks or parts
/// of one, and every operation repeats from block to block (costmodel/collectives/rank_blocks.h),
/// links of other blocks than the first of each class and level are loaded as its own, by the same
/// transfers: in a flow network they would be folded into the same constraints (flow_network.h).
/// They are left out, so that cost does not grow with the number of hosts.
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "costmodel/closed_form/operation_prices.h"
#include "costmodel/collectives/rank_blocks.h"
#include "costmodel/cost_model.h"
#include "plan/program/messages.h"
#include "plan/program/program.h"

namespace orrery::sim {

/// Of an operation that states its messages, `sent` of `all` of them: a unit of each on its way at
/// a common rate. What stays at home is copied, where nothing else is done.
costmodel::Transfer stated_transfer(const plan::Program& program, const costmodel::CostModel& cost,
                                    const plan::Op& op, const plan::Messages& all,
                                    std::span<const plan::Message> sent);

class ClassLoads {
 public:
  /// `program` and `cost` must outlive this object. Without `fold` all hosts are loaded, for a
  /// picture of them.
  ClassLoads(const plan::Program& program, const costmodel::CostModel& cost, bool fold);

  /// Of the ranks of class `c` in all their groups at once.
  costmodel::Transfer collective(const plan::Op& op, std::int64_t bytes, std::uint32_t c);
  /// Of a part of its ranks, beside those of all.
  costmodel::Transfer collective(const plan::Op& op, std::int64_t bytes, std::uint32_t c,
                                 costmodel::Ranks part);
  costmodel::Transfer exchange(std::uint32_t c, int peer_offset, std::int64_t bytes);
  [[nodiscard]] bool folded() const { return !blocks_.empty(); }

 private:
  /// What they send in a pattern. The reference lives as long as this object.
  const costmodel::PathLoads& loads(costmodel::Pattern pattern, const plan::Group& group,
                                    std::uint32_t c);
  // size, stride and bits (exchange: 0 and offset), class
  using Key = std::tuple<costmodel::Pattern, int, int, std::uint32_t, std::uint32_t>;
  const costmodel::PathLoads& loads(costmodel::Pattern pattern, const plan::Group& group,
                                    std::uint32_t c, costmodel::Ranks part);
  template <class LoadsOf>
  costmodel::Transfer priced(const plan::Op& op, std::int64_t bytes, const LoadsOf& loads_of) const;
  [[nodiscard]] std::vector<costmodel::RankBlocks> blocks() const;

  const plan::Program& program_;
  const costmodel::CostModel& cost_;
  std::vector<costmodel::RankBlocks> blocks_;  // [class]; none where all hosts are loaded
  std::map<Key, costmodel::PathLoads> known_;
  std::map<std::tuple<Key, int, int>, costmodel::PathLoads> known_of_parts_;
};

}  // namespace orrery::sim

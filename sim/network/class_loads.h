#pragma once
/// \file
/// Links that the operations of a Program's rank classes load: found once for each group of ranks,
/// whatever the bytes, and on one host for each class where that says all.
///
/// Let hosts be copies of each other around one core switch (topologies::HostCopies), classes be
/// blocks of equally many whole hosts, and each operation
///  * a collective of groups that tile a block of s ranks, where s and a host's P ranks divide one
///    another and s divides the class: the shift by P modulo s takes groups to groups and, but for
///    a broadcast, senders to senders and receivers to receivers. So every host of the class is
///    loaded alike, and what the flows of one host put on links of any host, summed by place in the
///    host, is what each host carries. Rings run back in odd hosts (collectives.h): the same on
///    every switch and tree, which as many cross each way; on a mesh the other directions of its
///    links;
///  * a collective or an exchange between equal places of different classes: the flows of the first
///    host go to the first host.
/// Then the links of a class's other hosts are loaded as those of its first, by the same transfers:
/// in a flow network they would be folded into the same constraints (flow_network.h). They are left
/// out, so that cost does not grow with the number of hosts. Classes are shifts of the first one,
/// too.
#include <cstdint>
#include <map>
#include <tuple>

#include "costmodel/cost_model.h"
#include "plan/program/program.h"

namespace orrery::sim {

class ClassLoads {
 public:
  /// `program` and `cost` must outlive this object. Without `fold` all hosts are loaded, for a
  /// picture of them.
  ClassLoads(const plan::Program& program, const costmodel::CostModel& cost, bool fold);

  /// What the ranks of class `c` send in all their groups. The reference lives as long as this
  /// object.
  const costmodel::PathLoads& collective(plan::Collective op, const plan::Group& group,
                                         std::uint32_t c);
  const costmodel::PathLoads& exchange(std::uint32_t c, int peer_offset);
  [[nodiscard]] bool folded() const { return folded_; }

 private:
  enum class Pattern : std::uint8_t { kRings, kAllToAll, kBroadcast, kShift, kExchange };
  // size and stride (exchange: 0 and offset), class
  using Key = std::tuple<Pattern, int, int, std::uint32_t>;
  [[nodiscard]] bool foldable() const;
  [[nodiscard]] bool foldable(const plan::Op& op, int count) const;
  [[nodiscard]] costmodel::PathLoads shifted(costmodel::PathLoads loads, std::uint32_t c) const;

  const plan::Program& program_;
  const costmodel::CostModel& cost_;
  bool folded_;
  std::map<Key, costmodel::PathLoads> known_;
};

}  // namespace orrery::sim

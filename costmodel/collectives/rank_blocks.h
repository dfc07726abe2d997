#pragma once
/// \file
/// Ranks of a class that speak for all of it, on a cluster of equal hosts under a regular tree of
/// switches (topologies::HostCopies).
///
/// Let a block of level m hold P_m ranks (P_0: a host), and C neighbouring ranks from a multiple of
/// C be whole blocks up to level L and a part of one block above it: P_m divides C for m <= L, C
/// divides P_m for m > L. Let an operation be
///
///   * of groups inside the C ranks, which tile blocks of s ranks, where s and P_m, and the stride
///     and P_m, divide one another for m <= L: the shift by P_m modulo s takes groups to groups and
///     what crosses links of levels up to m to what does so. Above L it may change rails. So every
///     block of level m is loaded alike, and what ranks of the first one put on links of its level,
///     summed by place in the block, is what each block carries.
///   * or between equal places of several such classes: ranks of the first block of level m put on
///     links of that level what those of any other block put on theirs. All C ranks share the block
///     above L: P_L of them put C / P_L of that on its links.
///
/// Rings go back in odd hosts (collective_patterns.h), which on switches and trees is the same, and
/// on meshes loads the links of the other direction; an odd number of hosts returns to the next
/// rail, and only one host of it.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/program/program.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

class RankBlocks {
 public:
  /// Of the ranks [first_rank, first_rank + rank_count); nothing where they are no such class.
  /// `topology` must outlive the result.
  static std::optional<RankBlocks> of(const topologies::Topology& topology, int first_rank,
                                      int rank_count);

  /// Whether the operation is one of the two above.
  [[nodiscard]] bool repeats(const plan::Group& group) const;
  /// The same of an exchange with the ranks `peer_offset` further.
  [[nodiscard]] bool repeats(int peer_offset) const { return peer_offset % count_ == 0; }
  [[nodiscard]] bool inside(const plan::Group& group) const { return count_ % group.span() == 0; }

  /// P_L: the first so many ranks speak for all.
  [[nodiscard]] int ranks() const { return sizes_.at(as_index(top_)); }
  [[nodiscard]] int first_rank() const { return first_; }
  /// How often a flow that one of these ranks sends, or a rank of equal place in another class,
  /// counts on a link.
  [[nodiscard]] std::int64_t weight(int sender, topologies::LinkId link) const {
    const std::uint32_t level = copies_->level_of(link);
    if (as_int(level) > top_) return count_ / ranks();
    return sender % count_ < sizes_[level] ? 1 : 0;
  }
  /// The link at the same place of the block of its level that holds first_rank.
  [[nodiscard]] topologies::LinkId in_first_block(topologies::LinkId link) const {
    return copies_->at_block(link, as_u32(first_ / sizes_[copies_->level_of(link)]));
  }

 private:
  const topologies::HostCopies* copies_ = nullptr;
  std::vector<int> sizes_;  // [m] P_m
  int first_ = 0, count_ = 0;
  int top_ = 0;  // L
};

/// W of the groups that tile the ranks [first_rank, first_rank + rank_count), if [0, W) speaks for
/// them.
std::optional<int> period_of(const topologies::Topology& topology, const plan::Group& group,
                             int first_rank, int rank_count);

}  // namespace orrery::costmodel

#pragma once
/// \file
/// Who sends to whom in a collective: rings, trees and exchanges over the members of a group, host
/// by host.
///
/// Members of one host are neighbours in every pattern. A group with m members on each of H hosts
/// gets m *channels*, as NCCL makes one for every network card: channel c enters and leaves a host
/// at other devices than channel c + 1, so that all cards work. Each channel carries its part of
/// the tensor; over several hosts it has both trees, half of the part each, so that every card
/// serves an inner node and a leaf. Groups of unequal hosts get one ring and two trees.
///
/// Inside a host the members follow each other in a *cycle*: in the order given where they meet at
/// a switch, where every order crosses the same links. Where devices are linked to each other (xGMI
/// meshes, NVLink cubes), as many cycles as link-disjoint ones are found, greedily, so that all
/// links work: a mesh of 8 has 56 directed links, 7 cycles of 8.
///
///   ring c          host by host: enters an even host at the member behind c on cycle c mod
///   cycles,
///                   visits the others in turn and leaves at c; an odd host the other way round, so
///                   that a wire joins cards of equal place. From the last of an odd number of
///                   hosts it returns to the next place (NCCL 2.30 src/graph/search.cc, connect.cc)
///   trees c         members of a host form a chain in that order; its first, the lead, is a node
///                   of both binary trees of the hosts
///   binary trees    of n nodes: parent(i) clears the lowest set bit b of i and sets the next one,
///                   or only clears it when that leaves the range; node 0 is the root. The second
///                   tree is the first one mirrored (n even) or shifted by one (n odd), so that a
///                   node that is inner in one is a leaf of the other, and all send and receive at
///                   most twice their share (Sanders, Speck, Traeff, Two-tree algorithms for full
///                   bandwidth broadcast, reduction and scan, 2009; NCCL 2.4)
///   worked example  n = 4: first tree 0 <- 2, 2 <- 1, 2 <- 3; second tree 3 <- 1, 1 <- 2, 1 <- 0
///
/// A step needs what each member sends on the whole, not when: Pattern, as flows from neighbour to
/// neighbour. There the hosts of a tree are all alike: each sends what an inner host does, to the
/// next one, so that a part of the group speaks for all of it.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/numbers.h"
#include "base/units.h"
#include "costmodel/collectives/host_cycles.h"
#include "costmodel/collectives/transfer.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

/// How many members lie where, and what they meet over.
struct GroupShape {
  int size = 1, hosts = 1;
  int per_host = 1;  // members; 0: hosts have unlike numbers
  int largest_host = 1;
  int cycles = 1;                       // of a host's members
  bool pcie = false;                    // members of a host meet over PCIe
  base::Seconds network_extra{};        // of a hop between hosts, beside the library's latency
  std::int64_t switch_rate = 0;         // of a device's link to its host's switch; 0: no switch
  int heads = 1;                        // members of a host that reduce in the switch
  std::int64_t switch_permille = 1000;  // share of the links that such a reduction gets
  bool uniform() const { return per_host > 0; }
  int rings() const;
  int trees() const;
  /// Hops of the longest way up a binary tree of the hosts.
  int tree_depth() const;
};

/// A group as the patterns see it: members host after host.
struct GroupSpread {
  GroupShape shape = {};
  std::vector<int> first_of_host = {};  // member, then the size; of unlike hosts alone
  std::shared_ptr<const std::vector<Places>> cycles = {};  // none: as they follow
};

/// `first_of_host`: member, then the size. `cycles` of the first host; dropped where hosts are
/// unlike.
GroupSpread spread_of(std::vector<int> first_of_host,
                      std::shared_ptr<const std::vector<Places>> cycles);

/// Unit flows, of so many that a member's bytes are split over: a ring's part on each ring, a
/// tree's on each tree, a head's in a switch (of a thousandth of half of it with trees), a
/// peer's, the whole.
enum class Pattern : std::uint8_t { kRings, kTrees, kSwitch, kSwitchTrees, kEveryone, kShift };
std::int64_t units_of(Pattern pattern, const GroupShape& shape);

/// Tree flows of a host's card each way: 1 up and 2 down where it is an inner node, 1 each where it
/// is a leaf; fewer on two and three hosts.
int tree_flows(int hosts);

struct MemberFlows {
  int to = 0;  // member
  std::int64_t flows = 0;
};
/// Appends what member `index` sends.
void append_sends(Pattern pattern, const GroupSpread& group, int index,
                  std::vector<MemberFlows>& sends);

struct GroupLayout {
  std::vector<int> ranks;               // by host, each host's in the order given
  std::vector<std::vector<int>> hosts;  // the same, in order of first appearance
  GroupSpread spread;                   // links unknown: meeting over nothing
  const GroupShape& shape() const { return spread.shape; }
  int size() const { return as_int(ranks.size()); }
  int host_count() const { return as_int(hosts.size()); }
  int per_host() const { return as_int(hosts.front().size()); }
  /// Equally many members on each host.
  bool uniform() const { return shape().uniform(); }
  int ring_count() const { return shape().rings(); }
  int tree_count() const { return shape().trees(); }
};
/// @pre ranks distinct, in range, at least one.
GroupLayout layout_of(const topologies::Topology& topology, std::span<const int> ranks);

/// Ranks in ring order, one list for each channel.
std::vector<std::vector<int>> ring_channels(const GroupLayout& group);

/// Parent of node `index` of `count`; -1 for the root.
int tree_parent(int index, int count, bool second);

struct TreeChannel {
  std::vector<int> ranks;   // parents before their children
  std::vector<int> parent;  // index into ranks, -1 for the root
  int device_depth = 0;     // hops inside hosts and between them, of the longest way up
  int network_depth = 0;
};
std::vector<TreeChannel> tree_channels(const GroupLayout& group);
/// The tree of hosts alone: nodes are indices into group.hosts.
TreeChannel host_tree(int hosts, bool second);

/// A message between two ranks. `pieces` of the tensor from `first_piece` on, of as many as the
/// pattern has.
struct Send {
  int from = 0;
  int to = 0;
  int first_piece = 0;
  int pieces = 1;
};
/// Recursive halving and doubling (Rabenseifner 2004; Thakur et al. 2005): steps of pairwise
/// exchange of halves, quarters, ... of the tensor and back. With n = p + e members, p the largest
/// power of two, e of them hand their tensor to a neighbour first and get the result last: then the
/// first and the last step are theirs. Pieces: p.
struct ExchangeStep {
  std::vector<Send> sends;
  bool reduces = false;
};
std::vector<ExchangeStep> halving_doubling(const GroupLayout& group);
int halving_doubling_pieces(const GroupLayout& group);

/// All-to-all in a large group of equal hosts: what rank `rank` loads on the links of its own host
/// with what it sends, and with what the other hosts send to it. By symmetry the ranks' loads
/// together are those of all n(n-1) messages. @pre group.uniform(), hosts are copies.
std::vector<LinkLoad> all_to_all_links(const topologies::Topology& topology,
                                       const GroupLayout& group, int host, int rank);
/// Whether that is how all-to-all is looked at; else every pair is a message of its own.
bool all_to_all_by_rank(const topologies::Topology& topology, const GroupLayout& group);

}  // namespace orrery::costmodel

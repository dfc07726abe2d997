#pragma once
/// \file
/// Closed-form times of one group's collectives alone on a machine: those of group_forms.h at the
/// rates that its links give, and two algorithms that NCCL has not:
///
///   halving-doubling sum over steps of alpha + w(bytes of the step) / r(step)
///   hierarchical     ring reduce-scatter in the hosts, m rings across them on S/m each, ring
///                    all-gather in the hosts
#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/collectives/collective_patterns.h"
#include "costmodel/collectives/group_forms.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

/// The machine with the rates that data gets on its links.
topologies::Topology usable_rates(topologies::Topology topology, const CollectiveTuning& tuning);

/// What members meet over: two of one host, two of different hosts; nothing where there are none.
struct Neighbours {
  std::optional<std::pair<int, int>> in_host, across = {};
};
void find_links(const topologies::Topology& topology, const CollectiveTuning& tuning,
                const Neighbours& members, GroupShape& shape);

struct CollectivePrice {
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  std::int64_t time_ps = 0;
};

class CollectiveForms {
 public:
  using Op = model::Collective;
  /// `usable`: see usable_rates; it and `tuning` must outlive this object. @pre group of at least
  /// two ranks.
  CollectiveForms(const topologies::Topology& usable, const CollectiveTuning& tuning,
                  GroupLayout group);
  CollectiveForms(const CollectiveForms&) = delete;  // forms_ refers to group_
  CollectiveForms& operator=(const CollectiveForms&) = delete;

  const GroupLayout& group() const { return group_; }
  bool available(Op op, Algorithm algorithm, Protocol protocol) const {
    return forms_.available(op, algorithm, protocol);
  }
  /// @pre available.
  CollectiveTerms terms(Op op, std::int64_t bytes, Algorithm algorithm, Protocol protocol) const {
    return forms_.terms(op, bytes, algorithm, protocol);
  }
  std::int64_t time_ps(Op op, const CollectiveTerms& terms) const;
  std::int64_t paced_ps(Op op, const CollectiveTerms& terms, std::int64_t message_ps) const {
    return forms_.paced_ps(op, terms, message_ps);
  }
  /// GroupForms::choose; of the algorithms that are not NCCL's the fastest protocol.
  std::optional<CollectivePrice> choose(Op op, std::int64_t bytes,
                                        std::optional<Algorithm> algorithm = {}) const;

  /// Devices of a host that reduce for all; those of the NVLS tree use their own cards.
  int nvls_heads() const { return group_.shape().heads; }

 private:
  /// Least rate of a flow, by flows over each link; of what is sent.
  std::int64_t narrowest(const std::vector<std::int64_t>& flows) const;
  std::int64_t narrowest(const std::vector<Send>& sends) const;
  std::int64_t all_to_all_rate() const;
  FlowRates rates(Pattern pattern) const;
  std::int64_t halving_ps(const CollectiveTerms& terms) const;
  std::int64_t hierarchical_ps(const CollectiveTerms& terms) const;

  const topologies::Topology* topology_;
  GroupLayout group_;
  GroupForms forms_;
  // Found on first use: patterns of thousands of ranks are not for every question.
  mutable std::array<std::int64_t, 6> rates_{};  // [pattern]
};

}  // namespace orrery::costmodel

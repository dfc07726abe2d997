#pragma once
/// \file
/// Copies between devices and the memory of their host's processors.
///
/// A device copies to the nearest host bridge (vertex `cpu`) of its host, by hops, then latency,
/// then bottleneck. All devices of a host copy at once, so a link that the ways of k of them cross
/// gives each an even share:
///
///     rate(d) = min over links l of way(d) of  bandwidth(l) / k(l)
///     t       = sum of latency + bytes / rate,  of the slowest device among the ranks
///
/// To the host and from it are ways of their own and do not disturb each other. Neither the
/// memory of the host nor what else its links carry is counted. Example: of a DGX A100 two devices
/// share a link of 31.5 GB/s to a processor, so each copies 15.8 GB/s; of a DGX H100 each has one
/// of 63 GB/s.
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "topologies/topology.h"

namespace orrery::costmodel {

class HostCopies {
 public:
  /// `topology` must outlive it. Ways are looked for when they are first asked for.
  explicit HostCopies(const topologies::Topology& topology) : topology_(topology) {}

  struct Way {
    std::int64_t bytes_per_second = 0, latency_ps = 0;
  };
  /// Of the slowest of ranks [first_rank, first_rank + rank_count); nothing: one of them has none.
  /// Thread-safe.
  [[nodiscard]] std::optional<Way> slowest(bool to_host, int first_rank, int rank_count) const;

 private:
  struct Ways {
    std::optional<Way> to_host, from_host;
  };
  void find() const;
  [[nodiscard]] std::vector<Ways> ways_of_host(
      std::uint32_t host, const std::vector<topologies::VertexId>& bridges) const;

  const topologies::Topology& topology_;
  mutable std::once_flag once_;
  // by device of a host where all hosts are alike, else by rank
  mutable std::vector<Ways> ways_;
};

}  // namespace orrery::costmodel

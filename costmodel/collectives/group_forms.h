#pragma once
/// \file
/// Closed-form time of a collective as NCCL runs it, for every algorithm and protocol, and the
/// choice among them.
///
/// n ranks, m on each of H hosts, S bytes of the whole tensor, C channels. Rates r are those of one
/// flow when all flows of the pattern run: the least over links of floor(capacity * efficiency /
/// flows). A protocol of share s puts w(x) = ceil(x / s) bytes on the wire for x bytes of data, and
/// its limit holds for the data (costmodel/collectives/collective_tuning.h). alpha is a hop's
/// latency.
///
///   ring             base + (steps - 1) * max(s h, h + alpha) + s h + alpha + S / n / copy
///                    h = w(S / (n C s)) / r + o,  s = 1, o = 0 but for
///                    Simple over hosts: s = 2 slices of a chunk. A device passes the first on
///                    while the second is on its way, so what is shorter than h of alpha, then the
///                    network's latency alone, is hidden. What a block of threads does itself for a
///                    hop in its host, o = device / s, is not
///                    steps: all-reduce 2(n-1), all-gather, reduce-scatter n-1
///                    alpha = ((steps - inter) * device + inter * network) / steps
///                    inter: the same with H for n; NCCL spreads nothing, but only the sum matters
///                    where steps are equal
///   ring, broadcast  base + (n-1) * (alpha + d) + (K-1) * d,  d = w(S / (C K)) / r
///                    chain of n ranks, K chunks
///   tree             base + 2 * sum of alpha of the way up + (K + D) * d,  d = w(S / (C K)) / r
///                    D: filling the pipeline, half the 2 depth - 1 hops, as links are half used
///                    then. LL and LL128 have little: they pass lines on, not chunks
///   NVLS             base + 2 w(c/h) h / r + (K+1) * w(c/h) (h+1) / r
///                    K chunks c: copied in, reduced by the switch on the way up, multicast on the
///                    way down, copied out. h heads, at most 32 of the m, reduce a part each; a
///                    link carries S towards the switch for the reduction and S/h for the
///                    multicast, and the same down: S (1 + 1/h) each way. The copies keep pace with
///                    that: NCCL gives them 8 and 7 of a block's 20 warps
///   NVLS tree        as NVLS, between reduction and multicast up and down both binary trees of
///                    hosts, half of the head's part each, with its own card: 2 depth hops of alpha
///                    and of the head's pace w(c/h) (h+1) / r, or the card's if that is slower.
///                    Beyond two hosts heads have two children and half the rate
///   direct           base + alpha + w(S / n) / r + S / n / copy
///                    everyone to everyone (all-to-all), or to the next (point-to-point: S)
/// Sources: NVIDIA/nccl src/graph/tuning.cc (latencies, limits, steps of ring and tree),
/// src/enqueue.cc (chunks of NVLS, from 128 KiB a channel and head on: 64, 32, 16 KiB while fewer
/// than 64, 8, 2 would fill the tensor; of NVLS trees 64, 32 KiB below 4, 1, and 64 KiB on 4 hosts
/// or 16 devices a host and more), src/transport/nvls.cc (channels), src/include/device.h (32
/// heads), src/device/all_reduce.h (warps), src/include/collectives.h (a chunk of a ring is four
/// steps of its buffer, a slice two), src/graph/tuning.cc at b647562 (an NVLS tree's rate halves
/// beyond two hosts), nccl-tests PERFORMANCE.md (steps, bus bandwidth), Rabenseifner 2004 and
/// Thakur et al. 2005 (halving-doubling). What these leave open is the copy of a rank's own part,
/// measurable at n = 2: S/n at the rate at which the channels' blocks copy.
///
/// A training step takes them as they are (collectives.h), `orrery collective` message by message
/// (sim/network/collective_schedule.h): ring and direct agree to the picosecond when nothing else
/// runs, the pipelined ones within their filling
/// (tests/property/sim/collective_closed_form_test.cc).
///
/// Choice: costmodel/collectives/collective_choice.h. LL128 needs NVLink, NVLS a switch that
/// reduces.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "costmodel/collectives/collective_choice.h"
#include "costmodel/collectives/collective_patterns.h"
#include "costmodel/collectives/collective_tuning.h"
#include "model/profile.h"

namespace orrery::costmodel {

/// All that prices and schedules of one (operation, size, algorithm, protocol) need beside the
/// pattern.
struct CollectiveTerms {
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  std::int64_t base_ps = 0;        // before the first message
  std::int64_t device_hop_ps = 0;  // ring: both are alpha
  std::int64_t network_hop_ps = 0;
  std::int64_t hold_ps = 0;  // o
  double rate_share = 1;
  std::int64_t flow_limit = 0;   // bytes/s of one flow; 0: none
  std::int64_t piece_bytes = 0;  // data of one message
  // steps of a ring (hierarchical: across hosts), chunks of a pipeline
  std::int64_t repeats = 1;
  std::int64_t slices = 1;   // messages of a ring's step
  std::int64_t copy_ps = 0;  // at the end; NVLS: of one chunk, before and after
  std::int64_t wire_bytes(std::int64_t data) const;
  /// As a step finds them: latencies so many times as long, limits so many times as low.
  void slow_down(double latencies, double limits);
};

inline constexpr int kHostTrees = 2;  // that an NVLS tree splits a head's part between

/// What NCCL takes.
struct CollectiveChoice {
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
};

/// Bytes per second of one unit flow of the pattern (collective_patterns.h) alone, of a tree of
/// switches of the data between hosts; and of a device's link to its switch.
struct FlowRates {
  std::int64_t flow = 0;
  std::int64_t switch_link = 0;
};

struct CollectiveDuration {
  std::int64_t time_ps = 0;
  std::int64_t wire_ps = 0;  // of it, what goes with the rate
  bool limited = false;      // by the library's own limit, not by links
};

class GroupForms {
 public:
  using Op = model::Collective;
  /// Both must outlive this object. @pre at least two ranks.
  GroupForms(const CollectiveTuning& tuning, const GroupShape& shape);

  const GroupShape& shape() const { return *shape_; }
  bool available(Op op, Algorithm algorithm, Protocol protocol) const;
  /// @pre available.
  CollectiveTerms terms(Op op, std::int64_t bytes, Algorithm algorithm, Protocol protocol) const;
  static Pattern pattern_of(Op op, Algorithm algorithm);
  /// What one unit flow of the pattern carries.
  std::int64_t unit_wire_bytes(Op op, const CollectiveTerms& terms) const;
  /// @pre none of halving-doubling, hierarchical.
  CollectiveDuration duration(Op op, const CollectiveTerms& terms, const FlowRates& rates) const;
  /// The same for ring and tree when every message of the pattern spends `message_ps` on the wire.
  std::int64_t paced_ps(Op op, const CollectiveTerms& terms, std::int64_t message_ps) const;
  /// What NCCL takes; of exchanges, where its tuner has no say, the fastest. `rates`: of rings, or
  /// of the exchange. With `algorithm`, the protocol that it takes then. Nothing: not available.
  std::optional<CollectiveChoice> choose(Op op, std::int64_t bytes, const FlowRates& rates,
                                         std::optional<Algorithm> algorithm = {}) const;

 private:
  std::int64_t ring_limit(Protocol p, double flows) const;
  base::Seconds device_latency(const HopLatencies& latency, Protocol p) const;
  base::Seconds network_latency(const HopLatencies& latency, Protocol p) const;
  std::int64_t nvls_chunk(std::int64_t bytes, Algorithm algorithm) const;
  CollectiveTerms ring_terms(Op op, std::int64_t bytes, Protocol p) const;
  CollectiveTerms tree_terms(std::int64_t bytes, Protocol p) const;
  CollectiveTerms nvls_terms(std::int64_t bytes, Algorithm algorithm) const;
  CollectiveTerms direct_terms(Op op, std::int64_t bytes, Protocol p) const;
  CollectiveTerms exchange_terms(std::int64_t bytes, Algorithm algorithm, Protocol p) const;
  CollectiveDuration nvls(const CollectiveTerms& terms, const FlowRates& rates) const;

  const CollectiveTuning* tuning_;
  const GroupShape* shape_;
};

/// Bus bandwidth per algorithm bandwidth, as nccl-tests defines it: 2(n-1)/n, (n-1)/n or 1.
double bus_factor(model::Collective op, int ranks);

}  // namespace orrery::costmodel

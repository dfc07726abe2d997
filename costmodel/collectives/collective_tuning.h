#pragma once
/// \file
/// What a communication library needs for a collective on a kind of device: latencies, rates and
/// chunks, as NCCL's own tuner states them.
///
/// One record (schema `orrery.collective_tuning/1`, docs/schemas.md) holds either the constants
/// that NCCL publishes for an architecture (costmodel/tunings/volta.json ... blackwell.json) or the
/// same quantities calibrated on one machine (…-measured.json). The closed forms that use them
/// stand in costmodel/collectives/group_forms.h, and NCCL's choice, which rests on the
/// published ones alone, in costmodel/collectives/collective_choice.h.
///
///   protocol   rate of a link that is left, and what a message looks like on the wire
///   LL         1/2    8 bytes carry 4 of data and 4 of flag: no separate synchronisation
///   LL128      0.92   128 bytes carry 120 of data and 8 of flag, needs stores that keep order
///   Simple     1      data, then a flag: full rate, highest latency
#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "base/result.h"
#include "base/units.h"

namespace orrery::costmodel {

enum class Protocol : std::uint8_t { kLL, kLL128, kSimple };
inline constexpr std::array kProtocols{Protocol::kLL, Protocol::kLL128, Protocol::kSimple};
std::string_view to_string(Protocol protocol);

template <class T>
using PerProtocol = std::array<T, 3>;
/// NCCL keeps three scales of some limits: one host, two hosts, more.
template <class T>
using PerScale = std::array<T, 3>;

/// Latencies of one algorithm: once, and for every hop by what it crosses.
struct HopLatencies {
  PerProtocol<base::Seconds> base{};
  PerProtocol<base::Seconds> device{};  // NVLink, xGMI
  PerProtocol<base::Seconds> pcie{};
  PerProtocol<base::Seconds> network{};

  base::Seconds device_hop(Protocol p, bool over_pcie) const {
    return over_pcie ? pcie[as_index(p)] : device[as_index(p)];
  }
  /// `extra`: of the network itself, which a Simple hop pays for the data and for its flag.
  base::Seconds network_hop(Protocol p, base::Seconds extra) const {
    return network[as_index(p)] + extra * (p == Protocol::kSimple ? 2.0 : 1.0);
  }
};

struct CollectiveTuning {
  std::string name = {};
  std::string description = {};
  std::string source = {};
  // prefixes of device model names
  std::vector<std::string> devices = {};
  // published record by whose constants NCCL chooses; empty: this one
  std::string chosen_by = {};
  std::shared_ptr<const CollectiveTuning> chooser = {};  // that record, once found
  std::string fingerprint = {};                          // of both files
  // link kind: share of the datasheet's rate that data gets; 1 of one that is not listed
  std::vector<std::pair<std::string, double>> link_efficiency = {};
  // link kind: what the network plugin adds to a hop
  std::vector<std::pair<std::string, base::Seconds>> network_latency = {};
  base::Seconds network_overhead{};  // to post a message
  std::int64_t channels = 1;
  // of the own part, input to output
  base::BytesPerSecond local_copy{};

  struct Ring {
    HopLatencies latency = {};
    PerProtocol<double> rate{};
    PerScale<base::BytesPerSecond> ll_limit{};   // 0: none
    base::BytesPerSecond ll128_channel_limit{};  // 0: none
    double plateau = 1;                          // latency of Simple over several hosts
  } ring = {};
  struct Tree {
    HopLatencies latency = {};
    PerProtocol<double> rate{};
    PerScale<base::BytesPerSecond> channel_limit{};        // 0: none
    PerScale<base::BytesPerSecond> ll128_channel_limit{};  // 0: none
    PerProtocol<std::vector<double>> correction = {};      // share of the rate by log2(bytes / 64)
    double correction_at(Protocol protocol, std::int64_t bytes) const;
  } tree = {};
  // reduction in the switch; efficiency 0: the device has none
  struct Nvls {
    double efficiency = 0;
    base::Seconds latency{}, network_hop{};
    std::int64_t channels = 1;       // thread blocks of a device
    std::int64_t tree_channels = 1;  // the same over several hosts
    std::int64_t chunk_bytes = 1, min_ranks = 2;
    std::int64_t max_heads = 1;  // devices of a host that reduce
    // share of the rate that is left: a head of an inner host has two children
    double beyond_two_hosts = 1;
    PerScale<base::BytesPerSecond> tree_channel_limit{};  // of a head, 0: none; what NCCL expects
  } nvls = {};
  // grouped sends and receives; LL and Simple only
  struct Direct {
    PerProtocol<base::Seconds> base{};
    PerProtocol<double> rate{};
    base::BytesPerSecond local_copy{};
  } direct = {};

  base::Seconds network_extra(std::string_view link_kind) const;
  const CollectiveTuning& by_which_nccl_chooses() const { return chooser ? *chooser : *this; }

  /// What a hop inside a host takes at least where there are several hosts: Simple posts three
  /// times.
  base::Seconds posting(Protocol p) const {
    return network_overhead * (p == Protocol::kSimple ? 3.0 : 1.0);
  }
};

/// Reads `orrery.collective_tuning/1`; `chooser` is left empty. Errors: those of base/config.h;
/// kOutOfRange for shares outside (0, 1] and the like.
[[nodiscard]] base::Result<CollectiveTuning> parse_tuning(std::string_view text,
                                                          std::string_view name);

/// By name (costmodel/tunings/), by path of a JSON file, or "published": NCCL's constants for the
/// architecture of `device`, or "auto": what was calibrated on the device, else that. A device of
/// unknown kind gets "generic". kNotFound with a hint.
[[nodiscard]] base::Result<CollectiveTuning> find_tuning(std::string_view name,
                                                         std::string_view device);
/// Of several kinds of device NCCL goes by the oldest: the one of least LL bandwidth. @pre at least
/// one.
[[nodiscard]] base::Result<CollectiveTuning> find_tuning(std::string_view name,
                                                         const std::set<std::string>& devices);
std::vector<std::string> list_tunings();

}  // namespace orrery::costmodel

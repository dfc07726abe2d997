#pragma once
/// \file
/// Which algorithm and protocol NCCL takes. It compares times that its tuner expects from published
/// constants alone, however fast or slow they turn out on a machine; what the chosen one takes is
/// another matter (costmodel/collectives/group_forms.h).
///
/// n ranks on H hosts, S bytes, B bytes/s of all ring channels together, C channels, s(op) steps of
/// a ring, L bytes/s of a device's link to its switch, h devices of a host that reduce. Expected
/// time = latency + S / bandwidth:
///
///   ring        bandwidth n / s(op) * b,  LL: b = min(B/2, limit);  LL128: min(0.92 B, C limit);
///               Simple: B
///               latency   base + (s(op) - s of H) * device + (s of H) * network;  Simple over
///               hosts, all-reduce: times the plateau
///               broadcast: one hop, and B
///   tree        bandwidth 1/2 * correction(S) * b,  b = min(0.92 min(B, L), C limit), on two hosts
///               2 B;  LL: min(b / 3.8, limit);  LL128: min(7/9 b, C limit), 15/16 over hosts
///               latency   base + 2 ((n/H - 1) device + floor(log2 H) network)
///   NVLS        bandwidth n / s(op) * 2 (h-1)/h * efficiency * L
///               latency   that of NVLS
///   NVLS tree   bandwidth n / s(op) * b,
///               b = min(2 (h-1)/h * efficiency * L, B, twice that on two hosts, h limit)
///               latency   that of NVLS + 2 floor(log2 H) hop
/// Source: NVIDIA/nccl@5067397c src/graph/tuning.cc. Its graph search (src/graph/search.cc) is
/// taken to find what the links give: B for ring and tree, and up to twice that inside two hosts,
/// where a tree loads a card half as much.
#include "costmodel/collectives/collective_tuning.h"
#include "model/profile.h"

namespace orrery::costmodel {

enum class Algorithm : std::uint8_t {
  kRing,
  kTree,
  kNvls,
  kNvlsTree,
  kHalvingDoubling,
  kHierarchical,
  kDirect
};
inline constexpr std::array kAlgorithms{Algorithm::kRing,
                                        Algorithm::kTree,
                                        Algorithm::kNvls,
                                        Algorithm::kNvlsTree,
                                        Algorithm::kHalvingDoubling,
                                        Algorithm::kHierarchical,
                                        Algorithm::kDirect};
std::string_view to_string(Algorithm algorithm);

/// What the tuner sees of a machine and a group.
struct GroupOnMachine {
  int ranks = 2, hosts = 1, nvls_heads = 1;
  base::BytesPerSecond rings{};        // B
  base::BytesPerSecond switch_link{};  // L; 0: no switch
  bool pcie = false;                   // devices of a host meet over PCIe
  // what the network's plug-in states beside NCCL's latency of a hop
  base::Seconds network_extra{};
};

/// Steps of a ring: 2(n-1), n-1 or 1.
std::int64_t ring_steps(model::Collective op, std::int64_t ranks);

/// 0, 1, 2: one host, two, more.
std::size_t scale_of(int hosts);

/// Seconds that NCCL expects. @pre one of ring, tree, NVLS, NVLS tree, and `published` has its
/// constants.
double expected_seconds(const CollectiveTuning& published, const GroupOnMachine& group,
                        model::Collective op, std::int64_t bytes, Algorithm algorithm,
                        Protocol protocol);

}  // namespace orrery::costmodel

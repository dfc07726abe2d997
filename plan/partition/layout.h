#pragma once
/// \file
/// Where the blocks of a tensor lie on up to 64 devices, and what a change of layout moves.
///
/// Device D holds the slice S_X(D) of each dimension X of a tensor and needs S'_X(D). Slices are
/// halves of halves, so that two of them are disjoint or one holds the other, and D finds
///
///   prod_X |S_X(D) n S'_X(D)| = prod_X 2^-max(bits, bits') or 0
///
/// of the tensor at home (PrimePar, section 4). The rest comes from a device of its host where one
/// has it, else from another host.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/partition/partition.h"

namespace orrery::plan {

/// One dimension: bit j of every device's slice, highest first; device d is bit d of the word.
struct SlicePlanes {
  int bits = 0;
  std::array<std::uint64_t, kMostBits> planes{};
  bool operator==(const SlicePlanes&) const = default;
};

inline constexpr std::size_t kTensorDimensions = 4;

/// Of a tensor of at most four dimensions; those that it has not are whole.
struct Layout64 {
  std::array<SlicePlanes, kTensorDimensions> dimensions{};
  /// The tensor's share on one device is 2^-bits.
  int bits() const;
  bool operator==(const Layout64&) const = default;
};
/// For unordered containers.
struct LayoutHash {
  std::size_t operator()(const SlicePlanes& slices) const;
  std::size_t operator()(const Layout64& layout) const;
};
/// Of `dimensions` as `partition` has them in a step.
Layout64 layout_of(const Partition& partition, std::span<const Dimension> dimensions, Phase phase,
                   int step);

/// Sums over all devices, in units of 2^-12 of the whole tensor.
inline constexpr int kShareBits = 2 * kMostBits;
struct Traffic {
  std::int64_t in_hosts = 0, across_hosts = 0;
  bool operator==(const Traffic&) const = default;
};

/// What a change moves, by layout of several.
struct TrafficColumns {
  std::span<std::int32_t> in_hosts, across;
};

/// Of every change from one of `held` to one of `wanted`, and back. Hosts are blocks of 2^host_bits
/// neighbours of 2^bits devices. Few slices of a dimension occur in many layouts, so which devices
/// meet is found once for each pair of slices. The pairs of devices of a host whose blocks meet are
/// the same both ways:
///
///   at home or in the host = pairs / copies of a block in a host * size of what meets
class TrafficTable {
 public:
  /// @pre host_bits <= bits.
  TrafficTable(std::span<const Layout64> held, std::span<const Layout64> wanted, int bits,
               int host_bits);
  /// Between held[h] and wanted[first], wanted[first + 1], ... @pre all spans as long, and as many
  /// layouts there.
  void between(std::size_t h, std::size_t first, const TrafficColumns& there,
               const TrafficColumns& back) const;

 private:
  template <std::size_t kWords>
  void count(std::size_t h, std::size_t first, const TrafficColumns& there,
             const TrafficColumns& back) const;
  struct Side {
    std::vector<std::array<std::uint16_t, kTensorDimensions>> slices;  // [layout] by dimension
    std::vector<int> bits;                                             // [layout]
    std::vector<int> copies;  // [layout] devices of a host with equal blocks are 2^copies
    std::array<std::vector<SlicePlanes>, kTensorDimensions> known;  // by dimension
  };
  [[nodiscard]] Side side_of(std::span<const Layout64> layouts) const;

  int bits_;
  std::size_t views_;  // of a host's devices: d sees what d ^ x holds
  std::size_t words_;  // that hold the devices of all views side by side
  Side held_, wanted_;
  // by dimension: [held slices][wanted slices][word] devices that meet
  std::array<std::vector<std::uint64_t>, kTensorDimensions> meets_;
  // [held slices][wanted slices] bits of the finer
  std::array<std::vector<std::uint8_t>, kTensorDimensions> finer_;
};

/// Of one change.
Traffic traffic(const Layout64& held, const Layout64& wanted, int bits, int host_bits);

}  // namespace orrery::plan

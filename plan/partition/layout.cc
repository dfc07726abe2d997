#include "plan/partition/layout.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::plan {
namespace {

/// Bit d of the result is bit d ^ (1 << bit) of the word.
std::uint64_t swapped(std::uint64_t word, int bit) {
  constexpr std::array<std::uint64_t, kMostBits> kLow{0x5555555555555555, 0x3333333333333333,
                                                      0x0f0f0f0f0f0f0f0f, 0x00ff00ff00ff00ff,
                                                      0x0000ffff0000ffff, 0x00000000ffffffff};
  const int shift = 1 << bit;
  const std::uint64_t low = kLow[as_index(bit)];
  return (word >> shift & low) | (word & low) << shift;
}

/// Devices whose slices of `a` and `b` meet.
std::uint64_t meeting(const Layout64& a, const Layout64& b, std::uint64_t devices) {
  for (std::size_t x = 0; x < kTensorDimensions; ++x) {
    const SlicePlanes &p = a.dimensions[x], &q = b.dimensions[x];
    for (int j = 0; j < std::min(p.bits, q.bits); ++j)
      devices &= ~(p.planes[as_index(j)] ^ q.planes[as_index(j)]);
  }
  return devices;
}

std::uint64_t all_devices(int bits) { return ~std::uint64_t{0} >> (64 - (1 << bits)); }

}  // namespace

int Layout64::bits() const {
  int all = 0;
  for (const SlicePlanes& d : dimensions) all += d.bits;
  return all;
}

Layout64 layout_of(const Partition& p, std::span<const Dimension> dimensions, Phase phase,
                   int step) {
  ORRERY_CHECK(dimensions.size() <= kTensorDimensions);
  Layout64 layout;
  for (std::size_t x = 0; x < dimensions.size(); ++x) {
    SlicePlanes& planes = layout.dimensions[x];
    planes.bits = p.slice_bits(dimensions[x]);
    for (int device = 0; device < p.devices(); ++device) {
      const auto slice = static_cast<std::uint64_t>(p.slice(dimensions[x], phase, device, step));
      for (int j = 0; j < planes.bits; ++j)
        planes.planes[as_index(j)] |= (slice >> (planes.bits - 1 - j) & 1) << device;
    }
  }
  return layout;
}

HeldLayout::HeldLayout(const Layout64& layout, int bits, int host_bits) : bits_(bits) {
  views_.assign(std::size_t{1} << host_bits, layout);
  for (std::size_t x = 1; x < views_.size(); ++x) {
    const int bit = std::countr_zero(x);
    views_[x] = views_[x & (x - 1)];
    for (SlicePlanes& d : views_[x].dimensions)
      for (int j = 0; j < d.bits; ++j) d.planes[as_index(j)] = swapped(d.planes[as_index(j)], bit);
  }
  copies_ = as_int(std::ranges::count(views_, layout));
}

Traffic HeldLayout::traffic_to(const Layout64& wanted) const {
  int finer = 0;  // bits of a block that is both held and wanted
  for (std::size_t x = 0; x < kTensorDimensions; ++x)
    finer += std::max(views_.front().dimensions[x].bits, wanted.dimensions[x].bits);
  const std::uint64_t devices = all_devices(bits_);
  const auto found = [&](const Layout64& held) {
    return std::popcount(meeting(held, wanted, devices));
  };
  const std::int64_t home = found(views_.front());
  std::int64_t in_host = 0;
  for (const Layout64& view : views_) in_host += found(view);
  const auto share = [](std::int64_t blocks, int block_bits) {
    return blocks << (kShareBits - block_bits);
  };
  const std::int64_t host = share(in_host / copies_, finer), own = share(home, finer);
  return {.in_hosts = host - own,
          .across_hosts = share(std::int64_t{1} << bits_, wanted.bits()) - host};
}

}  // namespace orrery::plan

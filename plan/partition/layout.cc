#include "plan/partition/layout.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/partition/clones.h"

namespace orrery::plan {
namespace {

/// [j] the devices whose bit j is 0.
constexpr std::array<std::uint64_t, kMostBits> kLow{0x5555555555555555, 0x3333333333333333,
                                                    0x0f0f0f0f0f0f0f0f, 0x00ff00ff00ff00ff,
                                                    0x0000ffff0000ffff, 0x00000000ffffffff};

/// Bit d of the result is bit d ^ (1 << bit) of the word.
std::uint64_t swapped(std::uint64_t word, int bit) {
  const int shift = 1 << bit;
  const std::uint64_t low = kLow[as_index(bit)];
  return (word >> shift & low) | (word & low) << shift;
}

/// Devices whose slices meet.
std::uint64_t meeting(const SlicePlanes& p, const SlicePlanes& q, std::uint64_t devices) {
  for (int j = 0; j < std::min(p.bits, q.bits); ++j)
    devices &= ~(p.planes[as_index(j)] ^ q.planes[as_index(j)]);
  return devices;
}

/// The same with devices d and d ^ x swapped.
SlicePlanes seen_from(SlicePlanes d, std::size_t x) {
  for (; x != 0; x &= x - 1)
    for (int j = 0; j < d.bits; ++j)
      d.planes[as_index(j)] = swapped(d.planes[as_index(j)], std::countr_zero(x));
  return d;
}

std::uint64_t all_devices(int bits) { return ~std::uint64_t{0} >> (64 - (1 << bits)); }

}  // namespace

int Layout64::bits() const {
  int all = 0;
  for (const SlicePlanes& d : dimensions) all += d.bits;
  return all;
}

std::size_t LayoutHash::operator()(const SlicePlanes& slices) const {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  auto hash = static_cast<std::uint64_t>(slices.bits);
  for (int j = 0; j < slices.bits; ++j)
    hash = std::rotl((hash ^ slices.planes[as_index(j)]) * kOdd, 29);
  return hash;
}
std::size_t LayoutHash::operator()(const Layout64& layout) const {
  std::size_t hash = 0;
  for (const SlicePlanes& slices : layout.dimensions) hash = std::rotl(hash, 7) ^ (*this)(slices);
  return hash;
}

Layout64 layout_of(const Partition& p, std::span<const Dimension> dimensions, Phase phase,
                   int step) {
  ORRERY_CHECK(dimensions.size() <= kTensorDimensions);
  Layout64 layout;
  for (std::size_t x = 0; x < dimensions.size(); ++x) {
    SlicePlanes& planes = layout.dimensions[x];
    planes.bits = p.slice_bits(dimensions[x]);
    if (std::uint32_t mask = p.split_mask(dimensions[x]); std::popcount(mask) == planes.bits) {
      for (int j = 0; j < planes.bits; ++j) {  // splits alone: id bits themselves
        const int bit = as_int(std::bit_width(mask)) - 1;
        mask ^= 1U << bit;
        planes.planes[as_index(j)] = ~kLow[as_index(bit)] & all_devices(p.bits());
      }
      continue;
    }
    const std::vector<int> slices = p.slices_of(dimensions[x], phase, step);
    for (std::size_t device = 0; device < slices.size(); ++device)
      for (int j = 0; j < planes.bits; ++j)
        planes.planes[as_index(j)] |=
            static_cast<std::uint64_t>(slices[device] >> (planes.bits - 1 - j) & 1) << device;
  }
  return layout;
}

TrafficTable::Side TrafficTable::side_of(std::span<const Layout64> layouts) const {
  Side side;
  std::array<std::unordered_map<SlicePlanes, std::uint16_t, LayoutHash>, kTensorDimensions> ids;
  for (const Layout64& layout : layouts) {
    auto& slices = side.slices.emplace_back();
    for (std::size_t x = 0; x < kTensorDimensions; ++x) {
      const auto [at, fresh] = ids[x].try_emplace(layout.dimensions[x],
                                                  static_cast<std::uint16_t>(side.known[x].size()));
      if (fresh) side.known[x].push_back(layout.dimensions[x]);
      slices[x] = at->second;
    }
    side.bits.push_back(layout.bits());
  }
  // [dimension][slices] the views that change nothing, as a set
  std::array<std::vector<std::uint64_t>, kTensorDimensions> same;
  for (std::size_t x = 0; x < kTensorDimensions; ++x)
    for (const SlicePlanes& slices : side.known[x]) {
      std::uint64_t& views = same[x].emplace_back(0);
      for (std::size_t view = 0; view < views_; ++view)
        if (seen_from(slices, view) == slices) views |= std::uint64_t{1} << view;
    }
  for (const auto& slices : side.slices) {
    std::uint64_t views = ~std::uint64_t{0};
    for (std::size_t x = 0; x < kTensorDimensions; ++x) views &= same[x][slices[x]];
    side.copies.push_back(std::countr_zero(as_u32(std::popcount(views))));
  }
  return side;
}

TrafficTable::TrafficTable(std::span<const Layout64> held, std::span<const Layout64> wanted,
                           int bits, int host_bits)
    : bits_(bits),
      views_(std::size_t{1} << host_bits),
      words_(std::max<std::size_t>(1, (views_ << bits) / 64)),
      held_(side_of(held)),
      wanted_(side_of(wanted)) {
  const std::uint64_t all = all_devices(bits);
  for (std::size_t x = 0; x < kTensorDimensions; ++x) {
    const std::size_t columns = wanted_.known[x].size();
    meets_[x].resize(words_ * columns * held_.known[x].size());
    for (const SlicePlanes& h : held_.known[x])
      for (const SlicePlanes& w : wanted_.known[x])
        finer_[x].push_back(static_cast<std::uint8_t>(std::max(h.bits, w.bits)));
    for (std::size_t view = 0; view < views_; ++view)
      for (std::size_t h = 0; h < held_.known[x].size(); ++h) {
        const SlicePlanes seen = seen_from(held_.known[x][h], view);
        const std::size_t place = view << bits;  // bit of the view's first device
        for (std::size_t w = 0; w < columns; ++w)
          meets_[x][(h * columns + w) * words_ + place / 64] |=
              meeting(seen, wanted_.known[x][w], all) << place % 64;
      }
  }
}

/// Unrolled for so many words.
template <std::size_t kWords>
[[gnu::always_inline]] inline void TrafficTable::count(std::size_t h, std::size_t first,
                                                       const TrafficColumns& there,
                                                       const TrafficColumns& back) const {
  // rows of the tables that belong to h
  std::array<const std::uint64_t*, kTensorDimensions> meet;
  std::array<const std::uint8_t*, kTensorDimensions> finer;
  for (std::size_t x = 0; x < kTensorDimensions; ++x) {
    const std::size_t row = held_.slices[h][x] * wanted_.known[x].size();
    meet[x] = meets_[x].data() + row * kWords;
    finer[x] = finer_[x].data() + row;
  }
  const std::uint64_t first_view = all_devices(bits_);
  const int copies = held_.copies[h], all = bits_ + kShareBits;
  const std::int32_t held = 1 << (all - held_.bits[h]);
  for (std::size_t i = 0; i < there.across.size(); ++i) {
    const std::size_t w = first + i;
    const auto& [a, b, c, d] = wanted_.slices[w];
    const std::uint64_t *p = meet[0] + a * kWords, *q = meet[1] + b * kWords,
                        *r = meet[2] + c * kWords, *s = meet[3] + d * kWords;
    const std::uint64_t devices = p[0] & q[0] & r[0] & s[0];
    int pairs = std::popcount(devices);
    for (std::size_t word = 1; word < kWords; ++word)
      pairs += std::popcount(p[word] & q[word] & r[word] & s[word]);
    const int block = kShareBits - finer[0][a] - finer[1][b] - finer[2][c] - finer[3][d];
    const int home = std::popcount(devices & first_view) << block;
    const int in_host = pairs >> copies << block,
              in_host_back = pairs >> wanted_.copies[w] << block;
    there.in_hosts[i] = in_host - home;
    there.across[i] = (1 << (all - wanted_.bits[w])) - in_host;
    back.in_hosts[i] = in_host_back - home;
    back.across[i] = held - in_host_back;
  }
}

ORRERY_CLONES("avx2")
void TrafficTable::between(std::size_t h, std::size_t first, const TrafficColumns& there,
                           const TrafficColumns& back) const {
  switch (words_) {
    case 1: return count<1>(h, first, there, back);
    case 2: return count<2>(h, first, there, back);
    case 4: return count<4>(h, first, there, back);
    case 8: return count<8>(h, first, there, back);
    case 16: return count<16>(h, first, there, back);
    case 32: return count<32>(h, first, there, back);
    default: return count<64>(h, first, there, back);
  }
}

Traffic traffic(const Layout64& held, const Layout64& wanted, int bits, int host_bits) {
  std::array<std::int32_t, 4> moved{};
  TrafficTable({&held, 1}, {&wanted, 1}, bits, host_bits)
      .between(0, 0, {{&moved[0], 1}, {&moved[1], 1}}, {{&moved[2], 1}, {&moved[3], 1}});
  return {moved[0], moved[1]};
}

}  // namespace orrery::plan

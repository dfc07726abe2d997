#include "plan/partition/redistribution.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::plan {
namespace {

int slice_of(const SlicePlanes& planes, int device) {
  int slice = 0;
  for (int j = 0; j < planes.bits; ++j)
    slice = 2 * slice + as_int(planes.planes[as_index(j)] >> device & 1);
  return slice;
}

std::array<int, kTensorDimensions> slices_of(const Layout64& layout, int device) {
  std::array<int, kTensorDimensions> slices{};
  for (std::size_t x = 0; x < kTensorDimensions; ++x)
    slices[x] = slice_of(layout.dimensions[x], device);
  return slices;
}

std::int64_t elements_of(const Extents4& extents) {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

/// Of the devices with these slices the one whose number differs from `device` least.
int nearest(const Layout64& held, const std::array<int, kTensorDimensions>& wanted, int devices,
            int device) {
  for (int other = 0; other < devices; ++other)
    if (slices_of(held, device ^ other) == wanted) return device ^ other;
  ORRERY_CHECK(false, "a cell that no device holds");
}

}  // namespace

Extents4 RedistributedTensor::held_extents() const {
  Extents4 e = extents;
  for (std::size_t x = 0; x < e.size(); ++x) e[x] >>= held.dimensions[x].bits;
  return e;
}
Extents4 RedistributedTensor::wanted_extents() const {
  Extents4 e = extents;
  for (std::size_t x = 0; x < e.size(); ++x) e[x] >>= wanted.dimensions[x].bits;
  return e;
}
std::int64_t RedistributedTensor::held_elements() const { return elements_of(held_extents()); }
std::int64_t RedistributedTensor::wanted_elements() const { return elements_of(wanted_extents()); }
Extents4 RedistributedTensor::cell() const {
  Extents4 e = extents;
  for (std::size_t x = 0; x < e.size(); ++x)
    e[x] >>= std::max(held.dimensions[x].bits, wanted.dimensions[x].bits);
  return e;
}
std::int64_t RedistributedTensor::cell_elements() const { return elements_of(cell()); }

std::vector<Fetch> fetches(const RedistributedTensor& t, int bits, int device) {
  const std::array<int, kTensorDimensions> own = slices_of(t.wanted, device);
  const Extents4 cell = t.cell();
  std::array<int, kTensorDimensions> finer{}, counts{};
  for (std::size_t x = 0; x < kTensorDimensions; ++x) {
    finer[x] = t.held.dimensions[x].bits - t.wanted.dimensions[x].bits;
    counts[x] = 1 << std::max(finer[x], 0);
  }
  const int cells = counts[0] * counts[1] * counts[2] * counts[3];
  std::vector<Fetch> all;
  for (int i = 0; i < cells; ++i) {
    Fetch f;
    std::array<int, kTensorDimensions> held{};
    int rest = i;
    for (std::size_t x = kTensorDimensions; x-- > 0;) {
      const int j = rest % counts[x];  // of the block's cells in this dimension
      rest /= counts[x];
      if (finer[x] >= 0) {
        held[x] = (own[x] << finer[x]) + j;
        f.wanted[x] = j * cell[x];
      } else {
        held[x] = own[x] >> -finer[x];
        f.held[x] = (own[x] & ((1 << -finer[x]) - 1)) * cell[x];
      }
    }
    f.sender = nearest(t.held, held, 1 << bits, device);
    all.push_back(f);
  }
  return all;
}

bool lies_alike(const RedistributedTensor& t) { return t.held == t.wanted; }

std::int64_t received_elements(const Redistribution& r, int device) {
  std::int64_t sum = 0;
  for (const RedistributedTensor& t : r.tensors)
    for (const Fetch& f : fetches(t, r.bits, device))
      if (f.sender != device) sum += t.cell_elements();
  return sum;
}

}  // namespace orrery::plan

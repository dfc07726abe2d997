#pragma once
/// \file
/// A change of layout between partitioned operators: which blocks of a tensor come to a device from
/// which other one.
///
/// A tensor [e_0, e_1, e_2, e_3] (leading extents 1 where it has fewer dimensions) lies in blocks
/// of one layout and is wanted in those of another (layout.h). Slices are halves of halves, so a
/// block that is wanted consists of equal *cells*, of the finer slices in every dimension:
///
///   cells of a block = prod_x 2^(max(held, wanted) - wanted)
///   cell             = prod_x e_x / 2^max(held, wanted)   elements
///
/// A cell stays where it is at home; else it comes from that of its holders whose number differs
/// from the device's in the lowest bits: one of its host where there is one. The innermost
/// dimension may be a section of the rows of a buffer (q, k or v of [q | k | v]).
#include <array>
#include <cstdint>
#include <vector>

#include "plan/partition/layout.h"

namespace orrery::plan {

using Extents4 = std::array<std::int64_t, kTensorDimensions>;

/// One tensor, or a section of it.
struct RedistributedTensor {
  int from = 0, to = 0;  // which of an operation's reads and writes
  Layout64 held = {}, wanted = {};
  Extents4 extents{1, 1, 1, 1};  // of the whole tensor
  // of the local buffers: elements of a row, and where in it the section begins
  std::int64_t held_row = 0, held_offset = 0, wanted_row = 0, wanted_offset = 0;
  /// Elements of a device's block, as it is held and as it is wanted.
  [[nodiscard]] std::int64_t held_elements() const;
  [[nodiscard]] std::int64_t wanted_elements() const;
  [[nodiscard]] Extents4 held_extents() const;
  [[nodiscard]] Extents4 wanted_extents() const;
  [[nodiscard]] Extents4 cell() const;
  [[nodiscard]] std::int64_t cell_elements() const;
  bool operator==(const RedistributedTensor&) const = default;
};

/// Of 2^bits devices, all tensors at once.
struct Redistribution {
  int bits = 0;
  std::vector<RedistributedTensor> tensors;
  bool operator==(const Redistribution&) const = default;
};

/// A cell that a device wants: from whom, and where it begins in the sender's block and in its own.
struct Fetch {
  int sender = 0;
  Extents4 held{}, wanted{};
};
/// Of one device, in the order of the cells in its block. @pre the layout that is held has every
/// cell somewhere.
std::vector<Fetch> fetches(const RedistributedTensor& tensor, int bits, int device);

/// Whether every device holds just the block that it wants.
bool lies_alike(const RedistributedTensor& tensor);

/// Elements that the device receives from others, over all tensors.
std::int64_t received_elements(const Redistribution& redistribution, int device);

}  // namespace orrery::plan

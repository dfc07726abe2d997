#pragma once
/// \file
/// Where what a step's operations write lies in one block of memory, known before the step.
///
/// A buffer lives from the operation that writes it until the one that frees it has ended; what a
/// send or a copy to the host frees, until the next of its stream is issued (memory.h). Two that
/// live at once in issue order have bytes of their own. Offsets: the largest buffers first, each at
/// the lowest place that those placed before leave free.
///
///  1. Issued one by one (Order::kOneByOne) that is all.
///  2. On streams (Order::kByStream) operations of other streams may still use what was freed in
///     issue order. A buffer prefers a place where none does, as far as the stream of compute
///     knows, if that is within what is alive at once; else the place that was freed longest ago,
///     and its writer waits: `waits`, operations that were issued before, and never a send or copy
///     behind which nothing of its stream was: what that waits for on the other side may itself
///     wait for the writer.
///  3. An operation that runs in an earlier one's launch (launches.h) writes when that one does.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "plan/program/expand.h"
#include "plan/program/launches.h"

namespace orrery::plan {

struct Arena {
  static constexpr std::int64_t kAlignment = 512;
  static constexpr std::int64_t kElsewhere = -1;
  std::int64_t bytes = 0;
  std::int64_t alive_bytes = 0;            // the most that lives at once: no arena is smaller
  std::vector<std::int64_t> offsets;       // of every write of every operation, or kElsewhere
  std::vector<std::uint32_t> write_begin;  // [op + 1] into offsets
  std::vector<std::vector<std::uint32_t>> waits;  // [op] for operations of other streams
  [[nodiscard]] std::span<const std::int64_t> offsets_of(std::size_t op) const {
    return {offsets.data() + write_begin[op], write_begin[op + 1] - write_begin[op]};
  }
};

enum class Order : std::uint8_t { kOneByOne, kByStream };

/// `holds`: whether what the operation writes is in the arena at all; buffers on the host never
/// are. `launches`: null where every operation is launched by itself.
Arena arena(const Program& program, const RankClass& rank_class, const Expansion& expansion,
            const Launches* launches, Order order, const std::function<bool(const Op&)>& holds);

}  // namespace orrery::plan

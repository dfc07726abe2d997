#pragma once
/// \file
/// What an operation of a rank class does to the bytes alive on its rank, for the simulated clock.
///
/// A buffer instance is alive from the start of the operation that writes it to the end of the one
/// that frees it, or of an earlier user on another stream if that ends later (users on the same
/// stream have ended: a stream is FIFO). So with
///
///     written(op)    bytes of the instances it writes, at its start
///     transient(op)  bytes alive while it runs
///     freed(op)      bytes of the instances it frees that no other stream uses, at its end
///
/// which are those of its template (prepared_step.h), the rest are frees that wait: bytes and the
/// number of operations (the freeing one, and the last user of each other stream) that must end
/// before they go.
#include <cstdint>
#include <span>
#include <vector>

#include "plan/program/expand.h"

namespace orrery::sim {

struct Lifetimes {
  struct Free {
    std::int64_t bytes = 0;
    std::uint32_t waits_for = 0;  // operations that have not ended
  };
  std::int64_t persistent_bytes = 0;
  std::vector<Free> frees;
  std::vector<std::uint32_t> hold_begin;  // [op + 1] into holds
  std::vector<std::uint32_t> holds;       // frees that wait for the operation
  [[nodiscard]] std::span<const std::uint32_t> holds_of(std::uint32_t op) const {
    return {holds.data() + hold_begin[op], hold_begin[op + 1] - hold_begin[op]};
  }
};

Lifetimes lifetimes(const plan::Program& program, const plan::RankClass& rank_class,
                    const plan::Expansion& expansion);

}  // namespace orrery::sim

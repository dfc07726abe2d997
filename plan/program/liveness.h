#pragma once
#include <functional>
#include <vector>

#include "plan/program/program.h"

namespace orrery::plan {

/// Inserts into `backward` copies of those forward operations that `replay` accepts and that the
/// backward needs: each just before the first operation that reads what it makes, with everything
/// it needs in turn (an operation whose result nobody reads again is never replayed). `weights`
/// maps what a forward operation reads to what the backward has in its place: weights to those
/// gathered for it, all else to itself.
void insert_replays(const std::vector<Op>& forward, std::vector<Op>& backward,
                    const std::function<bool(const Op&)>& replay,
                    const std::function<BufferRef(const BufferRef&)>& weights);

/// Fills `frees` of a forward and backward pair: every instance that `keep` does not claim dies at
/// its last access. What the backward reads without having made it itself is a stash and dies
/// there; what it makes again dies in the forward too.
void place_frees(std::vector<Op>& forward, std::vector<Op>& backward,
                 const std::function<bool(const BufferRef&)>& keep);

[[nodiscard]] bool contains(const std::vector<BufferRef>& refs, const BufferRef& r);

/// Every buffer an operation touches, weights and gradients included; reads first.
std::vector<BufferRef> accesses(const Op& op);

}  // namespace orrery::plan

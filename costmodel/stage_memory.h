#pragma once
/// \file
/// Peak memory of a pipeline stage, from what its passes do to memory.
///
/// A pass is a list of templates; each changes the bytes alive by delta and reaches `peak` above its start. A stage holds k = in_flight(...)
/// micro-batches at most, each S bytes (the delta of a forward pass). What a send reads stays alive until the next send of its
/// stream, so from the first forward on X bytes (activation) and from the first backward on D bytes (gradient) are held.
///
///   forward j starts with  min(j, k-1) S + [j ≥ 1] X + [j ≥ k] D          (j = 0 .. m-1)
///   backward i starts with min(k, m-i) S + X + [i ≥ 1] D                  (i = 0 .. m-1; the last one also reduces gradients)
///   update starts with     X + D
///
///   peak = persistent + max over passes of (start + peak of the pass)
///
/// The maximum over j stands at j = k-1 or k, over i at 0, 1 or m-1: five pass evaluations whatever m is. Example: GPipe has k = m, so its
/// first backward starts with m S; 1F1B on the last stage has k = 1 and never holds more than S.
#include <cstdint>

#include "plan/memory.h"

namespace orrery::costmodel {

struct StageMemory {
  std::int64_t persistent_bytes = 0;
  std::int64_t in_flight = 1, micro_batches = 1;
  plan::TemplateMemory zero_gradient, forward, backward, backward_last, update;  // whole passes
  std::int64_t held_activation_bytes = 0, held_gradient_bytes = 0;               // X, D
};

std::int64_t peak_bytes(const StageMemory& stage);

/// `then` after `first`.
plan::TemplateMemory after(const plan::TemplateMemory& first, const plan::TemplateMemory& then);

}  // namespace orrery::costmodel

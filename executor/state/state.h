#pragma once
/// Initial values of persistent state. A parameter element's value is a function of (seed,
/// parameter name, index in the *global* unpadded tensor), so that every plan starts from the same
/// model, and a tied table starts alike in embedding and head.
#include <cstdint>
#include <span>

#include "plan/program/program.h"

namespace orrery::executor {

/// Which part of a unit's flat storage a buffer holds, on which tensor rank.
struct FlatRange {
  std::int64_t begin = 0, end = 0;  // elements of the flat storage, [begin, end)
  std::int64_t tensor_index = 0;    // of this rank in the unit's tensor group
  std::int64_t expert_index = 0;    // and in the group that splits its experts
  int device = 0;                   // place of this rank in its stage
  std::int64_t layer = 0;           // stands for "{layer}" in parameter names
};

/// Fills `out` (range.end - range.begin elements) with initial parameter values; padding is zero.
void initial_parameters(const plan::ParameterUnit& unit, const FlatRange& range, std::uint64_t seed,
                        std::int64_t layers, std::span<float> out);

}  // namespace orrery::executor

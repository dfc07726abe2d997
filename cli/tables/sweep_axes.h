#pragma once
/// \file
/// The axes of `orrery sweep`: which options, or numbers of the machine, take which values.
///
///     --vary hosts=1,2,4..512             1, 2, 4, 8, ... 512: `a..b` doubles from a
///     --vary global-batch=256..1024:256   256, 512, 768, 1024: `a..b:step` adds
///     --vary ib.bandwidth=1x,2x           a number of the machine or its software (--set)
///     --vary hosts:global-batch=1:64,2:128   several at once
///     --vary 'fix=tp=4,pp=2;tp=8'         values that hold commas are parted by semicolons
///
/// The points of a sweep are the cross product of its axes, the last axis fastest.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace orrery::cli {

struct Axis {
  std::vector<std::string> names;                // of options, or PART.FIELD
  std::vector<std::vector<std::string>> values;  // [value][name]
};

/// Errors: kUsage (no `NAME=VALUES`, a value that lacks one of several names), kOutOfRange (a range
/// that ends before it begins or takes more than kMostPoints), kInconsistent (a name on two axes).
base::Result<std::vector<Axis>> parse_axes(std::span<const std::string> texts);

inline constexpr std::size_t kMostPoints = 100'000;
/// Values by name, in the order of the axes.
using Assignment = std::vector<std::pair<std::string, std::string>>;
/// Error: kOutOfRange, when there are more than kMostPoints.
base::Result<std::vector<Assignment>> points_of(std::span<const Axis> axes);

}  // namespace orrery::cli

#pragma once
/// \file
/// A search space in words, as command lines say it. The tables in space_text.cc are the one place
/// that knows the names.
///
///     --space dp,tp,pp            these dimensions and no others      restrict_to_dimensions
///     --space usual,ring          these beside the usual ones
///     --fix tp=8,pp=2             these values                        fix_values
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "search/space/space.h"

namespace orrery::search {

struct SpaceWord {
  std::string_view name;   // "zero3", "tp"
  std::string_view range;  // of a value: "1, 2, 4, ..."; empty for a dimension
  std::string_view help;
};
/// Dimensions that --space may name, and keys of --fix.
std::vector<SpaceWord> space_dimensions();
std::vector<SpaceWord> space_keys();

/// `space` with these dimensions and no others: "dp,zero3,tp"; "usual" stands for those that it
/// has. What is no dimension (schedules, fixed values) stays. Errors (all of them): kBadValue for
/// an unknown name, with "did you mean"; kDuplicateKey.
base::Result<Space> restrict_to_dimensions(std::string_view names, Space space);

/// `space` with the named values fixed: "tp=8,pp=2,zero=1,recompute=full". zero and sp hold for
/// every layer that has the choice: a layer with dp = 1 has zero 0, one with tp = 1 no sequence
/// parallelism; so do operators and slices, of zero 3. A fixed value is allowed even where its
/// dimension was not. Errors (all of them): kBadValue for an unknown key or word, kOutOfRange for a
/// number, kDuplicateKey, kUsage for text that is not key=value.
base::Result<Space> fix_values(std::string_view text, Space space);

/// The first `count` reasons, those that are not just a fixed value first: what a reader wants to
/// know when nothing is left.
std::vector<Pruned> telling_reasons(std::vector<Pruned> pruned, std::size_t count);

}  // namespace orrery::search

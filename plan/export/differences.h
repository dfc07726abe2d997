#pragma once
/// \file
/// Two plans field by field. Every field of a plan and of a strategy is compared but
/// `vocabulary.context`: embedding and head have no attention, so it says nothing.
#include <string_view>
#include <vector>

#include "plan/export/export.h"

namespace orrery::plan {

/// Why a framework takes a field otherwise.
struct Rule {
  std::string_view field;  // as in Difference
  std::string_view why;
};

/// What stands otherwise in `runs`, layers with the same change joined. Fields without a rule of
/// their own: one strategy for all. @pre both have the same layers, in whatever stages.
std::vector<Difference> differences(const Plan& planned, const Plan& runs,
                                    const std::vector<Rule>& rules);

}  // namespace orrery::plan

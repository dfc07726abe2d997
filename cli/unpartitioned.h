#pragma once
#include "cli/refuse.h"
#include "plan/program/plan.h"

namespace orrery::cli {

/// For commands that ask closed forms of whole plans. Error: kUnsupported for a plan with
/// partitioned layers.
inline Result<void> unpartitioned(const plan::Plan& plan) {
  if (plan::is_partitioned(plan))
    return refuse(kUnsupported, "'orrery simulate' and 'orrery train' run it",
                  "no closed form prices a plan with partitioned layers");
  return {};
}

}  // namespace orrery::cli

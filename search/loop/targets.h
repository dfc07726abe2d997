#pragma once
/// \file
/// What a training framework can run, as a restriction of the space. The table in targets.cc is the
/// one place for these facts, each with its source. All of them give every layer one strategy,
/// embedding and head too, so that a plan for a target is found by searching every such strategy on
/// its own: pipeline degree, micro-batches and schedule stay free within each.
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "search/loop/planner.h"

namespace orrery::search {

/// A way in which a framework reduces gradients, and the strategies and plans that have it.
struct Reduction {
  plan::GradReduce when = plan::GradReduce::kStep;
  int least_zero = 0, most_zero = 3;
  bool single_stage = true, pipeline = true, tensor = true;
  std::optional<int> dp = {};                      // replicas of the layers, where they matter
  std::optional<std::int64_t> micro_batches = {};  // of a step, likewise
  bool by_option = false;  // searched only where the request names it: no default of the framework
};

struct Target {
  std::string_view name;
  Space space = {};  // what its strategies and schedules are
  std::span<const Reduction> reductions = {};
  bool tied_pipeline = true;      // the first and the last stage may share the embedding
  int pipeline_zero = 3;          // largest zero level beside a pipeline
  int tensor_zero = 3;            // largest zero level beside tensor parallelism
  std::string_view software;      // whose steps it runs, by name (orrery list software)
  std::string_view restrictions;  // for people
  std::string_view source;
};
std::vector<Target> targets();
/// Error: kBadValue with "did you mean".
base::Result<Target> find_target(std::string_view name);

/// As find_plan, over the plans of request.space that the target can run. The bound of the
/// certificate is the least of the searches.
base::Result<PlanAnswer> find_plan_for(const Target& target, const costmodel::CostModel& cost,
                                       const PlanRequest& request);

}  // namespace orrery::search

// Plans that the search finds under each target, written as that framework's file and read back:
// the same plan where the report says exact, and the same picosecond. Of what is not exact the file
// says the plan that the report calls the framework's own, which simulates too.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>

#include "base/json.h"
#include "plan/lowering/lower.h"
#include "search/loop/targets.h"
#include "sim/simulate.h"
#include "tests/support/exported_plan.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

struct Found {
  plan::Plan plan;
  costmodel::CostModel cost;
};

costmodel::CostModel cost_of(const model::ModelSpec& model, int devices) {
  auto cost = costmodel::CostModel::make(
      model, tiny_cluster(devices), std::nullopt,
      {.precision = model::Precision::kBFloat16, .sequence = model.max_positions, .library = {}});
  if (!cost) ADD_FAILURE() << base::to_string(cost.error());
  return *std::move(cost);
}

/// What Galvatron, which is no target, can run: strategies of their own for all layers.
Space galvatron_space() {
  Space space;
  space.zero1 = space.zero2 = space.hybrid = space.expert = false;
  space.recompute_selective = space.interleaved = space.zero_bubble = false;
  space.tensor_alone = space.reduce_per_micro_batch = false;
  return space;
}

/// Candidates and runners-up of a target, or of that space, each plan once.
std::vector<Found> plans_for(std::string_view target) {
  std::vector<Found> found;
  std::set<std::string> seen;
  for (const char* name : {"llama-tiny", "mixtral-tiny", "gpt2-tiny"}) {
    const model::ModelSpec model = model::find_model(name).value();
    for (const int devices : {4, 8}) {
      const costmodel::CostModel cost = cost_of(model, devices);
      for (const std::int64_t memory : {24, 40, 1024}) {
        for (const std::int64_t batch : {16, 64}) {
          PlanRequest request;
          request.cluster = "tiny";
          request.memory_bytes = memory << 20;
          request.global_batch = batch;
          request.relax = request.multipliers = false;
          if (target.empty()) request.space = galvatron_space();
          const auto answer = target.empty()
                                  ? find_plan(cost, request)
                                  : find_plan_for(find_target(target).value(), cost, request);
          if (!answer) {
            ADD_FAILURE() << base::to_string(answer.error());
            continue;
          }
          const auto keep = [&](const plan::Plan& plan) {
            if (seen.insert(plan::fingerprint(plan)).second) found.push_back({plan, cost});
          };
          for (const Candidate& c : answer->candidates) keep(c.plan);
          for (const RunnerUp& r : answer->runners_up) keep(r.plan);
        }
      }
    }
  }
  return found;
}

std::int64_t step_ps(const plan::Plan& plan, const costmodel::CostModel& cost) {
  const auto program = plan::lower(plan, cost.model());
  EXPECT_TRUE(program.has_value());
  const auto report = sim::simulate(program.value(), cost);
  EXPECT_TRUE(report.has_value());
  return report ? report->step_time_ps : 0;
}

struct Counts {
  int exact = 0, changed = 0, refused = 0;
};

Counts hold_round_trips(plan::Framework framework, const std::vector<Found>& plans) {
  Counts counts;
  for (const Found& f : plans) {
    const model::ModelSpec& model = f.cost.model();
    const auto exported = plan::export_plan(framework, f.plan, {model, 8});
    if (!exported) {
      EXPECT_EQ(base::exit_code(exported.error()), 2) << base::to_string(exported.error());
      ++counts.refused;
      continue;
    }
    ++(exported->exact() ? counts.exact : counts.changed);
    const auto read = tests::read_back(framework, *exported, model);
    if (!read) {
      ADD_FAILURE() << exported->text << base::to_string(read.error());
      continue;
    }
    EXPECT_EQ(read->plan, exported->plan) << exported->text;
    if (exported->exact()) {
      plan::Plan planned = plan::canonical(f.plan);
      planned.vocabulary.context = read->plan.vocabulary.context;
      EXPECT_EQ(read->plan, planned);
      EXPECT_EQ(step_ps(read->plan, f.cost), step_ps(f.plan, f.cost)) << exported->text;
    } else {
      EXPECT_GT(step_ps(read->plan, f.cost), 0);
    }
  }
  std::cout << plan::terms_of(framework).name << ": " << plans.size() << " plans, " << counts.exact
            << " exact, " << counts.changed << " changed, " << counts.refused << " refused\n";
  return counts;
}

class EveryFramework : public testing::TestWithParam<plan::FrameworkTerms> {};

TEST_P(EveryFramework, ReadsBackWhatTheSearchFindsForIt) {
  const std::vector<Found> plans = plans_for(GetParam().target);
  ASSERT_GE(plans.size(), 30U);
  const Counts counts = hold_round_trips(GetParam().framework, plans);
  EXPECT_EQ(counts.exact, static_cast<int>(plans.size()));
}

INSTANTIATE_TEST_SUITE_P(Export, EveryFramework,
                         testing::ValuesIn(plan::frameworks().begin(), plan::frameworks().end()),
                         [](const auto& row) {
                           std::string name(row.param.name);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace orrery::search

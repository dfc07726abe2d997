// What a framework's file says is the plan that the report calls its own, whatever plan was given.
#include "plan/export/export.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <algorithm>

#include "base/json.h"
#include "tests/property/plan/random_plan.h"
#include "tests/support/exported_plan.h"
#include "tests/support/law.h"

namespace orrery::plan {
namespace {

class EveryFramework : public testing::TestWithParam<FrameworkTerms> {};

/// Draws a plan, dense or of a mixture of experts, for text.
RandomPlan draw() {
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  return seed % 3 == 0 ? random_expert_plan(seed) : random_plan(seed);
}

TEST_P(EveryFramework, ReadsBackThePlanThatItRuns) {
  tests::expect_law({.least_share = 0.3, .draws = 2000}, [](tests::Draws& draws) {
    const RandomPlan r = draw();
    const auto exported = export_plan(GetParam().framework, r.plan, {r.model, 8});
    draws.asserts(exported.has_value());
    if (!exported) {
      for (const base::Diagnostic& d : exported.error())
        RC_ASSERT(d.code == base::ErrorCode::kInfeasible);
      return;
    }
    RC_ASSERT(validate(exported->plan, r.model).empty());
    const auto read = tests::read_back(GetParam().framework, *exported, r.model);
    if (!read) RC_FAIL(exported->text + base::to_string(read.error()));
    if (read->plan != exported->plan) {
      RC_FAIL(exported->text + base::to_text(to_json(read->plan)) +
              base::to_text(to_json(exported->plan)));
    }
  });
}

TEST_P(EveryFramework, RunsItsOwnPlanExactly) {
  tests::expect_law({.least_share = 0.3, .draws = 2000}, [](tests::Draws& draws) {
    const RandomPlan r = draw();
    const auto exported = export_plan(GetParam().framework, r.plan, {r.model, 8});
    draws.asserts(exported.has_value());
    if (!exported) return;
    const auto again = export_plan(GetParam().framework, exported->plan, {r.model, 8});
    RC_ASSERT(again.has_value());
    RC_ASSERT(again->exact());
    RC_ASSERT(again->text == exported->text);
    RC_ASSERT(again->plan == exported->plan);
  });
}

TEST_P(EveryFramework, ReportsEveryFieldThatChanges) {
  tests::expect_law({.least_share = 0.3, .draws = 2000}, [](tests::Draws& draws) {
    const RandomPlan r = draw();
    const auto exported = export_plan(GetParam().framework, r.plan, {r.model, 8});
    draws.asserts(exported.has_value());
    if (!exported) return;
    Plan planned = canonical(r.plan);
    planned.vocabulary.context = exported->plan.vocabulary.context;
    RC_ASSERT(exported->exact() == (planned == exported->plan));
    for (const Difference& d : exported->differences) RC_ASSERT(d.planned != d.runs);
  });
}

INSTANTIATE_TEST_SUITE_P(Export, EveryFramework,
                         testing::ValuesIn(frameworks().begin(), frameworks().end()),
                         [](const auto& row) {
                           std::string name(row.param.name);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace orrery::plan

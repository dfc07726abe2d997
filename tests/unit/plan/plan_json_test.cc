// Plan JSON: the bytes, and every fault of a file at its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "tests/unit/plan/small_program.h"

namespace orrery::plan {
namespace {

using testing::HasSubstr;

std::string example() {
  Plan plan =
      small_plan(small_model(true), {.tp = 2, .pp = 2, .dp = 2, .zero = 3, .global_batch = 16});
  plan.model_fingerprint = "0123";
  return base::to_text(to_json(plan));
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = example();
  const std::size_t at = text.find(from);
  ORRERY_CHECK(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

base::Result<Plan> read(const std::string& text) {
  TRY(const base::Node root, base::Node::parse_text(text, "plan.json"));
  return read_plan(root);
}
std::string error_of(const std::string& text) {
  const auto plan = read(text);
  return plan ? "a plan" : base::to_string(plan.error());
}

TEST(PlanJson, HasTheseBytes) {
  const std::string wanted = R"json({
  "cluster": "test",
  "global_batch": 16,
  "hosts": 1,
  "micro_batches": 8,
  "model": "small-llama",
  "model_fingerprint": "0123",
  "precision": "bf16",
  "prefetch_depth": 1,
  "schedule": "1f1b",
  "schema": "orrery.plan/1",
  "sequence": 16,
  "stages": [
    {
      "runs": [
        {
          "count": 2,
          "strategy": {
            "dp": 2,
            "grad_reduce": "step",
            "recompute": "none",
            "sequence_parallel": false,
            "tp": 2,
            "zero": 3
          }
        }
      ]
    },
    {
      "runs": [
        {
          "count": 2,
          "strategy": {
            "dp": 2,
            "grad_reduce": "step",
            "recompute": "none",
            "sequence_parallel": false,
            "tp": 2,
            "zero": 3
          }
        }
      ]
    }
  ],
  "vocabulary": {
    "dp": 2,
    "grad_reduce": "step",
    "recompute": "none",
    "sequence_parallel": false,
    "tp": 2,
    "zero": 3
  }
}
)json";
  EXPECT_EQ(example(), wanted);
}

TEST(PlanJson, AnOrderOfDevicesStandsWhereThereIsOne) {
  Plan plan = *read(example());
  EXPECT_TRUE(plan.device_order.empty());
  plan.device_order = {"V100", "T4"};
  const std::string text = base::to_text(to_json(plan));
  EXPECT_THAT(text, HasSubstr("\"device_order\": [\n    \"V100\",\n    \"T4\"\n  ]"));
  EXPECT_EQ(*read(text), plan);
  EXPECT_NE(fingerprint(plan), fingerprint(*read(example())));
}

TEST(PlanJson, UnknownKeyIsAFaultAtItsPlace) {
  const std::string error = error_of(replaced("\"hosts\"", "\"hots\""));
  EXPECT_THAT(error, HasSubstr("plan.json:4:3"));
  EXPECT_THAT(error, HasSubstr("did you mean 'hosts'?"));
}

TEST(PlanJson, AllFaultsAreReportedTogether) {
  std::string text = replaced("\"1f1b\"", "\"1f1c\"");
  text.replace(text.find("\"tp\": 2"), 7, "\"tp\": 0");
  text.replace(text.find("\"global_batch\": 16"), 18, "\"global_batch\": \"x\"");
  const std::string error = error_of(text);
  EXPECT_THAT(error, HasSubstr("plan.json:3:"));
  EXPECT_THAT(error, HasSubstr("did you mean '1f1b'?"));
  EXPECT_THAT(error, HasSubstr("plan.json:23:"));
}

TEST(PlanJson, AnotherSchemaIsRefused) {
  EXPECT_THAT(error_of(replaced("orrery.plan/1", "orrery.plan/2")),
              HasSubstr("schema 'orrery.plan/2' is not 'orrery.plan/1'"));
  EXPECT_THAT(error_of(replaced("orrery.plan/1", "orrery.plan/2")), HasSubstr("plan.json:11:"));
}

TEST(PlanJson, PlanWithoutStagesIsRefused) {
  const std::string text = example();
  const std::size_t from = text.find("\"stages\": [") + 11, to = text.find("],\n  \"vocabulary\"");
  EXPECT_THAT(error_of(text.substr(0, from) + text.substr(to)), HasSubstr("at least one stage"));
}

TEST(PlanJson, TextThatIsNoObjectIsRefused) {
  for (const char* text : {"[]", "3", "null", "{}", "", "{\"schema\": \"orrery.plan/1\"}",
                           "{\"stages\": [1, null]}"}) {
    EXPECT_NE(error_of(text), "a plan") << text;
  }
}

TEST(PlanJson, FileThatDoesNotExistIsNamed) {
  const auto plan = load_plan("/nonexistent/plan.json");
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(base::to_string(plan.error()), HasSubstr("/nonexistent/plan.json"));
}

TEST(PlanFingerprint, DependsOnThePlanAndNotOnHowItsRunsAreWritten) {
  const Plan plan = small_plan(small_model(), {.dp = 2});
  Plan split = plan, other = plan;
  split.stages[0].runs = {{1, plan.vocabulary}, {3, plan.vocabulary}};
  other.prefetch_depth = 2;
  EXPECT_EQ(fingerprint(split), fingerprint(plan));
  EXPECT_NE(fingerprint(other), fingerprint(plan));
}

}  // namespace
}  // namespace orrery::plan

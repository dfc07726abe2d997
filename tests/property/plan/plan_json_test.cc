// Plans and traces travel to their file formats and back without loss.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "base/json.h"
#include "plan/program/trace.h"
#include "tests/property/plan/random_plan.h"

namespace orrery::plan {
namespace {

TEST(PlanJsonProperty, ReadingWhatWasWrittenGivesTheCanonicalPlanAndTheSameBytes) {
  ASSERT_TRUE(rc::check("round trip", [](std::uint64_t seed) {
    const Plan plan = random_plan(seed).plan;
    const std::string text = base::to_text(to_json(plan));
    const auto root = base::Node::parse_text(text, "plan.json");
    RC_ASSERT(root.has_value());
    const auto back = read_plan(*root);
    RC_ASSERT(back.has_value());
    RC_ASSERT(*back == canonical(plan));
    RC_ASSERT(base::to_text(to_json(*back)) == text);
    RC_ASSERT(fingerprint(*back) == fingerprint(plan));
  }));
}

TEST(PlanJsonProperty, TruncatedTextIsNeverAPlan) {
  ASSERT_TRUE(rc::check("truncated", [](std::uint64_t seed) {
    const std::string text = base::to_text(to_json(random_plan(seed).plan));
    const std::size_t cut =
        static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(text.size()) - 2));
    const auto root = base::Node::parse_text(text.substr(0, cut), "plan.json");
    const bool is_plan = root && read_plan(*root);  // RC_ASSERT would evaluate both sides
    RC_ASSERT(!is_plan);
  }));
}

TEST(PlanProperty, GeneratedPlansAreValid) {
  ASSERT_TRUE(rc::check("valid", [](std::uint64_t seed) {
    const RandomPlan r = random_plan(seed);
    const base::Diagnostics faults = validate(r.plan, r.model);
    if (!faults.empty()) RC_FAIL(base::to_string(faults));
  }));
}

Timeline random_timeline(std::uint64_t seed) {
  base::Rng rng(seed);
  const auto pick = [&rng](std::uint64_t n) { return static_cast<std::int64_t>(rng.below(n)); };
  Timeline t{.origin = "measured",
             .model = "m",
             .plan_fingerprint = "p",
             .program_fingerprint = "q",
             .step_time_ps = pick(1ULL << 50),
             .spans = {},
             .memory = {}};
  for (std::int64_t i = pick(20); i > 0; --i) {
    t.spans.push_back({.rank = static_cast<std::int32_t>(pick(4)),
                       .stream = static_cast<Stream>(pick(kStreams)),
                       .name = pick(2) == 0 ? "all_gather(a)" : "weird \"name\"\n",
                       .category = pick(2) == 0 ? "" : "qkv",
                       .phase = pick(2) == 0 ? "" : "BG",
                       .layer = static_cast<std::int32_t>(pick(3) - 1),
                       .micro_batch = static_cast<std::int32_t>(pick(3) - 1),
                       .template_id = static_cast<std::uint32_t>(pick(5)),
                       .template_index = static_cast<std::uint32_t>(pick(5)),
                       .start_ps = pick(1ULL << 50),
                       .duration_ps = pick(1ULL << 40),
                       .bytes = pick(1ULL << 40)});
  }
  for (std::int64_t i = pick(10); i > 0; --i) {
    t.memory.push_back({.rank = static_cast<std::int32_t>(pick(4)),
                        .at_ps = pick(1ULL << 50),
                        .bytes = pick(1ULL << 45)});
  }
  return t;
}

TEST(TraceProperty, ReadingWhatWasWrittenGivesTheSameTimelineToThePicosecond) {
  ASSERT_TRUE(rc::check("round trip", [](std::uint64_t seed) {
    const Timeline t = random_timeline(seed);
    const auto root = base::Node::parse_text(to_text(t), "trace.json");
    RC_ASSERT(root.has_value());
    const auto back = read_timeline(*root);
    if (!back) RC_FAIL(base::to_string(back.error()));
    RC_ASSERT(*back == canonical(t));
    RC_ASSERT(to_text(*back) == to_text(t));
    RC_ASSERT(base::parse_json(to_text(t), "trace.json").has_value());
  }));
}

}  // namespace
}  // namespace orrery::plan

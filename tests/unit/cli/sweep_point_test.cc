// A point of a sweep is what `plan` or `simulate` say with the point's values on their command
// line.
#include "cli/tables/sweep_point.h"

#include <gmock/gmock.h>

#include "cli/plan_question.h"
#include "cli/run_options.h"
#include "cli/text/show.h"
#include "plan/lowering/lower.h"

namespace orrery::cli {
namespace {

using testing::HasSubstr;

base::Options parsed(const std::vector<base::OptionSpec>& options,
                     const std::vector<std::string>& arguments) {
  const auto result =
      base::parse_options({.name = "sweep", .summary = "", .options = options}, arguments);
  EXPECT_TRUE(result) << base::to_string(result.error());
  return result.value_or(base::Options());
}

std::vector<base::OptionSpec> options_of_points(bool needed) {
  return joined({question_options(needed), run_options(), failure_options("")});
}

SweepBase small(std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"--model", "llama-tiny", "--cluster", "dgx-1-v100"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return {.options = options_of_points(true),
          .given = parsed(options_of_points(false), arguments),
          .held = {}};
}

TEST(SweepPoint, IsTheAnswerOfPlanWithItsValues) {
  const PointResult point =
      run_point(small({"--global-batch", "8"}), {{"global-batch", "32"}, {"hosts", "2"}}, nullptr);
  const auto question = question_of(
      parsed(question_options(true), {"--model", "llama-tiny", "--cluster", "dgx-1-v100",
                                      "--global-batch", "32", "--hosts", "2"}));
  ASSERT_TRUE(question);
  const auto answer = answer_to(*question);
  ASSERT_TRUE(answer);
  EXPECT_EQ(point.status, PointStatus::kOk) << point.message;
  EXPECT_EQ(point.step_ps, answer->candidates.front().report.step_time_ps);
  EXPECT_EQ(point.plan, one_line(answer->candidates.front().plan));
  EXPECT_EQ(point.devices, 16);
  EXPECT_EQ(point.tokens, 32 * question->scene.cost.options().sequence);
}

TEST(SweepPoint, AddsItsNumbersToThoseThatAreSetForAll) {
  const SweepBase base = small({"--set", "nvlink.bandwidth=0.01x"});
  const PointResult slow = run_point(base, {{"device.memory_bandwidth", "0.1x"}}, nullptr),
                    fast = run_point(base, {{"device.memory_bandwidth", "1x"}}, nullptr),
                    built = run_point(small(), {{"device.memory_bandwidth", "1x"}}, nullptr);
  EXPECT_GT(slow.step_ps, fast.step_ps);
  EXPECT_GT(fast.step_ps, built.step_ps);
}

TEST(SweepPoint, SaysWhatItsRunTakes) {
  const PointResult r = run_point(
      small({"--tokens", "1M", "--price-per-gpu-hour", "2$", "--deadline", "1d"}), {}, nullptr);
  ASSERT_TRUE(r.days && r.dollars && r.met) << r.message;
  EXPECT_NEAR(*r.days, 1e6 / r.tokens_per_s() / 86'400, 1e-9);
  EXPECT_NEAR(*r.dollars, 2 * 24 * *r.days * 8, 1e-9);  // eight devices of the host
  EXPECT_EQ(*r.met, *r.days <= 1);
}

TEST(SweepPoint, HoldsAPlan) {
  const auto question = question_of(small().given);
  ASSERT_TRUE(question);
  const auto answer = answer_to(*question);
  ASSERT_TRUE(answer);
  const search::Candidate& best = answer->candidates.front();
  const auto options =
      joined({{model_option(false), cluster_option(false), hosts_option(), memory_option()},
              price_options(),
              run_options(),
              failure_options("")});
  const SweepBase held{.options = options, .given = parsed(options, {}), .held = best.plan};
  EXPECT_EQ(run_point(held, {{"nvlink.bandwidth", "1x"}}, nullptr).step_ps,
            best.report.step_time_ps);
  const PointResult cramped = run_point(held, {{"memory", "1MiB"}}, nullptr);
  EXPECT_EQ(cramped.status, PointStatus::kInfeasible);
  EXPECT_THAT(cramped.message, HasSubstr("more"));
}

TEST(SweepPoint, KeepsItsFaultsToItself) {
  const PointResult wrong = run_point(small(), {{"hosts", "0"}}, nullptr);
  EXPECT_EQ(wrong.status, PointStatus::kError);
  EXPECT_THAT(wrong.message, HasSubstr("'--hosts': 0 is less than 1"));
  const PointResult lacking = run_point(small(), {{"memory", "1KiB"}}, nullptr);
  EXPECT_EQ(lacking.status, PointStatus::kInfeasible);
}

TEST(SweepAxes, AreOptionsOrNumbersOfTheMachine) {
  const SweepBase base = small();
  const std::vector<Axis> axes{{{"hosts", "ib.bandwidth"}, {}}, {{"host"}, {}}, {{"out"}, {}}};
  const auto checked = check_axes(base, axes);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().size(), 2U);
  EXPECT_THAT(base::to_string(checked.error()), HasSubstr("did you mean 'hosts'?"));
}

}  // namespace
}  // namespace orrery::cli

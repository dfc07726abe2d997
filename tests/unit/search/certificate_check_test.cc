// The checker refuses every number that is not as recomputed.
#include "search/proof/certificate_check.h"
#include "base/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "search/loop/planner.h"
#include "search/proof/certificate_json.h"
#include "search/table/instance_program.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

Instance instance() {
  return {.budget_bytes = 11,
          .layers = {{{"fast", 1, 8}, {"small", 4, 2}},
                     {{"fast", 1, 6}, {"small", 2, 3}},
                     {{"only", 7, 0}}},
          .transition_ps = {{5, 0, 0, 5}, {1, 2}}};
}

TEST(CertificateCheck, AcceptsTheAnswer) {
  const Solution s = solve_instance(instance());
  const CheckReport report = check_solution(instance(), s);
  EXPECT_TRUE(report.holds());
  EXPECT_EQ(report.cost_ps, s.time_ps);
  EXPECT_EQ(report.memory_bytes, std::vector<std::int64_t>{s.memory_bytes});
  EXPECT_GE(report.bound_ps, s.bound_ps);
}

TEST(CertificateCheck, RefusesEveryFalseNumber) {
  const std::vector<std::pair<std::string, std::function<void(Solution&)>>> lies{
      {"time", [](Solution& s) { --s.time_ps; }},
      {"memory", [](Solution& s) { --s.memory_bytes; }},
      {"choice", [](Solution& s) { s.choices[0] = 2; }},
      {"negative choice", [](Solution& s) { s.choices[0] = -1; }},
      {"other choice", [](Solution& s) { s.choices[0] ^= 1; }},
      {"choices", [](Solution& s) { s.choices.pop_back(); }},
      {"bound", [](Solution& s) { s.bound_ps = s.proved_ps = s.time_ps + 1; }},
      {"multiplier",
       [](Solution& s) {
         s.multiplier = {1'000'000, 1};
       }},
      {"negative multiplier", [](Solution& s) { s.multiplier.numerator = -1; }},
      {"zero denominator", [](Solution& s) { s.multiplier.denominator = 0; }},
      {"status", [](Solution& s) { s.status = Status::kInfeasible; }},
      {"budget", [](Solution& s) { s.status = Status::kBudget; }},
      {"proof", [](Solution& s) { --s.proved_ps; }},
      {"least memory", [](Solution& s) { ++s.least_memory_bytes; }},
  };
  const Solution honest = solve_instance(instance());
  for (const auto& [name, lie] : lies) {
    Solution s = honest;
    lie(s);
    EXPECT_FALSE(check_solution(instance(), s).holds()) << name;
  }
}

TEST(CertificateCheck, RefusesAnAnswerOverTheBudget) {
  const Solution s = solve_instance(instance());
  Instance less = instance();
  less.budget_bytes = s.memory_bytes - 1;
  EXPECT_FALSE(check_solution(less, s).holds());
}

TEST(CertificateCheck, RefusesNumbersBeyond128Bits) {
  Solution s = solve_instance(instance());
  Instance large = instance();
  large.layers[0][0].time_ps = large.layers[0][1].time_ps =
      std::numeric_limits<std::int64_t>::max() - 40;
  s.multiplier = {std::numeric_limits<std::int64_t>::max(),
                  std::numeric_limits<std::int64_t>::max()};
  EXPECT_FALSE(check_solution(large, s).holds());
}

TEST(CertificateCheck, APlansClaimIsRecomputed) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  PlanRequest request;
  // whose plans the multipliers do not bound
  request.space.interleaved = request.space.zero_bubble = false;
  request.cluster = "tiny";
  request.memory_bytes = 1 << 30;
  request.global_batch = 8;
  const auto answer = find_plan(cost, request);
  ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
  const Certificate& c = answer->certificate;
  const auto best = std::ranges::min_element(answer->candidates, {}, &Candidate::closed_form_ps);
  const PlanClaim honest = claim_of(c);
  const auto report = check_plan(cost, best->plan, honest);
  ASSERT_TRUE(report.has_value()) << base::to_string(report.error());
  EXPECT_TRUE(report->holds()) << report->faults.front();
  EXPECT_EQ(report->cost_ps, c.cost_ps);
  EXPECT_GE(report->bound_ps.value(), c.multiplier_bound_ps);
  EXPECT_LE(report->bound_ps.value(), c.cost_ps);
  const auto refused = [&](const PlanClaim& claim) {
    const auto again = check_plan(cost, best->plan, claim);
    return again && !again->holds();
  };
  PlanClaim lie = honest;
  --lie.cost_ps;
  EXPECT_TRUE(refused(lie));
  lie = honest;
  lie.bound_ps = c.cost_ps + 1;
  EXPECT_TRUE(refused(lie));
  lie = honest;
  ++lie.stage_peak_bytes.front();
  EXPECT_TRUE(refused(lie));
  lie = honest;
  lie.memory_limit_bytes = *std::ranges::max_element(c.stage_peak_bytes) - 1;
  EXPECT_TRUE(refused(lie));
  lie = honest;
  *lie.gap += 1e-9;
  EXPECT_TRUE(refused(lie));
  lie = honest;
  *lie.multiplier_gap += 1e-9;
  EXPECT_TRUE(refused(lie));
}

/// A problem whose answer needs its multipliers: memory binds.
TEST(CertificateCheck, TheBoundOfAPlansMultipliersIsRecomputed) {
  const costmodel::CostModel cost = tiny_cost(4, 6);
  PlanRequest request;
  request.cluster = "tiny";
  request.memory_bytes = 26'000'000;
  request.global_batch = 8;
  const auto answer = find_plan(cost, request);
  ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
  const Certificate& c = answer->certificate;
  ASSERT_FALSE(answer->candidates.empty());
  EXPECT_GT(c.multiplier_bound_ps, c.cost_ps / 2);
  ASSERT_FALSE(c.proofs.at(0).problems.empty());
  const auto best = std::ranges::min_element(answer->candidates, {}, &Candidate::closed_form_ps);
  const auto check = [&](const PlanClaim& claim) {
    return check_plan(cost, best->plan, claim).value();
  };
  PlanClaim claim = claim_of(c);
  const std::int64_t proved = check(claim).bound_ps.value();
  EXPECT_TRUE(check(claim).holds());
  EXPECT_GE(proved, c.multiplier_bound_ps);

  // No more may be claimed than they prove.
  claim.multiplier_gap.reset();
  claim.multiplier_bound_ps = proved;
  EXPECT_TRUE(check(claim).holds());
  claim.multiplier_bound_ps = proved + 1;
  EXPECT_FALSE(check(claim).holds());
  EXPECT_FALSE(check(claim).bound_holds);

  // Without their prices they prove less, and truly.
  claim = claim_of(c);
  for (ProblemMultipliers& k : claim.proofs[0].problems) k.prices.assign(k.prices.size(), {});
  EXPECT_LT(check(claim).bound_ps.value(), proved);
  EXPECT_FALSE(check(claim).holds());
  claim.multiplier_bound_ps = 0;
  claim.multiplier_gap.reset();
  EXPECT_TRUE(check(claim).holds());

  // What is no multiplier, and a space that the plan is not of.
  claim = claim_of(c);
  claim.proofs[0].problems[0].weights[0] = -1;
  EXPECT_FALSE(check(claim).holds());
  claim = claim_of(c);
  claim.proofs[0].space.fix_micro_batches = best->plan.micro_batches == 1 ? 2 : 1;
  EXPECT_FALSE(check(claim).holds());
}

TEST(CertificateJson, ReadsBackWhatItWrote) {
  const costmodel::CostModel cost = tiny_cost(4, 6);
  PlanRequest request;
  request.cluster = "tiny";
  request.memory_bytes = 26'000'000;
  request.global_batch = 8;
  request.space.fix_micro_batches = 4;
  request.space.strided = true;
  request.space.even_stages = true;
  const auto answer = find_plan(cost, request);
  ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
  ASSERT_FALSE(answer->certificate.proofs.at(0).problems.empty());
  const base::Json written = to_json(answer->certificate);
  const auto node = base::Node::parse_text(base::to_text(written), "certificate.json");
  ASSERT_TRUE(node.has_value());
  base::ErrorSink sink;
  const PlanClaim claim = read_certificate(*node, sink);
  ASSERT_TRUE(sink.ok()) << base::to_string(sink.diagnostics());
  EXPECT_EQ(claim.proofs[0].problems, answer->certificate.proofs[0].problems);
  EXPECT_EQ(claim.gap, answer->certificate.gap);
  Certificate again = answer->certificate;
  again.proofs = claim.proofs;
  EXPECT_EQ(base::to_text(to_json(again)), base::to_text(written));
}

TEST(CertificateJson, NamesTheObjective) {
  Certificate certificate;
  certificate.cost_ps = 1;
  EXPECT_FALSE(to_json(certificate).contains("minimises"));
  certificate.objective = costmodel::Objective::kEnergy;
  base::Json written = to_json(certificate);
  const auto read = [&](base::ErrorSink& sink) {
    const auto node = base::Node::parse_text(base::to_text(written), "certificate.json");
    return read_certificate(node.value(), sink).objective;
  };
  base::ErrorSink sink, unknown;
  EXPECT_EQ(read(sink), costmodel::Objective::kEnergy);
  EXPECT_TRUE(sink.ok());
  written["minimises"] = "carbon";
  read(unknown);
  EXPECT_FALSE(unknown.ok());
}

}  // namespace
}  // namespace orrery::search

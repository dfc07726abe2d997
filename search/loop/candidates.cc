#include "search/loop/candidates.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <span>
#include <thread>

#include "base/check.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"

namespace orrery::search {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

base::Result<sim::SimReport> simulate_plan(const costmodel::CostModel& cost,
                                           const plan::Plan& plan) {
  TRY(const plan::Program program, plan::lower(plan, cost.model()));
  return sim::simulate(program, cost);
}

/// In the order given.
base::Result<std::vector<Candidate>> simulate_all(const costmodel::CostModel& cost,
                                                  std::span<const Finalist> finalists,
                                                  int threads) {
  std::vector<std::optional<base::Result<sim::SimReport>>> reports(finalists.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < finalists.size(); i = next++)
      reports[i] = simulate_plan(cost, finalists[i].plan);
  };
  {
    std::vector<std::jthread> helpers;
    const int most = std::min(threads, static_cast<int>(finalists.size()));
    for (int t = 1; t < most; ++t) helpers.emplace_back(work);
    work();
  }
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    TRY(sim::SimReport report, std::move(*reports[i]));
    candidates.push_back({finalists[i].plan, finalists[i].closed_form_ps, std::move(report)});
  }
  return candidates;
}

int order_changes_of(const std::vector<Candidate>& candidates) {
  int changes = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    for (std::size_t j = i + 1; j < candidates.size(); ++j) {
      const Candidate &a = candidates[i], &b = candidates[j];
      const bool cheaper =
          a.closed_form_ps<b.closed_form_ps, dearer = a.closed_form_ps> b.closed_form_ps;
      const bool faster =
          a.report.step_time_ps<b.report.step_time_ps, slower = a.report.step_time_ps> b.report
              .step_time_ps;
      if ((cheaper && slower) || (dearer && faster)) ++changes;
    }
  }
  return changes;
}

void order(Evaluated& all) {
  all.order_changes = order_changes_of(all.candidates);
  std::ranges::stable_sort(all.candidates, [](const Candidate& a, const Candidate& b) {
    if (a.report.step_time_ps != b.report.step_time_ps)
      return a.report.step_time_ps < b.report.step_time_ps;
    return a.closed_form_ps < b.closed_form_ps;
  });
}

base::Result<void> add(const costmodel::CostModel& cost, std::span<const Finalist> finalists,
                       int threads, Evaluated& known) {
  TRY(std::vector<Candidate> more, simulate_all(cost, finalists, threads));
  for (Candidate& c : more) known.candidates.push_back(std::move(c));
  order(known);
  for (const Finalist& f : finalists) {
    const auto simulated =
        std::ranges::find(known.candidates, f.plan, &Candidate::plan)->report.step_time_ps;
    if (simulated - known.fastest_ps() > known.fastest_ps() / 5) continue;
    const std::int64_t excess = f.expected_ps - simulated;
    known.error_ppm = std::max(known.error_ppm, excess / (simulated / kMillion + 1) * 3 / 2);
  }
  return {};
}

}  // namespace

std::int64_t Evaluated::fastest_ps() const {
  return candidates.empty() ? std::numeric_limits<std::int64_t>::max()
                            : candidates.front().report.step_time_ps;
}

bool Evaluated::may_win(std::int64_t expected_ps) const {
  return expected_ps - expected_ps / kMillion * error_ppm < fastest_ps();
}

base::Result<Evaluated> evaluate(const costmodel::CostModel& cost,
                                 const std::vector<Finalist>& finalists, int threads) {
  Evaluated all;
  TRY_VOID(add(cost, finalists, threads, all));
  return all;
}

base::Result<void> evaluate_more(const costmodel::CostModel& cost, std::vector<Finalist> finalists,
                                 int threads, std::size_t at_least, Evaluated& known) {
  // Simulated together: a number of its own, so that threads change nothing.
  constexpr std::size_t kAtOnce = 2;
  std::ranges::stable_sort(finalists, {}, &Finalist::expected_ps);
  for (std::size_t i = 0; i < finalists.size(); i += kAtOnce) {
    std::vector<Finalist> batch;
    for (std::size_t j = i; j < std::min(i + kAtOnce, finalists.size()); ++j) {
      const bool wanted = known.candidates.size() + batch.size() < at_least;
      if (wanted || known.may_win(finalists[j].expected_ps)) batch.push_back(finalists[j]);
    }
    if (batch.empty()) break;
    TRY_VOID(add(cost, batch, threads, known));
  }
  return {};
}

base::Result<void> check_program(const costmodel::CostModel& cost, const plan::Plan& plan) {
  TRY(const plan::Program program, plan::lower(plan, cost.model()));
  const std::vector<plan::Fault> faults = plan::check(program);
  ORRERY_CHECK(faults.empty(), "the search emitted a faulty program: {}", faults.front().message);
  return {};
}

}  // namespace orrery::search

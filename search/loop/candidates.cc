#include "search/loop/candidates.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "base/check.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"

namespace orrery::search {
namespace {

base::Result<sim::SimReport> simulate_plan(const costmodel::CostModel& cost,
                                           const plan::Plan& plan) {
  TRY(const plan::Program program, plan::lower(plan, cost.model()));
  const std::vector<plan::Fault> faults = plan::check(program);
  ORRERY_CHECK(faults.empty(), "the search emitted a faulty program: {}", faults.front().message);
  return sim::simulate(program, cost);
}

}  // namespace

base::Result<Evaluated> evaluate(const costmodel::CostModel& cost,
                                 const std::vector<Finalist>& finalists, int threads) {
  std::vector<std::optional<base::Result<sim::SimReport>>> reports(finalists.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < finalists.size(); i = next++)
      reports[i] = simulate_plan(cost, finalists[i].plan);
  };
  {
    std::vector<std::jthread> helpers;
    for (int t = 1; t < std::min<int>(threads, static_cast<int>(finalists.size())); ++t)
      helpers.emplace_back(work);
    work();
  }
  Evaluated result;
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    TRY(sim::SimReport report, std::move(*reports[i]));
    result.candidates.push_back(
        {finalists[i].plan, finalists[i].closed_form_ps, std::move(report)});
  }
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    for (std::size_t j = i + 1; j < finalists.size(); ++j) {
      const Candidate& a = result.candidates[i];
      const Candidate& b = result.candidates[j];
      const bool cheaper =
          a.closed_form_ps<b.closed_form_ps, dearer = a.closed_form_ps> b.closed_form_ps;
      const bool faster =
          a.report.step_time_ps<b.report.step_time_ps, slower = a.report.step_time_ps> b.report
              .step_time_ps;
      if ((cheaper && slower) || (dearer && faster)) ++result.order_changes;
    }
  }
  std::ranges::stable_sort(result.candidates, [](const Candidate& a, const Candidate& b) {
    if (a.report.step_time_ps != b.report.step_time_ps)
      return a.report.step_time_ps < b.report.step_time_ps;
    return a.closed_form_ps < b.closed_form_ps;
  });
  return result;
}

}  // namespace orrery::search

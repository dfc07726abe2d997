#pragma once
#include "cli/text/report_time.h"
#include "search/explain/explain.h"

namespace orrery::cli {

/// Per cent of `whole`; 0 of nothing.
double percent(std::int64_t part, std::int64_t whole);
/// Rounded to 1 / scale, so that nothing prints as "-0.0".
double rounded(double value, double scale);
/// "+2.8 %", below 1 % with one digit more: how much more `a` is than `b`.
std::string more_percent(std::int64_t a, std::int64_t b);
/// "+2.8 %" of parts per million.
std::string gain(std::int64_t ppm);

/// Where two plans differ, in the report's ticks.
struct Difference {
  std::vector<std::int64_t> first, other, parts;
  std::int64_t total = 0;
};

/// The plans of one explanation as its report names and compares them: "this plan", and the others
/// as A, B, ... by step time. Borrows the explanation.
class ExplainedPlans {
 public:
  explicit ExplainedPlans(const search::Explanation& e)
      : e_(e), time_(e.plan.step_ps()), rivals_(search::rivals(e)) {}

  const ReportTime& time() const { return time_; }
  /// Fastest first: A, B, ...
  const std::vector<const search::Comparison*>& rivals() const { return rivals_; }
  /// The fastest of the others; null without any.
  const search::SimulatedPlan* fastest_other() const;
  /// No other is faster.
  bool first() const;
  /// Another is faster by a thousandth or more.
  bool beaten() const;
  /// "this plan", "A", ...; empty for a plan that is none of them.
  std::string letter(const plan::Plan& plan) const;
  /// The letter, or the plan in one line.
  std::string name(const plan::Plan& plan) const;
  /// Its step time, and how much more that is than this plan's.
  std::string step(const search::SimulatedPlan& a) const;
  std::string more(const search::SimulatedPlan& a) const;
  /// A time in the report's unit; how much more a step time is than this plan's.
  std::string shown(std::int64_t ps) const { return time_.show(time_.ticks(ps)); }
  std::string change(std::int64_t step_ps) const {
    return more_percent(step_ps, e_.plan.step_ps());
  }
  /// What its step has more of than this plan's.
  Difference difference(const search::SimulatedPlan& a) const;
  /// The parts that make most of the difference, largest first, and the rest: "+0.0312 s
  /// recomputation, -0.0120 s bubble, +0.0009 s other".
  std::string main_differences(const search::SimulatedPlan& a) const;
  /// Why the other plan takes more, or less: "mainly because tensor parallelism over 8 exposes
  /// 1.6400 s more of communication, although ...".
  std::string reason(const search::SimulatedPlan& a) const;
  /// "18.1 % slower than", "as fast as".
  std::string verdict(const search::SimulatedPlan& a) const;
  /// Sequences a second more than this plan makes.
  std::string gain_of(const search::SimulatedPlan& a) const;
  /// Faster by less than 1 % of the step.
  bool close(const search::SimulatedPlan& other) const;

 private:
  const search::Explanation& e_;
  ReportTime time_;
  std::vector<const search::Comparison*> rivals_;
};

}  // namespace orrery::cli

#include "cli/text/explain_summary.h"

#include "base/numbers.h"
#include "cli/text/show.h"

namespace orrery::cli {
namespace {

using search::SimulatedPlan;
using sim::TimePart;

class Summary {
 public:
  Summary(const search::Explanation& e, const ExplainedPlans& plans) : e_(e), plans_(plans) {}

  std::string text() const {
    return fmt::format(
        "Why this plan?      {}\nWhy not another?    {}\nWhat limits it?     {}\nWhat would help?  "
        "  {}\n",
        why(), why_not(), what_limits(), what_helps());
  }

 private:
  std::string why() const {
    const SimulatedPlan* other = plans_.fastest_other();
    if (!e_.limits.fits()) {
      const std::string lack =
          fmt::format("It does not fit: stage {} needs {} more than {}", e_.limits.fullest_stage,
                      show_bytes(e_.limits.peak_bytes - e_.limits.limit_bytes),
                      show_bytes(e_.limits.limit_bytes));
      return other == nullptr
                 ? lack + ", and no plan is known that does."
                 : fmt::format("{}. The best plan that fits, A, takes {} instead of {}.", lack,
                               plans_.step(*other), plans_.step(e_.plan));
    }
    if (plans_.beaten())
      return fmt::format("It is {}: plan A is {}, {}.{}",
                         plans_.close(*other) ? "about as good as the best" : "not the best",
                         plans_.verdict(*other), plans_.reason(*other), doubt(*other));
    const std::string open = e_.search_status == search::Status::kBudget
                                 ? "; the search stopped early, there may be a faster one"
                                 : "";
    if (!plans_.first())
      return fmt::format(
          "One step takes {}: of {} plans simulated the fastest (A) is less than 0.1 % faster{}.",
          plans_.step(e_.plan), e_.simulated, open);
    if (other == nullptr)
      return fmt::format("One step takes {}; no other plan is known that fits{}.",
                         plans_.step(e_.plan), open);
    return fmt::format(
        "One step takes {}: none of {} plans simulated is faster, the closest (A) takes {} ({}){}.",
        plans_.step(e_.plan), e_.simulated, plans_.change(other->step_ps()), plans_.more(*other),
        open);
  }
  std::string doubt(const SimulatedPlan& other) const {
    if (!plans_.close(other)) return "";
    return fmt::format(
        " Step times are known to {}; which of two is the faster is better known (How sure).",
        percents(e_.band));
  }
  std::string why_not() const {
    if (!e_.versus)
      return "Name one: --versus tp=8,pp=1 (the best plan with these values) or --versus "
             "mine.json.";
    const search::Versus& v = *e_.versus;
    if (!v.comparison) {
      if (v.shortfall_bytes > 0)
        return fmt::format("{}: nothing fits, the smallest such plan needs {} more per device.",
                           v.text, show_bytes(v.shortfall_bytes));
      return fmt::format("{}: there is no such plan{}.", v.text,
                         v.reasons.empty() ? "" : ": " + v.reasons.front().text);
    }
    const SimulatedPlan& a = v.comparison->simulated;
    if (!v.fits)
      return fmt::format("{} does not fit: stage {} needs {} of {}.", v.text, v.stage,
                         show_bytes(a.peak_bytes()), show_bytes(e_.limits.limit_bytes));
    if (plans_.letter(a.plan) == "this plan") return fmt::format("{}: this is that plan.", v.text);
    return fmt::format("{} (plan {}) is {}, {}.", v.text, plans_.letter(a.plan), plans_.verdict(a),
                       plans_.reason(a));
  }
  std::string what_limits() const {
    const search::Limits& l = e_.limits;
    const std::int64_t step_ps = e_.plan.step_ps(),
                       again = e_.plan.parts()[as_index(TimePart::kRecompute)];
    std::string text;
    switch (e_.bound) {
      case search::TimeBound::kCompute:
        text = fmt::format("Computation, {:.1f} % of the step", percent(l.compute_ps, step_ps));
        break;
      case search::TimeBound::kCommunication:
        text = fmt::format("Communication, of which {:.1f} % of the step is hidden by nothing",
                           percent(l.communication_ps, step_ps));
        break;
      case search::TimeBound::kBubble:
        text = fmt::format("Waiting between pipeline stages, {:.1f} % of the step",
                           percent(l.bubble_ps, step_ps));
        break;
    }
    if (again > 0)
      text +=
          fmt::format(" ({:.1f} % is recomputation, which saves memory)", percent(again, step_ps));
    text +=
        fmt::format("; memory: {} of {} used", show_bytes(l.peak_bytes), show_bytes(l.limit_bytes));
    if (e_.memory_marks.enough) text += ", and more would help";
    return text + ".";
  }
  std::string what_helps() const {
    std::string text;
    const auto add = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
    if (plans_.beaten() && e_.limits.fits())
      add(fmt::format("plan A {}", plans_.gain_of(*plans_.fastest_other())));
    for (const search::Improvement& x : e_.improvements)
      add(fmt::format("{} {}", x.what, gain(x.best_gain_ppm)));
    if (text.empty()) return "See the ways to fit below.";
    return text + " (sequences a second).";
  }

  const search::Explanation& e_;
  const ExplainedPlans& plans_;
};

}  // namespace

std::string explanation_summary(const search::Explanation& e, const ExplainedPlans& plans) {
  return Summary(e, plans).text();
}

}  // namespace orrery::cli

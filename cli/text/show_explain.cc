#include "cli/text/show_explain.h"

#include <algorithm>
#include <optional>

#include "base/numbers.h"
#include "cli/text/explain_summary.h"
#include "cli/text/explained_plans.h"
#include "cli/text/partition_words.h"
#include "cli/text/report_words.h"
#include "cli/text/show.h"

namespace orrery::cli {
namespace {

using search::Comparison;
using search::Explanation;
using search::SimulatedPlan;
using sim::TimePart;

/// Everything that the text says of one explanation.
class ExplanationReport {
 public:
  ExplanationReport(const Explanation& e, const CostModel& cost) : e_(e), cost_(cost), plans_(e) {}

  std::string text() const {
    const std::string partition = partition_text(e_.plan.plan);
    std::string text = describe(e_.plan.plan, cost_.topology().device_count()) + "\n" + partition +
                       (partition.empty() ? "" : "\n") + explanation_summary(e_, plans_) + "\n" +
                       decisions() + "\n" + plans() + "\n" + waterfall() + "\n" + limits();
    if (!e_.relaxations.empty())
      text += "\nWays to make this plan fit\n" + relaxations(e_.relaxations);
    if (!e_.problem_relaxations.empty())
      text += "\nNo plan of the search fits; the best one\n" + relaxations(e_.problem_relaxations);
    text += "\n" + improvements();
    if (e_.versus) text += "\n" + versus(*e_.versus);
    return text + "\n" + sensitivity() + "\nHow sure\n" + trust() + "\n" + report_words();
  }

  std::string trust() const {
    std::string text =
        fmt::format("  prices: {}\n  the step time is known to {} (80 %): {}\n",
                    describe_origin(cost_), percents(e_.band), e_.uncertainty.source);
    if (e_.search_status == search::Status::kOptimal)
      text +=
          "  the search proved that no plan of its space is cheaper by its cost formula than the "
          "one it simulated first; the simulator orders what is simulated\n";
    if (e_.least_sure) text += order_test();
    std::optional<double> worst;
    for (const search::WhatIf& w : e_.what_ifs) {
      if (const std::optional<double> behind = behind_best(w))
        worst = std::max(worst.value_or(0), *behind);
    }
    return worst
               ? text + fmt::format(
                            "  on machines that differ by 10 %, wherever it fits, this plan is at "
                            "most {:.1f} % behind the best plan known there\n",
                            *worst)
               : text;
  }

 private:
  // ---- why this plan ----

  std::string decisions() const {
    struct Row {
      std::string decision, cost, why;
    };
    std::vector<Row> rows;
    const auto add = [&](const std::string& decision, const SimulatedPlan& a) {
      const Difference d = plans_.difference(a);
      const auto most =
          d.total < 0 ? std::ranges::min_element(d.parts) : std::ranges::max_element(d.parts);
      const std::string cost = fmt::format("{:>12} {:>9}  {:<2}", plans_.more(a),
                                           plans_.change(a.step_ps()), plans_.letter(a.plan));
      rows.push_back({decision, cost,
                      fmt::format("{} {}", plans_.time().show_signed(*most),
                                  part_words(static_cast<TimePart>(most - d.parts.begin())))});
    };
    for (const search::Decision& d : e_.decisions) {
      const std::string decision = fmt::format("{} → {}", d.made, d.otherwise);
      if (d.best)
        add(decision, d.best->simulated);
      else if (d.shortfall_bytes > 0)
        rows.push_back({decision, "",
                        fmt::format("nothing fits: the smallest plan needs {} more per device",
                                    show_bytes(d.shortfall_bytes))});
      else
        rows.push_back({decision, "", "no such plan divides model, batch and devices"});
    }
    if (const auto& u = e_.uniform)
      add("its strategies → one for all layers, equal stages", u->simulated);
    std::string text =
        "Each decision undone: what the fastest plan simulated with it otherwise takes more, all "
        "else chosen anew, and its largest part\n";
    std::size_t width = 0;
    for (const Row& row : rows)
      width = std::max(width, std::min<std::size_t>(columns(row.decision), 56));
    for (const Row& row : rows) {
      const std::size_t own = columns(row.decision);
      const std::string room =
          own > width ? "\n  " + std::string(width, ' ') : std::string(width - own, ' ');
      text += fmt::format("  {}{} {:<27}  {}\n", row.decision, room, row.cost, row.why);
    }
    return text;
  }

  /// Every other plan of the page that fits, once.
  std::string plans() const {
    std::string text = fmt::format("Plans of this page that fit, of {} simulated (this plan: {})\n",
                                   e_.simulated, plans_.step(e_.plan));
    for (const Comparison* c : plans_.rivals()) {
      const SimulatedPlan& a = c->simulated;
      text += fmt::format("  {}  {:>10} {:>12} {:>9}  {}{}\n", plans_.letter(a.plan),
                          plans_.step(a), plans_.more(a), plans_.change(a.step_ps()),
                          one_line(a.plan), c->changes.empty() ? "; layers in another order" : "");
      if (e_.uniform && a.plan == e_.uniform->simulated.plan)
        text += fmt::format(
            "       the best of {} plans with one strategy for all layers and equal stages\n",
            e_.uniform_plans);
      text += fmt::format("       {}\n", plans_.main_differences(a));
    }
    if (plans_.rivals().empty()) text += "  none but this\n";
    return e_.uniform || e_.uniform_plans == 0
               ? text
               : text + fmt::format("  none of {} plans with one strategy for all layers fits\n",
                                    e_.uniform_plans);
  }

  // ---- where, what limits ----

  std::string waterfall() const {
    const SimulatedPlan& a = e_.plan;
    const int stages = as_int(a.report.stages.size());
    std::string text = "Where the time goes";
    text += stages == 1 ? "\n"
                        : fmt::format(" (on stage {} of 0 to {}, which waits least)\n",
                                      a.critical_stage(), stages - 1);
    const std::vector<std::int64_t> ticks = plans_.time().ticks(std::span(a.parts()));
    for (std::size_t i = 0; i < ticks.size(); ++i) {
      if (a.parts()[i] == 0) continue;
      const double share = percent(a.parts()[i], a.step_ps());
      const std::string bar(as_index(share / 2.5 + 0.5), '#');
      text += fmt::format("  {:<31} {:>10}  {:5.1f} %{}{}\n", part_words(static_cast<TimePart>(i)),
                          plans_.time().show(ticks[i]), share, bar.empty() ? "" : "  ", bar);
    }
    return text + fmt::format("  {:<31} {:>10}  100.0 %\n", "step", plans_.step(a));
  }

  std::string memory_limit() const {
    const search::Limits& l = e_.limits;
    const std::string what = fmt::format("stage {} is the fullest: {} of {}", l.fullest_stage,
                                         show_bytes(l.peak_bytes), show_bytes(l.limit_bytes));
    const std::string most =
        fmt::format("most of it {} ({}, {:.0f} %)", plan::to_string(l.fullest_category),
                    show_bytes(l.category_bytes), percent(l.category_bytes, l.peak_bytes));
    if (!l.fits())
      return fmt::format("  memory: DOES NOT FIT. {}, {} too much; {}\n", what,
                         show_bytes(l.peak_bytes - l.limit_bytes), most);
    return fmt::format("  memory: {}, {} free ({:.1f} %); {}\n", what,
                       show_bytes(l.limit_bytes - l.peak_bytes),
                       percent(l.limit_bytes - l.peak_bytes, l.limit_bytes), most);
  }
  /// How much memory would end what memory forces.
  std::string memory_marks() const {
    const search::MemoryMarks& m = e_.memory_marks;
    const auto of = [&](const search::MemoryMark& mark) {
      const SimulatedPlan& a = mark.best;
      return fmt::format("{} a step ({}): {}", plans_.step(a), plans_.change(a.step_ps()),
                         plans_.name(a.plan));
    };
    const auto gib = [](const search::MemoryMark& mark) {
      return mark.bytes / (std::int64_t{1} << 30);
    };
    std::string text;
    if (m.no_recomputation)
      text += fmt::format("    with {} GiB per device the best plan recomputes nothing: {}\n",
                          gib(*m.no_recomputation), of(*m.no_recomputation));
    if (m.enough)
      text += fmt::format("    from {} GiB per device on more memory gains less than 0.1 %: {}\n",
                          gib(*m.enough), of(*m.enough));
    else if (!plans_.rivals().empty() || e_.limits.fits())
      text += "    more memory would gain less than 0.1 %\n";
    return text;
  }

  std::string limits() const {
    const search::Limits& l = e_.limits;
    const std::int64_t step_ps = e_.plan.step_ps();
    std::string text = "What limits it\n" + memory_limit() + memory_marks();
    std::string shares =
        fmt::format("computation {:.1f} %, exposed communication {:.1f} %, waiting {:.1f} %",
                    percent(l.compute_ps, step_ps), percent(l.communication_ps, step_ps),
                    percent(l.bubble_ps, step_ps));
    if (e_.plan.report.stages.size() > 1)
      shares += fmt::format(" on stage {}, which waits least ({:.1f} % mean over stages)",
                            e_.plan.critical_stage(), percent(step_ps - l.mean_work_ps, step_ps));
    text += fmt::format("  time: {}\n", shares);
    for (const search::Elasticity& x : e_.elasticities)
      text += fmt::format("{}1 % more {}: {:+.2f} % step time",
                          &x == &e_.elasticities.front() ? "    " : "; ", x.what,
                          rounded(x.value, 100));
    text += "\n";
    if (e_.release) {
      const char* then = e_.release->then == search::TimeBound::kCompute  ? "computation"
                         : e_.release->then == search::TimeBound::kBubble ? "waiting"
                                                                          : "communication";
      text +=
          fmt::format("    with {} this plan would be bound by {} instead: {} sequences a second\n",
                      e_.release->what, then, gain(e_.release->gain_ppm));
    }
    if (e_.plan.report.stages.size() > 1) {
      const std::int64_t work = plans_.time().ticks(step_ps - l.bubble_ps),
                         mean = plans_.time().ticks(l.mean_work_ps);
      text += fmt::format(
          "  balance: the busiest stage works {}, the average stage {}; equal stages would save {} "
          "at most ({:.1f} % of the step)\n",
          plans_.time().show(work), plans_.time().show(mean), plans_.time().show(work - mean),
          percent(step_ps - l.bubble_ps - l.mean_work_ps, step_ps));
    }
    return text + links();
  }
  std::string links() const {
    // 10 % more bandwidth takes less than a tenth off what is exposed
    constexpr std::int64_t kShare = 10;
    if (e_.limits.communication_ps == 0)
      return "  links: no communication is exposed; faster links would save nothing\n";
    const search::LinkEffect& first = e_.limits.links.front();
    if (first.saved_ps <= 0)
      return "  links: 10 % more bandwidth on any one of them saves nothing (latency rules)\n";
    std::string text = "  links: 10 % more bandwidth";
    for (const search::LinkEffect& l : e_.limits.links) {
      if (l.saved_ps > 0)
        text += fmt::format("{} on {} saves {}", &l == &first ? "" : ",", l.kind,
                            plans_.shown(l.saved_ps));
    }
    if (first.saved_ps > e_.limits.communication_ps / kShare)
      text +=
          "\n    (more than a tenth of what is exposed: hidden transfers and waiting get shorter "
          "too)";
    return text + "\n";
  }

  // ---- what would help ----

  std::string improvements() const {
    if (e_.improvements.empty())
      return "What would make it faster\n  nothing was tried: no plan fits\n";
    std::string text = fmt::format(
        "What would make it faster: sequences a second, against {}\n  {:<36} {:>15} {:>16}\n",
        e_.limits.fits() ? "this plan now" : "plan A now", "", "this plan kept", "best plan there");
    if (plans_.beaten() && e_.limits.fits())
      text += fmt::format("  {:<36} {:>15} {:>16}  A\n", "another plan", "",
                          plans_.gain_of(*plans_.fastest_other()));
    for (const search::Improvement& x : e_.improvements) {
      text += fmt::format("  {:<36} {:>15} {:>16}  {}\n", x.what,
                          x.kept_gain_ppm ? gain(*x.kept_gain_ppm) : "-", gain(x.best_gain_ppm),
                          plans_.name(x.best));
    }
    return text;
  }

  static std::string relaxations(const std::vector<search::Relaxation>& list) {
    std::string text;
    for (const search::Relaxation& r : list)
      text += fmt::format("  would fit with {:<28}{}\n", r.change,
                          r.step_time_ps > 0 ? " " + show_time(r.step_time_ps) + " a step" : "");
    return text;
  }

  // ---- versus ----

  std::string part_table(const SimulatedPlan& a) const {
    const Difference d = plans_.difference(a);
    std::string text =
        fmt::format("  {:<31} {:>11} {:>11} {:>12}\n", "", "this plan", "that plan", "difference");
    if (e_.plan.report.stages.size() > 1 || a.report.stages.size() > 1) {
      text += fmt::format("  {:<31} {:>11} {:>11}\n", "(the stage that waits least)",
                          fmt::format("stage {}", e_.plan.critical_stage()),
                          fmt::format("stage {}", a.critical_stage()));
    }
    for (std::size_t i = 0; i < d.parts.size(); ++i) {
      if (e_.plan.parts()[i] == 0 && a.parts()[i] == 0) continue;
      text += fmt::format("  {:<31} {:>11} {:>11} {:>12}\n", part_words(static_cast<TimePart>(i)),
                          plans_.time().show(d.first[i]), plans_.time().show(d.other[i]),
                          plans_.time().show_signed(d.parts[i]));
    }
    text += fmt::format("  {:<31} {:>11} {:>11} {:>12}\n", "step", plans_.step(e_.plan),
                        plans_.step(a), plans_.more(a));
    return text + fmt::format("  {:<31} {:>11} {:>11}\n", "peak memory of a device",
                              show_bytes(e_.plan.peak_bytes()), show_bytes(a.peak_bytes()));
  }
  std::string versus(const search::Versus& v) const {
    std::string text =
        fmt::format("Against {}{}\n", v.text,
                    v.of_values ? " (set for layers; embedding and head are free)" : "");
    if (!v.comparison) {
      text += v.shortfall_bytes > 0
                  ? fmt::format("  nothing fits: the smallest plan needs {} more per device\n",
                                show_bytes(v.shortfall_bytes))
                  : "  no such plan:\n";
      for (const search::Pruned& p : v.reasons)
        text += fmt::format("    {}: {}\n", p.candidate, p.text);
      return text + relaxations(v.relaxations);
    }
    const SimulatedPlan& a = v.comparison->simulated;
    if (plans_.letter(a.plan) == "this plan") return text + "  the same plan\n";
    const std::string how =
        fmt::format("{} than this plan, {}", plans_.verdict(a), plans_.reason(a));
    if (v.fits)
      text += fmt::format("  {}\n  plan {}: {}\n", how, plans_.letter(a.plan), one_line(a.plan));
    else
      text += fmt::format(
          "  does not fit: stage {} needs {}, {} more than the limit\n  with that memory it would "
          "be {}\n  {}\n",
          v.stage, show_bytes(a.peak_bytes()), show_bytes(v.shortfall_bytes), how,
          one_line(a.plan));
    return text + part_table(a) + relaxations(v.relaxations);
  }

  // ---- sensitivity, trust ----

  /// Per cent that this plan is behind the best found on a changed machine; none where one of them
  /// does not fit.
  std::optional<double> behind_best(const search::WhatIf& w) const {
    if (!e_.limits.fits() || !w.best || !w.step_ps) return std::nullopt;
    return rounded(percent(*w.step_ps - w.best->step_ps(), w.best->step_ps()), 10);
  }
  std::string sensitivity() const {
    std::string text =
        fmt::format("If the machine differed by 10 %\n  {:<18} {:>11} {:>9} {:>11} {:>12}\n", "",
                    "this plan", "change", "best plan", "behind best");
    for (const search::WhatIf& w : e_.what_ifs) {
      const std::string what = fmt::format("{} {:+} %", w.what, w.change_ppm / 10'000);
      const std::string kept = w.step_ps ? plans_.shown(*w.step_ps) : "too big";
      const std::string change = w.step_ps ? plans_.change(*w.step_ps) : "";
      const std::string best = w.best ? plans_.step(*w.best) : "none fits";
      const std::optional<double> percents = behind_best(w);
      text += fmt::format("  {:<18} {:>11} {:>9} {:>11} {:>12}{}\n", what, kept, change, best,
                          percents ? fmt::format("{:.1f} %", *percents) : "",
                          w.best ? "  " + plans_.name(w.best->plan) : "");
    }
    return text;
  }
  /// The same question for every plan: does the order of the fastest and the others survive wrong
  /// prices?
  std::string order_test() const {
    const bool leads = e_.limits.fits() && plans_.first();
    const std::string first = leads ? "this plan" : "A";
    const search::LeastSure& other = *e_.least_sure;
    std::string text = fmt::format(
        "  {} is the fastest, by {}\n  prices drawn {} times from their errors, the same for all "
        "plans: ",
        first, plans_.shown(e_.gap_ps), costmodel::kDraws);
    const double share = 100 * other.share_faster;
    switch (e_.stability) {
      case search::Stability::kCertain:
        return text + fmt::format("{} stays the fastest of the closest plans in all\n", first);
      case search::Stability::kLikely:
        return text + fmt::format("{} is faster than {} in {:.0f} %, and no other more often\n",
                                  plans_.name(other.plan), first, share);
      case search::Stability::kOpen: break;
    }
    return text + fmt::format(
                      "{} is faster than {} in {:.0f} %, though {} behind: they are within the "
                      "error of each other, measure both\n",
                      plans_.name(other.plan), first, share, plans_.shown(other.gap_ps));
  }
  const Explanation& e_;
  const CostModel& cost_;
  ExplainedPlans plans_;
};

}  // namespace

std::string trust_text(const Explanation& e, const CostModel& cost) {
  return ExplanationReport(e, cost).trust();
}

std::string explanation_text(const Explanation& e, const CostModel& cost) {
  return ExplanationReport(e, cost).text();
}

}  // namespace orrery::cli

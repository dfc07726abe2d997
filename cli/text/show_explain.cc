#include "cli/text/show_explain.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>

#include "cli/text/page_time.h"
#include "cli/text/page_words.h"
#include "cli/text/show.h"

namespace orrery::cli {
namespace {

using search::Account;
using search::Comparison;
using search::Explanation;
using search::Parts;
using sim::TimePart;

double percent(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}
/// Rounded so that nothing prints as "-0.0".
double rounded(double value, double scale) { return std::round(value * scale) / scale + 0.0; }
/// "+2.8 %", below 1 % with one digit more: how much more `a` is than `b`.
std::string more_percent(std::int64_t a, std::int64_t b) {
  const double value = percent(a - b, b);
  return std::abs(value) < 1 ? fmt::format("{:+.2f} %", rounded(value, 100))
                             : fmt::format("{:+.1f} %", rounded(value, 10));
}
std::string gain(std::int64_t ppm) {
  return fmt::format("{:+.1f} %", rounded(static_cast<double>(ppm) / 1e4, 10));
}

/// Where two plans differ, in the page's ticks.
struct Difference {
  std::vector<std::int64_t> first, other, parts;
  std::int64_t total = 0;
};

/// The page: everything it says of one explanation.
class Page {
 public:
  Page(const Explanation& e, const costmodel::CostModel& cost)
      : e_(e), cost_(cost), time_(e.plan.step_ps()), rivals_(search::rivals(e)) {}

  std::string text() const {
    std::string text = describe(e_.plan.plan, cost_.topology().device_count()) + "\n" + summary() +
                       "\n" + decisions() + "\n" + plans() + "\n" + waterfall() + "\n" + limits();
    if (!e_.relaxations.empty())
      text += "\nWays to make this plan fit\n" + relaxations(e_.relaxations);
    if (!e_.problem_relaxations.empty())
      text += "\nNo plan of the search fits; the best one\n" + relaxations(e_.problem_relaxations);
    text += "\n" + improvements();
    if (e_.versus) text += "\n" + versus(*e_.versus);
    return text + "\n" + sensitivity() + "\n" + trust() + "\n" + page_words();
  }

 private:
  // ---- plans and their letters ----

  [[nodiscard]] const Account* fastest_other() const {
    return rivals_.empty() ? nullptr : &rivals_.front()->account;
  }
  [[nodiscard]] bool first() const {
    return rivals_.empty() || e_.plan.step_ps() <= rivals_.front()->account.step_ps();
  }
  /// By a thousandth or more.
  [[nodiscard]] bool beaten() const {
    return !rivals_.empty() &&
           e_.plan.step_ps() - rivals_.front()->account.step_ps() >= e_.plan.step_ps() / 1000;
  }
  /// Plans of the page are A, B, ... by their step time.
  [[nodiscard]] std::string letter(const plan::Plan& plan) const {
    if (plan::canonical(plan) == plan::canonical(e_.plan.plan)) return "this plan";
    const plan::Plan wanted = plan::canonical(plan);
    for (std::size_t i = 0; i < rivals_.size(); ++i) {
      if (plan::canonical(rivals_[i]->account.plan) == wanted)
        return std::string(1, static_cast<char>('A' + i));
    }
    return "";
  }
  /// The letter, or the plan in one line.
  [[nodiscard]] std::string name(const plan::Plan& plan) const {
    const std::string known = letter(plan);
    return known.empty() ? one_line(plan) : known;
  }
  [[nodiscard]] std::string step(const Account& a) const {
    return time_.show(time_.ticks(a.step_ps()));
  }
  [[nodiscard]] std::string more(const Account& a) const {
    return time_.show_signed(time_.ticks(a.step_ps()) - time_.ticks(e_.plan.step_ps()));
  }

  [[nodiscard]] Difference difference(const Account& a) const {
    Difference d{time_.ticks(std::span(e_.plan.parts())), time_.ticks(std::span(a.parts())), {}, 0};
    for (std::size_t i = 0; i < d.first.size(); ++i) d.parts.push_back(d.other[i] - d.first[i]);
    for (const std::int64_t ticks : d.parts) d.total += ticks;
    return d;
  }
  /// The parts that make most of the difference, largest first, and the rest: "+0.0312 s
  /// recomputation, -0.0120 s bubble, +0.0009 s other".
  [[nodiscard]] std::string main_differences(const Account& a) const {
    const Difference d = difference(a);
    std::vector<std::size_t> order;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < d.parts.size(); ++i) {
      if (d.parts[i] != 0) order.push_back(i);
      total += std::abs(d.parts[i]);
    }
    std::ranges::stable_sort(order, [&](std::size_t x, std::size_t y) {
      return std::abs(d.parts[x]) > std::abs(d.parts[y]);
    });
    std::int64_t rest = d.total;
    // what is left unnamed: parts below a twentieth of all change, a tenth of the difference
    // together
    constexpr std::int64_t kSmall = 10, kRest = 20;
    std::string text;
    for (const std::size_t i : order) {
      if (std::abs(d.parts[i]) * kRest < total && std::abs(rest) * kSmall <= std::abs(d.total))
        break;
      rest -= d.parts[i];
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", time_.show_signed(d.parts[i]),
                          part_words(static_cast<TimePart>(i)));
    }
    if (rest != 0) text += fmt::format(", {} other", time_.show_signed(rest));
    return text.empty() ? "no part differs" : text;
  }
  /// Why the other plan takes more, or less: "mainly because tensor parallelism over 8 exposes
  /// 1.6400 s more of communication, although ...".
  [[nodiscard]] std::string reason(const Account& a) const {
    const Difference d = difference(a);
    const std::int64_t sign = d.total < 0 ? -1 : 1;
    const auto main =
        std::ranges::max_element(d.parts, {}, [&](std::int64_t t) { return sign * t; });
    const auto against =
        std::ranges::min_element(d.parts, {}, [&](std::int64_t t) { return sign * t; });
    const auto part = [&](auto at) { return static_cast<TimePart>(at - d.parts.begin()); };
    if (*main * sign <= 0) return "all parts take the same";
    constexpr std::int64_t kNotable = 5;  // of the main part
    std::string text = "mainly because " + part_clause(part(main), a.plan, e_.plan.plan,
                                                       time_.show(std::abs(*main)), *main > 0);
    if (-*against * sign * kNotable > *main * sign)
      text +=
          fmt::format(", although {}", part_clause(part(against), a.plan, e_.plan.plan,
                                                   time_.show(std::abs(*against)), *against > 0));
    return text;
  }
  /// "18.1 % slower than", "as fast as".
  [[nodiscard]] std::string verdict(const Account& a) const {
    const std::string value = more_percent(a.step_ps(), e_.plan.step_ps());
    if (a.step_ps() == e_.plan.step_ps()) return "as fast";
    return fmt::format("{} {}", value.substr(1),
                       a.step_ps() > e_.plan.step_ps() ? "slower" : "faster");
  }

  // ---- summary ----

  [[nodiscard]] std::string summary() const {
    return fmt::format(
        "Why this plan?      {}\nWhy not another?    {}\nWhat limits it?     {}\nWhat would help?  "
        "  {}\n",
        why(), why_not(), what_limits(), what_helps());
  }
  [[nodiscard]] std::string why() const {
    const Account* other = fastest_other();
    if (!e_.limits.fits()) {
      const std::string lack =
          fmt::format("It does not fit: stage {} needs {} more than {}", e_.limits.fullest_stage,
                      show_bytes(e_.limits.peak_bytes - e_.limits.limit_bytes),
                      show_bytes(e_.limits.limit_bytes));
      return other == nullptr
                 ? lack + ", and no plan is known that does."
                 : fmt::format("{}. The best plan that fits, A, takes {} instead of {}.", lack,
                               step(*other), step(e_.plan));
    }
    if (beaten())
      return fmt::format("It is {}: plan A is {}, {}.{}",
                         close(*other) ? "about as good as the best" : "not the best",
                         verdict(*other), reason(*other), doubt(*other));
    const std::string open = e_.search_status == search::Status::kBudget
                                 ? "; the search stopped early, there may be a faster one"
                                 : "";
    if (!first())
      return fmt::format(
          "One step takes {}: of {} plans simulated the fastest (A) is less than 0.1 % faster{}.",
          step(e_.plan), e_.simulated, open);
    if (other == nullptr)
      return fmt::format("One step takes {}; no other plan is known that fits{}.", step(e_.plan),
                         open);
    return fmt::format(
        "One step takes {}: none of {} plans simulated is faster, the closest (A) takes {} ({}){}.",
        step(e_.plan), e_.simulated, more_percent(other->step_ps(), e_.plan.step_ps()),
        more(*other), open);
  }
  /// Faster by less than 1 % of the step.
  [[nodiscard]] bool close(const Account& other) const {
    return (e_.plan.step_ps() - other.step_ps()) * 100 < e_.plan.step_ps();
  }
  [[nodiscard]] std::string doubt(const Account& other) const {
    if (!close(other)) return "";
    return fmt::format(
        " Step times are known to {}; which of two is the faster is better known (How sure).",
        percents(e_.band));
  }
  [[nodiscard]] std::string why_not() const {
    if (!e_.versus)
      return "Name one: --versus tp=8,pp=1 (the best plan with these values) or --versus "
             "mine.json.";
    const search::Versus& v = *e_.versus;
    if (!v.comparison) {
      if (v.shortfall_bytes > 0)
        return fmt::format("{}: nothing fits, the smallest such plan needs {} more per device.",
                           v.text, show_bytes(v.shortfall_bytes));
      return fmt::format("{}: there is no such plan{}.", v.text,
                         v.reasons.empty() ? "" : ": " + v.reasons.front().reason);
    }
    const Account& a = v.comparison->account;
    if (!v.fits)
      return fmt::format("{} does not fit: stage {} needs {} of {}.", v.text, v.stage,
                         show_bytes(a.peak_bytes()), show_bytes(e_.limits.limit_bytes));
    if (letter(a.plan) == "this plan") return fmt::format("{}: this is that plan.", v.text);
    return fmt::format("{} (plan {}) is {}, {}.", v.text, letter(a.plan), verdict(a), reason(a));
  }
  [[nodiscard]] std::string what_limits() const {
    const search::Limits& l = e_.limits;
    const std::int64_t step_ps = e_.plan.step_ps(),
                       again = e_.plan.parts()[static_cast<std::size_t>(TimePart::kRecompute)];
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
  [[nodiscard]] std::string what_helps() const {
    std::string text;
    const auto add = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
    if (beaten() && e_.limits.fits()) add(fmt::format("plan A {}", gain_of(*fastest_other())));
    for (const search::Improvement& x : e_.improvements)
      add(fmt::format("{} {}", x.what, gain(x.best_gain_ppm)));
    if (text.empty()) return "See the ways to fit below.";
    return text + " (sequences a second).";
  }
  [[nodiscard]] std::string gain_of(const Account& a) const {
    return fmt::format(
        "{:+.1f} %",
        rounded(
            100 * (static_cast<double>(e_.plan.step_ps()) / static_cast<double>(a.step_ps()) - 1),
            10));
  }

  // ---- why this plan ----

  [[nodiscard]] std::string decisions() const {
    struct Row {
      std::string decision, cost, why;
    };
    std::vector<Row> rows;
    const auto add = [&](const std::string& decision, const Account& a) {
      const Difference d = difference(a);
      const auto most =
          d.total < 0 ? std::ranges::min_element(d.parts) : std::ranges::max_element(d.parts);
      const std::string cost =
          fmt::format("{:>12} {:>9}  {:<2}", more(a), more_percent(a.step_ps(), e_.plan.step_ps()),
                      letter(a.plan));
      rows.push_back({decision, cost,
                      fmt::format("{} {}", time_.show_signed(*most),
                                  part_words(static_cast<TimePart>(most - d.parts.begin())))});
    };
    for (const search::Decision& d : e_.decisions) {
      const std::string decision = fmt::format("{} → {}", d.made, d.otherwise);
      if (d.best)
        add(decision, d.best->account);
      else if (d.shortfall_bytes > 0)
        rows.push_back({decision, "",
                        fmt::format("nothing fits: the smallest plan needs {} more per device",
                                    show_bytes(d.shortfall_bytes))});
      else
        rows.push_back({decision, "", "no such plan divides model, batch and devices"});
    }
    if (e_.uniform) add("its strategies → one for all layers, equal stages", e_.uniform->account);
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
  [[nodiscard]] std::string plans() const {
    std::string text = fmt::format("Plans of this page that fit, of {} simulated (this plan: {})\n",
                                   e_.simulated, step(e_.plan));
    for (const Comparison* c : rivals_) {
      const Account& a = c->account;
      text += fmt::format("  {}  {:>10} {:>12} {:>9}  {}{}\n", letter(a.plan), step(a), more(a),
                          more_percent(a.step_ps(), e_.plan.step_ps()), one_line(a.plan),
                          c->changes.empty() ? "; layers in another order" : "");
      if (e_.uniform && a.plan == e_.uniform->account.plan)
        text += fmt::format(
            "       the best of {} plans with one strategy for all layers and equal stages\n",
            e_.uniform_plans);
      text += fmt::format("       {}\n", main_differences(a));
    }
    if (rivals_.empty()) text += "  none but this\n";
    return e_.uniform || e_.uniform_plans == 0
               ? text
               : text + fmt::format("  none of {} plans with one strategy for all layers fits\n",
                                    e_.uniform_plans);
  }

  // ---- where, what limits ----

  [[nodiscard]] std::string waterfall() const {
    const Account& a = e_.plan;
    const int stages = static_cast<int>(a.report.stages.size());
    std::string text = "Where the time goes";
    text += stages == 1 ? "\n"
                        : fmt::format(" (on stage {} of 0 to {}, which waits least)\n",
                                      a.critical_stage(), stages - 1);
    const std::vector<std::int64_t> ticks = time_.ticks(std::span(a.parts()));
    for (std::size_t i = 0; i < ticks.size(); ++i) {
      if (a.parts()[i] == 0) continue;
      const double share = percent(a.parts()[i], a.step_ps());
      const std::string bar(static_cast<std::size_t>(share / 2.5 + 0.5), '#');
      text += fmt::format("  {:<31} {:>10}  {:5.1f} %{}{}\n", part_words(static_cast<TimePart>(i)),
                          time_.show(ticks[i]), share, bar.empty() ? "" : "  ", bar);
    }
    return text + fmt::format("  {:<31} {:>10}  100.0 %\n", "step", step(a));
  }

  [[nodiscard]] std::string memory_limit() const {
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
  [[nodiscard]] std::string memory_marks() const {
    const search::MemoryMarks& m = e_.memory_marks;
    const auto of = [&](const search::MemoryMark& mark) {
      const Account& a = mark.best;
      return fmt::format("{} a step ({}): {}", step(a),
                         more_percent(a.step_ps(), e_.plan.step_ps()), name(a.plan));
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
    else if (!rivals_.empty() || e_.limits.fits())
      text += "    more memory would gain less than 0.1 %\n";
    return text;
  }

  [[nodiscard]] std::string limits() const {
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
      const std::int64_t work = time_.ticks(step_ps - l.bubble_ps),
                         mean = time_.ticks(l.mean_work_ps);
      text += fmt::format(
          "  balance: the busiest stage works {}, the average stage {}; equal stages would save {} "
          "at most ({:.1f} % of the step)\n",
          time_.show(work), time_.show(mean), time_.show(work - mean),
          percent(step_ps - l.bubble_ps - l.mean_work_ps, step_ps));
    }
    return text + links();
  }
  [[nodiscard]] std::string links() const {
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
                            time_.show(time_.ticks(l.saved_ps)));
    }
    if (first.saved_ps > e_.limits.communication_ps / kShare)
      text +=
          "\n    (more than a tenth of what is exposed: hidden transfers and waiting get shorter "
          "too)";
    return text + "\n";
  }

  // ---- what would help ----

  [[nodiscard]] std::string improvements() const {
    if (e_.improvements.empty())
      return "What would make it faster\n  nothing was tried: no plan fits\n";
    std::string text = fmt::format(
        "What would make it faster: sequences a second, against {}\n  {:<36} {:>15} {:>16}\n",
        e_.limits.fits() ? "this plan now" : "plan A now", "", "this plan kept", "best plan there");
    if (beaten() && e_.limits.fits())
      text +=
          fmt::format("  {:<36} {:>15} {:>16}  A\n", "another plan", "", gain_of(*fastest_other()));
    for (const search::Improvement& x : e_.improvements) {
      text += fmt::format("  {:<36} {:>15} {:>16}  {}\n", x.what,
                          x.kept_gain_ppm ? gain(*x.kept_gain_ppm) : "-", gain(x.best_gain_ppm),
                          name(x.best));
    }
    return text;
  }

  [[nodiscard]] static std::string relaxations(const std::vector<search::Relaxation>& list) {
    std::string text;
    for (const search::Relaxation& r : list)
      text += fmt::format("  would fit with {:<28}{}\n", r.change,
                          r.step_time_ps > 0 ? " " + show_time(r.step_time_ps) + " a step" : "");
    return text;
  }

  // ---- versus ----

  [[nodiscard]] std::string part_table(const Account& a) const {
    const Difference d = difference(a);
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
                          time_.show(d.first[i]), time_.show(d.other[i]),
                          time_.show_signed(d.parts[i]));
    }
    text += fmt::format("  {:<31} {:>11} {:>11} {:>12}\n", "step", step(e_.plan), step(a), more(a));
    return text + fmt::format("  {:<31} {:>11} {:>11}\n", "peak memory of a device",
                              show_bytes(e_.plan.peak_bytes()), show_bytes(a.peak_bytes()));
  }
  [[nodiscard]] std::string versus(const search::Versus& v) const {
    std::string text =
        fmt::format("Against {}{}\n", v.text,
                    v.of_values ? " (set for layers; embedding and head are free)" : "");
    if (!v.comparison) {
      text += v.shortfall_bytes > 0
                  ? fmt::format("  nothing fits: the smallest plan needs {} more per device\n",
                                show_bytes(v.shortfall_bytes))
                  : "  no such plan:\n";
      for (const search::Pruned& p : v.reasons)
        text += fmt::format("    {}: {}\n", p.candidate, p.reason);
      return text + relaxations(v.relaxations);
    }
    const Account& a = v.comparison->account;
    if (letter(a.plan) == "this plan") return text + "  the same plan\n";
    const std::string how = fmt::format("{} than this plan, {}", verdict(a), reason(a));
    if (v.fits)
      text += fmt::format("  {}\n  plan {}: {}\n", how, letter(a.plan), one_line(a.plan));
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
  [[nodiscard]] std::optional<double> behind_best(const search::WhatIf& w) const {
    if (!e_.limits.fits() || !w.best || !w.step_ps) return std::nullopt;
    return rounded(percent(*w.step_ps - w.best->step_ps(), w.best->step_ps()), 10);
  }
  [[nodiscard]] std::string sensitivity() const {
    std::string text =
        fmt::format("If the machine were 10 % other\n  {:<18} {:>11} {:>9} {:>11} {:>12}\n", "",
                    "this plan", "change", "best plan", "behind best");
    for (const search::WhatIf& w : e_.what_ifs) {
      const std::string what = fmt::format("{} {:+} %", w.what, w.change_ppm / 10'000);
      const std::string kept = w.step_ps ? time_.show(time_.ticks(*w.step_ps)) : "too big";
      const std::string change = w.step_ps ? more_percent(*w.step_ps, e_.plan.step_ps()) : "";
      const std::string best = w.best ? step(*w.best) : "none fits";
      const std::optional<double> percents = behind_best(w);
      text += fmt::format("  {:<18} {:>11} {:>9} {:>11} {:>12}{}\n", what, kept, change, best,
                          percents ? fmt::format("{:.1f} %", *percents) : "",
                          w.best ? "  " + name(w.best->plan) : "");
    }
    return text;
  }
  /// The same question for every plan: does the order of the fastest and the others survive wrong
  /// prices?
  [[nodiscard]] std::string order_test() const {
    const bool leads = e_.limits.fits() && first();
    const std::string who = leads ? "this plan leads A" : "A leads the next";
    const search::LeastSure& other = *e_.least_sure;
    std::string text =
        fmt::format("  {} by {}. Of {} draws of errors of the prices, the same for all plans,\n  ",
                    who, time_.show(time_.ticks(e_.gap_ps)), costmodel::kDraws);
    const double share = 100 * other.share_faster;
    switch (e_.stability) {
      case search::Stability::kCertain:
        return text + "none puts another of the closest plans first\n";
      case search::Stability::kLikely:
        return text +
               fmt::format("{:.0f} % put {} first, the others fewer\n", share, name(other.plan));
      case search::Stability::kOpen: break;
    }
    return text + fmt::format(
                      "{:.0f} % put {} first, which is {} behind: they are within the error of "
                      "each other, measure both\n",
                      share, name(other.plan), time_.show(time_.ticks(other.gap_ps)));
  }
  [[nodiscard]] std::string trust() const {
    std::string text =
        fmt::format("How sure\n  prices: {}\n  the step time is known to {} (80 %): {}\n",
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
    return worst ? text + fmt::format(
                              "  on the machines 10 % other, wherever it fits, this plan is at "
                              "most {:.1f} % behind the best plan known there\n",
                              *worst)
                 : text;
  }

  const Explanation& e_;
  const costmodel::CostModel& cost_;
  PageTime time_;
  std::vector<const Comparison*> rivals_;  // fastest first: A, B, ...
};

}  // namespace

std::string explanation_text(const Explanation& e, const costmodel::CostModel& cost) {
  return Page(e, cost).text();
}

}  // namespace orrery::cli

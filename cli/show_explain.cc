#include "cli/show_explain.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>

#include "cli/show.h"

namespace orrery::cli {
namespace {

using search::Comparison;
using search::Explanation;
using search::Parts;
using sim::TimePart;

double percent(std::int64_t part, std::int64_t whole) { return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0; }
/// Rounded so that nothing prints as "-0.0".
double rounded(double value, double scale) { return std::round(value * scale) / scale + 0.0; }
/// "+2.8 %": how much more `a` is than `b`.
std::string more_percent(std::int64_t a, std::int64_t b) { return fmt::format("{:+.1f} %", rounded(percent(a - b, b), 10)); }
std::string signed_time(std::int64_t ps) { return fmt::format("{}{}", ps < 0 ? "-" : "+", show_time(std::abs(ps))); }

const char* part_words(TimePart part) {
  switch (part) {
    case TimePart::kForward: return "forward computation";
    case TimePart::kBackward: return "backward computation";
    case TimePart::kRecompute: return "recomputation";
    case TimePart::kOptimizer: return "optimizer and gradient zeroing";
    case TimePart::kTensor: return "exposed tensor communication";
    case TimePart::kContext: return "exposed context communication";
    case TimePart::kExpert: return "exposed expert communication";
    case TimePart::kData: return "exposed data communication";
    case TimePart::kPipeline: return "exposed pipeline communication";
    case TimePart::kBubble: return "bubble (waiting)";
  }
  return "";
}

// ---- sections of the text ----

/// The one loss to look at first: the largest part that is neither forward nor backward computation.
std::string largest_loss(const search::Account& a) {
  std::size_t largest = static_cast<std::size_t>(TimePart::kRecompute);
  for (std::size_t i = largest; i < a.parts().size(); ++i) {
    if (a.parts()[i] > a.parts()[largest]) largest = i;
  }
  return fmt::format("largest cost besides forward and backward: {}, {} ({:.1f} %)", part_words(static_cast<TimePart>(largest)), show_time(a.parts()[largest]),
                     percent(a.parts()[largest], a.step_ps()));
}

std::string in_short(const Explanation& e) {
  std::string text = "In short\n";
  if (e.limits.fits()) text += fmt::format("  one step takes {}\n", show_time(e.plan.step_ps()));
  else text += fmt::format("  the plan does not fit; one step would take {}\n", show_time(e.plan.step_ps()));
  text += "  " + largest_loss(e.plan) + "\n";
  const std::vector<const Comparison*> rivals = search::rivals(e);
  if (rivals.empty()) return text;
  const search::Account& first = rivals.front()->account;
  const std::int64_t more = first.step_ps() - e.plan.step_ps();
  if (more < 0) return text + fmt::format("  a faster plan is known, by {:.1f} %: {}\n", percent(-more, e.plan.step_ps()), one_line(first.plan));
  if (!e.limits.fits()) return text + fmt::format("  the best plan that fits takes {}: {}\n", show_time(first.step_ps()), one_line(first.plan));
  const bool uniform = e.uniform && first.plan == e.uniform->account.plan;
  return text + fmt::format("  {}\n  closest other plan: {}, {} ({})\n",
                            e.search_status == search::Status::kOptimal ? "no faster plan was simulated, and by closed form the search proved its best plan (orrery plan)"
                                                                        : "no faster plan was found, but the search stopped at its limit of states: there may be one",
                            uniform ? "one strategy for all layers" : one_line(first.plan), more_percent(first.step_ps(), e.plan.step_ps()), show_time(more));
}

/// The parts that make most of the difference, largest first, and the rest: "+0.31 s exposed tensor communication, -0.12 s bubble, +9 ms other".
std::string main_differences(const Parts& difference) {
  std::vector<std::size_t> order;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < difference.size(); ++i) {
    if (difference[i] != 0) order.push_back(i);
    total += std::abs(difference[i]);
  }
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return std::abs(difference[a]) > std::abs(difference[b]); });
  std::int64_t rest = 0;
  for (const std::int64_t ps : difference) rest += ps;
  const std::int64_t net = rest;
  constexpr std::int64_t kSmall = 10, kRest = 20;  // what is left unnamed: parts below a twentieth of all change, a tenth of the difference together
  std::string text;
  for (const std::size_t i : order) {
    if (std::abs(difference[i]) * kRest < total && std::abs(rest) * kSmall <= std::abs(net)) break;
    rest -= difference[i];
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", signed_time(difference[i]), part_words(static_cast<TimePart>(i)));
  }
  if (rest != 0) text += fmt::format(", {} other", signed_time(rest));
  return text.empty() ? "no part differs" : text;
}

/// "4 strategies of layers"; empty for one.
std::string strategies_text(const plan::Plan& plan) {
  std::vector<plan::LayerStrategy> seen;
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::LayerRun& run : stage.runs) {
      if (std::ranges::find(seen, run.strategy) == seen.end()) seen.push_back(run.strategy);
    }
  }
  return seen.size() == 1 ? "" : fmt::format("{} strategies of layers", seen.size());
}

/// Decisions, what it would cost to take them otherwise, and where the time would go. Those with the same plan otherwise share an entry.
std::string why(const Explanation& e) {
  struct Entry {
    std::string decisions;
    const Comparison* best;
  };
  std::vector<Entry> entries;
  std::string without;
  const auto add = [&](const std::string& decision, const Comparison& best) {
    const auto known = std::ranges::find_if(entries, [&](const Entry& x) { return x.best->account.plan == best.account.plan; });
    if (known == entries.end()) entries.push_back({decision, &best});
    else known->decisions += "; " + decision;
  };
  for (const search::Decision& d : e.decisions) {
    const std::string decision = fmt::format("{} → {}", d.made, d.otherwise);
    if (d.best) add(decision, *d.best);
    else if (d.shortfall_bytes > 0) without += fmt::format("  {}: nothing fits, the smallest plan needs {} more per device\n", decision, show_bytes(d.shortfall_bytes));
    else without += fmt::format("  {}: no such plan divides model, batch and devices\n", decision);
  }
  const std::string strategies = strategies_text(e.plan.plan);
  if (e.uniform && !strategies.empty()) add(strategies + " → one for all", *e.uniform);
  std::string text = "Why this plan: its decisions → otherwise, and what the fastest plan that was simulated with the latter takes more, all else free\n";
  for (const auto& [decisions, best] : entries) {
    text += fmt::format("  {}: {} ({})\n      instead {}\n      time    {}\n", decisions, more_percent(best->account.step_ps(), e.plan.step_ps()),
                        signed_time(best->account.step_ps() - e.plan.step_ps()), one_line(best->account.plan), main_differences(best->difference));
  }
  return text + without;
}

std::string waterfall(const search::Account& a) {
  const int stages = static_cast<int>(a.report.stages.size());
  std::string text = "Where the time goes";
  text += stages == 1 ? "\n" : fmt::format(" (on stage {} of 0 to {}, which waits least; the parts add up to the step)\n", a.critical_stage(), stages - 1);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < a.parts().size(); ++i) {
    const std::int64_t ps = a.parts()[i];
    sum += ps;
    if (ps == 0) continue;
    const double share = percent(ps, a.step_ps());
    const std::string bar(static_cast<std::size_t>(share / 2.5 + 0.5), '#');
    text += fmt::format("  {:<31} {:>9}  {:5.1f} %{}{}\n", part_words(static_cast<TimePart>(i)), show_time(ps), share, bar.empty() ? "" : "  ", bar);
  }
  return text + fmt::format("  {:<31} {:>9}  100.0 %\n", "step", show_time(sum));
}

std::string memory_limit(const search::Limits& l) {
  const std::string what = fmt::format("stage {} is the fullest: {} of {}", l.fullest_stage, show_bytes(l.peak_bytes), show_bytes(l.limit_bytes));
  const std::string most = fmt::format("most of it {} ({}, {:.0f} %)", plan::to_string(l.fullest_category), show_bytes(l.category_bytes), percent(l.category_bytes, l.peak_bytes));
  if (!l.fits()) return fmt::format("  memory: DOES NOT FIT. {}, {} too much; {}\n", what, show_bytes(l.peak_bytes - l.limit_bytes), most);
  return fmt::format("  memory: {}, {} free ({:.1f} %); {}\n", what, show_bytes(l.limit_bytes - l.peak_bytes), percent(l.limit_bytes - l.peak_bytes, l.limit_bytes), most);
}

std::string link_sentence(const Explanation& e) {
  constexpr std::int64_t kShare = 10;  // 10 % more bandwidth takes less than a tenth off what is exposed
  if (e.limits.communication_ps == 0) return "  links: no communication is exposed; faster links would save nothing\n";
  const search::LinkEffect& first = e.limits.links.front();
  if (first.saved_ps <= 0) return "  links: 10 % more bandwidth on any one of them saves nothing (latency rules)\n";
  std::string text = "  links: 10 % more bandwidth";
  for (const search::LinkEffect& l : e.limits.links) {
    if (l.saved_ps > 0) text += fmt::format("{} on {} saves {}", &l == &first ? "" : ",", l.kind, show_time(l.saved_ps));
  }
  if (first.saved_ps > e.limits.communication_ps / kShare) text += "\n    (more than a tenth of what is exposed: hidden transfers and waiting get shorter too, and computation runs slower beside transfers)";
  return text + "\n";
}

std::string limits(const Explanation& e) {
  const search::Limits& l = e.limits;
  const std::int64_t step = e.plan.step_ps();
  std::string text = "What limits it\n" + memory_limit(l);
  const std::int64_t again = e.plan.parts()[static_cast<std::size_t>(TimePart::kRecompute)];
  const std::string recomputed = again > 0 ? fmt::format(" ({:.1f} % recomputation, for want of memory)", percent(again, step)) : "";
  std::string shares = fmt::format("computation {:.1f} %{}, exposed communication {:.1f} %, waiting {:.1f} %", percent(l.compute_ps, step), recomputed,
                                   percent(l.communication_ps, step), percent(l.bubble_ps, step));
  if (e.plan.report.stages.size() > 1) {
    shares += fmt::format(" on stage {}, which waits least ({:.1f} % mean over stages)", e.plan.critical_stage(), percent(step - l.mean_work_ps, step));
  }
  switch (e.bound) {
    case search::TimeBound::kCompute: text += fmt::format("  time: bound by computation: {}\n", shares); break;
    case search::TimeBound::kCommunication:
      text += fmt::format("  time: bound by communication, most of what is exposed is {}: {}\n", part_words(l.dearest_communication), shares);
      break;
    case search::TimeBound::kBubble: text += fmt::format("  time: bound by the pipeline bubble: {}\n", shares); break;
  }
  for (const search::Elasticity& x : e.elasticities) text += fmt::format("{}1 % more {}: {:+.2f} % step time", &x == &e.elasticities.front() ? "  " : "; ", x.what, rounded(x.value, 100));
  if (!e.elasticities.empty()) text += "\n";
  const std::int64_t work = step - l.bubble_ps;
  if (e.plan.report.stages.size() > 1) {
    text += fmt::format("  balance: the busiest stage works {}, the average stage {}; equal stages would save {} at most ({:.1f} % of the step)\n", show_time(work),
                        show_time(l.mean_work_ps), show_time(work - l.mean_work_ps), percent(work - l.mean_work_ps, step));
  }
  return text + link_sentence(e);
}

/// What its layers do otherwise, when its line does not say it; empty: nothing to add.
std::string layers_text(const Explanation& e, const Comparison& c) {
  if (c.account.plan == e.plan.plan) return "the same plan";
  if (c.changes.empty()) return "the same degrees, in another order of layers";
  std::string text;
  if (one_line_names_strategies(c.account.plan)) return text;
  for (const std::string& line : search::layer_choices(e.plan.plan, c.account.plan)) text += (text.empty() ? "" : "; ") + line;
  return text;
}

std::string plan_row(const Explanation& e, const Comparison& c) {
  std::string text = fmt::format("  {:>9}  ({})  {}\n", show_time(c.account.step_ps()), more_percent(c.account.step_ps(), e.plan.step_ps()), one_line(c.account.plan));
  if (e.uniform && c.account.plan == e.uniform->account.plan) {
    text += fmt::format("             the best of {} plans with one strategy for all layers and equal stages\n", e.uniform_plans);
  }
  const std::string layers = layers_text(e, c);
  if (!layers.empty()) text += fmt::format("             layers: {}\n", layers);
  return text + fmt::format("             time:   {}\n", main_differences(c.difference));
}

std::string others(const Explanation& e) {
  std::string text = "Other plans that fit: the best of other choices of stages, micro-batches, schedule or dimensions\n";
  std::vector<const Comparison*> rows;
  for (const Comparison& c : e.others) rows.push_back(&c);
  const auto is_uniform = [&](const Comparison* c) { return c->account.plan == e.uniform->account.plan; };
  if (e.uniform && std::ranges::none_of(rows, is_uniform)) rows.push_back(&*e.uniform);
  std::ranges::stable_sort(rows, {}, [](const Comparison* c) { return c->account.step_ps(); });
  for (const Comparison* c : rows) text += plan_row(e, *c);
  if (rows.empty()) text += "  none was found\n";
  return e.uniform ? text : text + fmt::format("  none of {} plans with one strategy for all layers fits\n", e.uniform_plans);
}

std::string part_table(const Explanation& e, const Comparison& c) {
  std::string text = fmt::format("  {:<31} {:>10} {:>10} {:>10}\n", "", "this plan", "that plan", "difference");
  if (e.plan.report.stages.size() > 1 || c.account.report.stages.size() > 1) {
    text += fmt::format("  {:<31} {:>10} {:>10}\n", "(the stage that waits least)", fmt::format("stage {}", e.plan.critical_stage()), fmt::format("stage {}", c.account.critical_stage()));
  }
  for (std::size_t i = 0; i < c.difference.size(); ++i) {
    if (e.plan.parts()[i] == 0 && c.account.parts()[i] == 0) continue;
    text += fmt::format("  {:<31} {:>10} {:>10} {:>10}\n", part_words(static_cast<TimePart>(i)), show_time(e.plan.parts()[i]), show_time(c.account.parts()[i]),
                        signed_time(c.difference[i]));
  }
  text += fmt::format("  {:<31} {:>10} {:>10} {:>10}\n", "step", show_time(e.plan.step_ps()), show_time(c.account.step_ps()), signed_time(c.account.step_ps() - e.plan.step_ps()));
  return text + fmt::format("  {:<31} {:>10} {:>10}\n", "peak memory of a device", show_bytes(e.plan.peak_bytes()), show_bytes(c.account.peak_bytes()));
}

std::string relaxations(const std::vector<search::Relaxation>& list) {
  std::string text;
  for (const search::Relaxation& r : list) {
    text += fmt::format("  would fit with {:<28}{}\n", r.change, r.step_time_ps > 0 ? " " + show_time(r.step_time_ps) + " a step" : "");
  }
  return text;
}

std::string versus(const Explanation& e, const search::Versus& v) {
  std::string text = fmt::format("Against {}{}\n", v.text, v.of_values ? " (set for layers; embedding and head are free)" : "");
  if (!v.comparison) {
    text += v.shortfall_bytes > 0 ? fmt::format("  nothing fits: the smallest plan needs {} more per device\n", show_bytes(v.shortfall_bytes)) : "  no such plan:\n";
    for (const search::Pruned& p : v.reasons) text += fmt::format("    {}: {}\n", p.candidate, p.reason);
    return text + relaxations(v.relaxations);
  }
  const Comparison& c = *v.comparison;
  const std::int64_t more = c.account.step_ps() - e.plan.step_ps();
  const std::string verdict = more == 0 ? "as fast as" : fmt::format("{:.1f} % {} than", percent(std::abs(more), e.plan.step_ps()), more > 0 ? "slower" : "faster");
  if (v.fits) text += fmt::format("  {}: {}, {} this plan\n", one_line(c.account.plan), show_time(c.account.step_ps()), verdict);
  else {
    text += fmt::format("  does not fit: stage {} needs {}, {} more than the limit; with that memory it would be {} this plan:\n  {}\n", v.stage, show_bytes(c.account.peak_bytes()),
                        show_bytes(v.shortfall_bytes), verdict, one_line(c.account.plan));
  }
  const std::string layers = layers_text(e, c);
  if (!layers.empty()) text += fmt::format("  layers: {}\n", layers);
  return text + part_table(e, c) + relaxations(v.relaxations);
}

/// Per cent that this plan is behind the best found on a changed machine; none where one of them does not fit.
std::optional<double> behind_best(const Explanation& e, const search::WhatIf& w) {
  if (!e.limits.fits() || !w.best || !w.step_ps) return std::nullopt;
  return rounded(percent(*w.step_ps - w.best->step_ps(), w.best->step_ps()), 10);
}

std::string sensitivity(const Explanation& e) {
  std::string text = fmt::format("Sensitivity\n  {:<18} {:>10} {:>9} {:>10} {:>12}\n", "", "this plan", "change", "best plan", "behind best");
  for (const search::WhatIf& w : e.what_ifs) {
    const std::string name = fmt::format("{} {:+} %", w.what, w.change_ppm / 10'000);
    const std::string time = w.step_ps ? show_time(*w.step_ps) : "too big";
    const std::string change = w.step_ps ? more_percent(*w.step_ps, e.plan.step_ps()) : "";
    const std::string best = w.best ? show_time(w.best->step_ps()) : "none fits";
    const std::optional<double> percents = behind_best(e, w);
    const std::string behind = percents ? fmt::format("{:.1f} %", *percents) : "";
    text += fmt::format("  {:<18} {:>10} {:>9} {:>10} {:>12}", name, time, change, best, behind);
    text += w.best ? fmt::format("  {}\n", w.best_changes ? one_line(w.best->plan) : "the same") : "\n";
  }
  return text + "  (pp stages, v chunks of layers a rank, m micro-batches, tp, dp and cp degrees, sp sequence parallelism; a line names at most two strategies of layers)\n";
}

/// The same question for every plan: does the order of the fastest and the others survive wrong prices?
std::string order_test(const Explanation& e) {
  const double band = static_cast<double>(e.uncertainty.band_ppm) / 1e4;
  const std::vector<const Comparison*> rivals = search::rivals(e);
  const std::string who = e.limits.fits() && e.plan.step_ps() <= rivals.front()->account.step_ps() ? "this plan leads the next" : "the fastest plan known leads the next";
  const search::LeastSure& other = *e.least_sure;
  std::string text = fmt::format("  {} by {}. If every price of one kind (compute, tensor communication, ...) is wrong by {:.1f} % in two plans at once, ", who, show_time(e.gap_ps), band);
  switch (e.stability) {
    case search::Stability::kCertain: return text + "the order holds against\n  every plan above, and also if two steps are wrong independently\n";
    case search::Stability::kLikely: return text + "the order holds against\n  every plan above (if two steps are wrong independently, it may turn)\n";
    case search::Stability::kOpen: break;
  }
  return text + fmt::format("the order may turn:\n  measure this plan and {}, whose distance is {} and may shrink by {}\n", one_line(other.plan), show_time(other.gap_ps), show_time(other.shared_error_ps));
}

std::string trust(const Explanation& e, const costmodel::CostModel& cost) {
  std::string text = fmt::format("How sure\n  prices: {}\n  a step time is known to ±{:.1f} %: {}\n", describe_origin(cost), static_cast<double>(e.uncertainty.band_ppm) / 1e4,
                                 e.uncertainty.source);
  if (search::rivals(e).size() + (e.limits.fits() ? 1 : 0) > 1) text += order_test(e);
  std::optional<double> worst;
  for (const search::WhatIf& w : e.what_ifs) {
    const std::optional<double> behind = behind_best(e, w);
    if (behind) worst = std::max(worst.value_or(0), *behind);
  }
  return worst ? text + fmt::format("  in every case above where it fits, this plan is at most {:.1f} % behind the best plan of the search\n", *worst) : text;
}

}  // namespace

std::string explanation_text(const Explanation& e, const costmodel::CostModel& cost) {
  std::string text = describe(e.plan.plan, cost.topology().device_count()) + "\n" + in_short(e) + "\n";
  text += why(e) + "\n" + waterfall(e.plan) + "\n" + limits(e) + "\n";
  if (!e.relaxations.empty()) text += "Ways to make this plan fit\n" + relaxations(e.relaxations) + "\n";
  if (!e.problem_relaxations.empty()) text += "No plan of the search fits; the best one\n" + relaxations(e.problem_relaxations) + "\n";
  if (e.versus) text += versus(e, *e.versus) + "\n";
  return text + others(e) + "\n" + sensitivity(e) + "\n" + trust(e, cost);
}

// ---- JSON ----

namespace {

base::Json parts_json(const Parts& parts) {
  base::Json j = base::Json::object();
  for (std::size_t i = 0; i < parts.size(); ++i) j[std::string(sim::to_string(static_cast<TimePart>(i)))] = parts[i];
  return j;
}

base::Json account_json(const search::Account& a) {
  return {{"plan", plan::to_json(a.plan)}, {"step_time_ps", a.step_ps()}, {"critical_stage", a.critical_stage()}, {"parts_ps", parts_json(a.parts())},
          {"peak_memory_bytes", a.peak_bytes()}, {"fullest_stage", a.fullest_stage()}};
}

base::Json comparison_json(const Comparison& c) {
  base::Json j = account_json(c.account);
  j["difference_ps"] = parts_json(c.difference);
  j["changes"] = c.changes;
  return j;
}

base::Json relaxations_json(const std::vector<search::Relaxation>& list) {
  base::Json j = base::Json::array();
  for (const search::Relaxation& r : list) j.push_back({{"change", r.change}, {"memory_bytes", r.memory_bytes}, {"step_time_ps", r.step_time_ps}});
  return j;
}

const char* bound_word(search::TimeBound b) {
  switch (b) {
    case search::TimeBound::kCompute: return "compute";
    case search::TimeBound::kCommunication: return "communication";
    case search::TimeBound::kBubble: return "bubble";
  }
  return "";
}

base::Json limits_json(const Explanation& e) {
  const search::Limits& l = e.limits;
  const search::Balance balance = search::balance_of(e.plan.report);
  base::Json links = base::Json::array();
  for (const search::LinkEffect& x : l.links) links.push_back({{"kind", x.kind}, {"saved_ps", x.saved_ps}});
  const base::Json memory{{"fits", l.fits()}, {"stage", l.fullest_stage}, {"peak_bytes", l.peak_bytes}, {"limit_bytes", l.limit_bytes},
                          {"category", std::string(plan::to_string(l.fullest_category))}, {"category_bytes", l.category_bytes}};
  const base::Json time{{"bound_by", bound_word(e.bound)}, {"compute_ps", l.compute_ps}, {"communication_ps", l.communication_ps}, {"bubble_ps", l.bubble_ps},
                        {"mean_work_ps", l.mean_work_ps}, {"dearest_communication", std::string(sim::to_string(l.dearest_communication))}, {"ten_percent_more", links}};
  return {{"memory", memory}, {"time", time}, {"balance", {{"memory", balance.memory}, {"time", balance.time}}}};
}

base::Json versus_json(const search::Versus& v) {
  base::Json j = v.comparison ? comparison_json(*v.comparison) : base::Json::object();
  j["what"] = v.text;
  j["fits"] = v.fits;
  j["shortfall_bytes"] = v.shortfall_bytes;
  j["relaxations"] = relaxations_json(v.relaxations);
  j["reasons"] = base::Json::array();
  for (const search::Pruned& p : v.reasons) j["reasons"].push_back({{"candidate", p.candidate}, {"reason", p.reason}});
  return j;
}

base::Json what_ifs_json(const Explanation& e) {
  base::Json rows = base::Json::array();
  for (const search::WhatIf& w : e.what_ifs) {
    base::Json row{{"what", w.what}, {"change", static_cast<double>(w.change_ppm) / 1e6}, {"best_changes", w.best_changes}};
    if (w.step_ps) row["step_time_ps"] = *w.step_ps;
    if (w.best) row["best"] = account_json(*w.best);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

base::Json explanation_json(const Explanation& e, const costmodel::CostModel& cost) {
  base::Json j = account_json(e.plan);
  j["schema"] = "orrery.explanation/1";
  j["origin"] = origin_json(cost);
  j["limits"] = limits_json(e);
  j["search_status"] = std::string(search::to_string(e.search_status));
  j["others"] = base::Json::array();
  for (const Comparison& c : e.others) j["others"].push_back(comparison_json(c));
  j["decisions"] = base::Json::array();
  for (const search::Decision& d : e.decisions) {
    base::Json row{{"made", d.made}, {"otherwise", d.otherwise}, {"shortfall_bytes", d.shortfall_bytes}};
    if (d.best) row.update({{"best", one_line(d.best->account.plan)}, {"step_time_ps", d.best->account.step_ps()}, {"difference_ps", parts_json(d.best->difference)}});
    j["decisions"].push_back(std::move(row));
  }
  j["uniform"] = e.uniform ? comparison_json(*e.uniform) : base::Json::object();
  j["uniform"]["plans"] = e.uniform_plans;
  if (e.versus) j["versus"] = versus_json(*e.versus);
  base::Json elasticities = base::Json::object();
  for (const search::Elasticity& x : e.elasticities) elasticities[x.what] = x.value;
  j["sensitivity"] = {{"changes", what_ifs_json(e)}, {"elasticities", elasticities}};
  j["stability"] = {{"verdict", std::string(search::to_string(e.stability))}, {"gap_ps", e.gap_ps}, {"least_sure", e.least_sure ? base::Json{{"plan", one_line(e.least_sure->plan)}, {"gap_ps", e.least_sure->gap_ps}, {"shared_error_ps", e.least_sure->shared_error_ps}} : base::Json()}, {"band", static_cast<double>(e.uncertainty.band_ppm) / 1e6}, {"source", e.uncertainty.source}};
  j["relaxations"] = relaxations_json(e.relaxations);
  j["problem_relaxations"] = relaxations_json(e.problem_relaxations);
  return j;
}

}  // namespace orrery::cli

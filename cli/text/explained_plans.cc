#include "cli/text/explained_plans.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/numbers.h"
#include "cli/text/report_words.h"
#include "cli/text/show.h"

namespace orrery::cli {

using search::SimulatedPlan;
using sim::TimePart;

double percent(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? 100.0 * real(part) / real(whole) : 0.0;
}

double rounded(double value, double scale) { return std::round(value * scale) / scale + 0.0; }

std::string more_percent(std::int64_t a, std::int64_t b) {
  const double value = percent(a - b, b);
  return std::abs(value) < 1 ? fmt::format("{:+.2f} %", rounded(value, 100))
                             : fmt::format("{:+.1f} %", rounded(value, 10));
}

std::string gain(std::int64_t ppm) {
  return fmt::format("{:+.1f} %", rounded(real(ppm) / 1e4, 10));
}

const SimulatedPlan* ExplainedPlans::fastest_other() const {
  return rivals_.empty() ? nullptr : &rivals_.front()->simulated;
}

bool ExplainedPlans::first() const {
  return rivals_.empty() || e_.plan.step_ps() <= rivals_.front()->simulated.step_ps();
}

bool ExplainedPlans::beaten() const {
  return !rivals_.empty() &&
         e_.plan.step_ps() - rivals_.front()->simulated.step_ps() >= e_.plan.step_ps() / 1000;
}

std::string ExplainedPlans::letter(const Plan& plan) const {
  if (plan::canonical(plan) == plan::canonical(e_.plan.plan)) return "this plan";
  const Plan wanted = plan::canonical(plan);
  for (std::size_t i = 0; i < rivals_.size(); ++i) {
    if (plan::canonical(rivals_[i]->simulated.plan) == wanted)
      return std::string(1, static_cast<char>('A' + i));
  }
  return "";
}

std::string ExplainedPlans::name(const Plan& plan) const {
  const std::string known = letter(plan);
  return known.empty() ? one_line(plan) : known;
}

std::string ExplainedPlans::step(const SimulatedPlan& a) const { return shown(a.step_ps()); }

std::string ExplainedPlans::more(const SimulatedPlan& a) const {
  return time_.show_signed(time_.ticks(a.step_ps()) - time_.ticks(e_.plan.step_ps()));
}

Difference ExplainedPlans::difference(const SimulatedPlan& a) const {
  Difference d{time_.ticks(std::span(e_.plan.parts())), time_.ticks(std::span(a.parts())), {}, 0};
  for (std::size_t i = 0; i < d.first.size(); ++i) d.parts.push_back(d.other[i] - d.first[i]);
  for (const std::int64_t ticks : d.parts) d.total += ticks;
  return d;
}

std::string ExplainedPlans::main_differences(const SimulatedPlan& a) const {
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
    if (std::abs(d.parts[i]) * kRest < total && std::abs(rest) * kSmall <= std::abs(d.total)) break;
    rest -= d.parts[i];
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", time_.show_signed(d.parts[i]),
                        part_words(static_cast<TimePart>(i)));
  }
  if (rest != 0) text += fmt::format(", {} other", time_.show_signed(rest));
  return text.empty() ? "no part differs" : text;
}

std::string ExplainedPlans::reason(const SimulatedPlan& a) const {
  const Difference d = difference(a);
  const std::int64_t sign = d.total < 0 ? -1 : 1;
  const auto main = std::ranges::max_element(d.parts, {}, [&](std::int64_t t) { return sign * t; });
  const auto against =
      std::ranges::min_element(d.parts, {}, [&](std::int64_t t) { return sign * t; });
  const auto part = [&](auto at) { return static_cast<TimePart>(at - d.parts.begin()); };
  if (*main * sign <= 0) return "all parts take the same";
  constexpr std::int64_t kNotable = 5;  // of the main part
  std::string text = "mainly because " + part_clause(part(main), a.plan, e_.plan.plan,
                                                     time_.show(std::abs(*main)), *main > 0);
  if (-*against * sign * kNotable > *main * sign)
    text += fmt::format(", although {}", part_clause(part(against), a.plan, e_.plan.plan,
                                                     time_.show(std::abs(*against)), *against > 0));
  return text;
}

std::string ExplainedPlans::verdict(const SimulatedPlan& a) const {
  const std::string value = change(a.step_ps());
  if (a.step_ps() == e_.plan.step_ps()) return "as fast";
  return fmt::format("{} {}", value.substr(1),
                     a.step_ps() > e_.plan.step_ps() ? "slower" : "faster");
}

std::string ExplainedPlans::gain_of(const SimulatedPlan& a) const {
  return fmt::format("{:+.1f} %",
                     rounded(100 * (real(e_.plan.step_ps()) / real(a.step_ps()) - 1), 10));
}

bool ExplainedPlans::close(const SimulatedPlan& other) const {
  return (e_.plan.step_ps() - other.step_ps()) * 100 < e_.plan.step_ps();
}

}  // namespace orrery::cli

#include "cli/text/show_explain.h"

#include "base/ids.h"
#include "base/numbers.h"
#include "cli/text/show.h"

namespace orrery::cli {
namespace {

using search::Comparison;
using search::Explanation;
using search::Parts;
using sim::TimePart;

Json parts_json(const Parts& parts) {
  Json j = Json::object();
  for (std::size_t i = 0; i < parts.size(); ++i)
    j[sim::to_string(static_cast<TimePart>(i))] = parts[i];
  return j;
}

Json simulated_json(const search::SimulatedPlan& a) {
  return {{"plan", plan::to_json(a.plan)},        {"step_time_ps", a.step_ps()},
          {"critical_stage", a.critical_stage()}, {"parts_ps", parts_json(a.parts())},
          {"peak_memory_bytes", a.peak_bytes()},  {"fullest_stage", a.fullest_stage()}};
}

Json relaxations_json(const std::vector<search::Relaxation>& list) {
  return json_list(list, [](const search::Relaxation& r) -> Json {
    return {
        {"change", r.change}, {"memory_bytes", r.memory_bytes}, {"step_time_ps", r.step_time_ps}};
  });
}

std::string_view bound_word(search::TimeBound b) {
  return base::EnumNames<search::TimeBound::kBubble>("compute", "communication", "bubble")[b];
}

Json limits_json(const Explanation& e) {
  const search::Limits& l = e.limits;
  const search::Balance balance = search::balance_of(e.plan.report);
  const Json links = json_list(l.links, [](const search::LinkEffect& x) -> Json {
    return {{"kind", x.kind}, {"saved_ps", x.saved_ps}};
  });
  const Json memory{{"fits", l.fits()},
                    {"stage", l.fullest_stage},
                    {"peak_bytes", l.peak_bytes},
                    {"limit_bytes", l.limit_bytes},
                    {"category", plan::to_string(l.fullest_category)},
                    {"category_bytes", l.category_bytes}};
  const Json time{{"bound_by", bound_word(e.bound)},
                  {"compute_ps", l.compute_ps},
                  {"communication_ps", l.communication_ps},
                  {"bubble_ps", l.bubble_ps},
                  {"mean_work_ps", l.mean_work_ps},
                  {"dearest_communication", sim::to_string(l.dearest_communication)},
                  {"ten_percent_more", links}};
  return {{"memory", memory},
          {"time", time},
          {"balance", {{"memory", balance.memory}, {"time", balance.time}}}};
}

Json versus_json(const search::Versus& v) {
  Json j = v.comparison ? comparison_json(*v.comparison) : Json::object();
  j["what"] = v.text;
  j["fits"] = v.fits;
  j["shortfall_bytes"] = v.shortfall_bytes;
  j["relaxations"] = relaxations_json(v.relaxations);
  j["reasons"] = pruned_json(v.reasons);
  return j;
}

double share(std::int64_t ppm) { return real(ppm) / 1e6; }

Json what_ifs_json(const Explanation& e) {
  return json_list(e.what_ifs, [](const search::WhatIf& w) {
    Json row{{"what", w.what}, {"change", share(w.change_ppm)}, {"best_changes", w.best_changes}};
    if (w.step_ps) row["step_time_ps"] = *w.step_ps;
    if (w.best) row["best"] = simulated_json(*w.best);
    return row;
  });
}

Json improvement_json(const search::Improvement& x) {
  Json row{{"what", x.what}, {"best", one_line(x.best)}, {"best_gain", share(x.best_gain_ppm)}};
  if (x.kept_gain_ppm) row["kept_gain"] = share(*x.kept_gain_ppm);
  return row;
}

Json mark_json(const search::MemoryMark& m) {
  return {{"memory_bytes", m.bytes},
          {"best", one_line(m.best.plan)},
          {"step_time_ps", m.best.step_ps()}};
}

}  // namespace

Json comparison_json(const Comparison& c) {
  Json j = simulated_json(c.simulated);
  j["difference_ps"] = parts_json(c.difference);
  j["changes"] = c.changes;
  return j;
}

Json explanation_json(const Explanation& e, const CostModel& cost) {
  Json j = simulated_json(e.plan);
  j["schema"] = "orrery.explanation/1";
  j["origin"] = origin_json(cost, {e.uncertainty, e.band});
  j["limits"] = limits_json(e);
  j["search_status"] = search::to_string(e.search_status);
  j["others"] = Json::array();
  for (const Comparison& c : e.others) j["others"].push_back(comparison_json(c));
  j["decisions"] = Json::array();
  for (const search::Decision& d : e.decisions) {
    Json row{{"made", d.made}, {"otherwise", d.otherwise}, {"shortfall_bytes", d.shortfall_bytes}};
    if (d.best)
      row.update({{"best", one_line(d.best->simulated.plan)},
                  {"step_time_ps", d.best->simulated.step_ps()},
                  {"difference_ps", parts_json(d.best->difference)}});
    j["decisions"].push_back(std::move(row));
  }
  j["uniform"] = e.uniform ? comparison_json(*e.uniform) : Json::object();
  j["uniform"]["plans"] = e.uniform_plans;
  if (e.versus) j["versus"] = versus_json(*e.versus);
  Json elasticities = Json::object();
  for (const search::Elasticity& x : e.elasticities) elasticities[x.what] = x.value;
  j["simulated_plans"] = e.simulated;
  j["improvements"] = json_list(e.improvements, improvement_json);
  j["memory_marks"] = Json::object();
  if (e.memory_marks.no_recomputation)
    j["memory_marks"]["no_recomputation"] = mark_json(*e.memory_marks.no_recomputation);
  if (e.memory_marks.enough) j["memory_marks"]["enough"] = mark_json(*e.memory_marks.enough);
  if (e.release)
    j["release"] = {{"what", e.release->what},
                    {"gain", share(e.release->gain_ppm)},
                    {"then", bound_word(e.release->then)}};
  j["sensitivity"] = {{"changes", what_ifs_json(e)}, {"elasticities", elasticities}};
  j["stability"] = {{"verdict", search::to_string(e.stability)},
                    {"gap_ps", e.gap_ps},
                    {"least_sure", e.least_sure ? Json{{"plan", one_line(e.least_sure->plan)},
                                                       {"gap_ps", e.least_sure->gap_ps},
                                                       {"share_faster", e.least_sure->share_faster}}
                                                : Json()}};
  j["relaxations"] = relaxations_json(e.relaxations);
  j["problem_relaxations"] = relaxations_json(e.problem_relaxations);
  return j;
}

}  // namespace orrery::cli

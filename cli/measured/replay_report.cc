#include "cli/measured/replay_report.h"

#include <map>
#include <utility>

#include "base/json.h"
#include "base/numbers.h"
#include "cli/text/show.h"

namespace orrery::cli {

namespace {

bool computes(const plan::Span& span) { return !span.phase.empty(); }

Json json_of(const Replayed& r) {
  return {{"predicted_s", r.predicted}, {"replayed_s", r.replayed}};
}

Json json_of(const ReplayRow& r) {
  return {{"stage", r.stage},
          {"first_rank", r.first_rank},
          {"ranks", r.ranks},
          {"replayed_rank", r.rank},
          {"compute", json_of(r.compute_s)},
          {"communication", {{"predicted_s", r.communication_s}}},
          {"step_alone", json_of(r.step_s)},
          {"peak_memory",
           {{"predicted_bytes", static_cast<std::int64_t>(r.peak_bytes.predicted)},
            {"replayed_bytes", static_cast<std::int64_t>(r.peak_bytes.replayed)}}}};
}

std::string show_bytes_of(double bytes) { return show_bytes(static_cast<std::int64_t>(bytes)); }

}  // namespace

void add_compute_times(const std::vector<plan::Span>& spans, std::uint32_t rank_class,
                       sim::ComputeTimes& times) {
  std::map<sim::ComputeKey, std::pair<std::int64_t, std::int64_t>> sums;  // ps, operations
  for (const plan::Span& s : spans) {
    if (!computes(s)) continue;
    auto& [ps, count] = sums[{rank_class, s.template_id, s.template_index}];
    ps += s.duration_ps;
    ++count;
  }
  for (const auto& [key, sum] : sums) times[key] = ceil_div(sum.first, sum.second);
}

double compute_seconds(const std::vector<plan::Span>& spans) {
  std::int64_t ps = 0;
  for (const plan::Span& s : spans)
    if (computes(s)) ps += s.duration_ps;
  return sim::seconds(ps);
}

Json to_json(const ReplayReport& report, const Plan& plan) {
  Json document{{"schema", "orrery.replay/1"},
                {"plan", plan::to_json(plan)},
                {"device", report.device},
                {"steps", report.steps},
                {"classes", json_list(report.rows, [](const ReplayRow& r) { return json_of(r); })},
                {"predicted", {{"step_time_s", report.predicted_step_s}}}};
  if (const auto& f = report.fed_back)
    document["with_replayed_compute"] = {
        {"step_time_s", f->step_s},
        {"exposed_communication_fraction", f->exposed_communication},
        {"bubble_fraction", f->bubble}};
  return document;
}

std::string to_text(const ReplayReport& report) {
  std::string text =
      fmt::format("{:<5} {:>12} {:>10} {:>10} {:>8} {:>10} {:>10} {:>10} {:>8} {:>9} {:>9} {:>7}\n",
                  "stage", "ranks", "compute", "replayed", "error", "communic.", "alone",
                  "replayed", "error", "peak", "replayed", "error");
  for (const ReplayRow& r : report.rows)
    text += fmt::format(
        "{:<5} {:>12} {:>10} {:>10} {:>+7.1f}% {:>10} {:>10} {:>10} {:>+7.1f}% {:>9} {:>9} "
        "{:>+6.1f}%\n",
        r.stage, fmt::format("{}..{}", r.first_rank, r.first_rank + r.ranks - 1),
        show_seconds(r.compute_s.predicted), show_seconds(r.compute_s.replayed),
        100 * r.compute_s.error(), show_seconds(r.communication_s),
        show_seconds(r.step_s.predicted), show_seconds(r.step_s.replayed), 100 * r.step_s.error(),
        show_bytes_of(r.peak_bytes.predicted), show_bytes_of(r.peak_bytes.replayed),
        100 * r.peak_bytes.error());
  text +=
      "communic.: as predicted, replayed as waits; alone: a step that waits for no other rank\n";
  text += fmt::format("\nstep time   predicted {}", show_seconds(report.predicted_step_s));
  if (!report.fed_back) return text + "\n";
  const FedBackStep& f = *report.fed_back;
  text += fmt::format("; with computation as replayed {} ({:+.1f} %)\n", show_seconds(f.step_s),
                      100 * (report.predicted_step_s / f.step_s - 1));
  text += fmt::format(
      "of that     {:.1f} % computation, replayed; {:.1f} % exposed communication and {:.1f} % "
      "bubble, model\n",
      100 * (1 - f.exposed_communication - f.bubble), 100 * f.exposed_communication,
      100 * f.bubble);
  return text;
}

}  // namespace orrery::cli

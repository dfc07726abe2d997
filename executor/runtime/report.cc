#include "executor/runtime/report.h"

#include <tuple>

#include "base/json.h"

namespace orrery::executor {
namespace {

// What is written, in order.
auto fields(auto& span) {
  return std::tie(span.rank, span.stream, span.name, span.category, span.phase, span.layer,
                  span.micro_batch, span.template_id, span.template_index, span.start_ps,
                  span.duration_ps, span.bytes);
}
auto sample_fields(auto& sample) { return std::tie(sample.rank, sample.at_ps, sample.bytes); }

template <class... T>
void read(const base::Json& row, std::tuple<T&...> to) {
  to = row.get<std::tuple<T...>>();
}

}  // namespace

std::string to_text(const RankReport& report) {
  base::Json spans = base::Json::array(), samples = base::Json::array();
  for (const plan::Span& s : report.spans) spans.push_back(fields(s));
  for (const plan::MemorySample& m : report.samples) samples.push_back(sample_fields(m));
  return base::to_line(base::Json{{"stage", report.stage},
                                  {"peak", report.memory.peak},
                                  {"at_peak", report.memory.at_peak},
                                  {"spans", std::move(spans)},
                                  {"samples", std::move(samples)}});
}

base::Result<void> merge(const std::vector<std::string>& texts, const plan::Program& program,
                         RunReport& report) {
  const std::size_t stages = program.classes.size();
  report.peak_memory_bytes.assign(stages, 0);
  report.memory_at_peak.assign(stages, {});
  plan::Timeline& timeline = report.timeline;
  timeline.origin = "measured";
  timeline.model = program.model;
  timeline.plan_fingerprint = program.plan_fingerprint;
  timeline.program_fingerprint = report.program_fingerprint;
  for (const std::string& text : texts) {
    TRY(const base::Json j, base::parse_json(text, "report of a rank"));
    const auto stage = j.at("stage").get<std::size_t>();
    const auto peak = j.at("peak").get<std::int64_t>();
    if (peak > report.peak_memory_bytes[stage]) {
      report.peak_memory_bytes[stage] = peak;
      report.memory_at_peak[stage] = j.at("at_peak").get<CategoryBytes>();
    }
    for (const base::Json& s : j.at("spans")) read(s, fields(timeline.spans.emplace_back()));
    for (const base::Json& m : j.at("samples"))
      read(m, sample_fields(timeline.memory.emplace_back()));
  }
  if (!report.steps.empty())
    timeline.step_time_ps = static_cast<std::int64_t>(report.steps.back().seconds * 1e12);
  return {};
}

}  // namespace orrery::executor

#include "executor/runtime/report.h"

#include "base/json.h"

namespace orrery::executor {
namespace {

base::Json to_json(const plan::Span& s) {
  return base::Json::array({s.rank, static_cast<int>(s.stream), s.name, s.category, s.phase,
                            s.layer, s.micro_batch, s.template_id, s.template_index, s.start_ps,
                            s.duration_ps, s.bytes});
}

plan::Span span_of(const base::Json& j) {
  plan::Span s;
  j.at(0).get_to(s.rank);
  j.at(1).get_to(s.stream);
  j.at(2).get_to(s.name);
  j.at(3).get_to(s.category);
  j.at(4).get_to(s.phase);
  j.at(5).get_to(s.layer);
  j.at(6).get_to(s.micro_batch);
  j.at(7).get_to(s.template_id);
  j.at(8).get_to(s.template_index);
  j.at(9).get_to(s.start_ps);
  j.at(10).get_to(s.duration_ps);
  j.at(11).get_to(s.bytes);
  return s;
}

}  // namespace

std::string to_text(const RankReport& report) {
  base::Json spans = base::Json::array(), samples = base::Json::array();
  for (const plan::Span& s : report.spans) spans.push_back(to_json(s));
  for (const plan::MemorySample& m : report.samples)
    samples.push_back(base::Json::array({m.rank, m.at_ps, m.bytes}));
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
    for (const base::Json& s : j.at("spans")) timeline.spans.push_back(span_of(s));
    for (const base::Json& m : j.at("samples")) {
      timeline.memory.push_back(
          {m.at(0).get<std::int32_t>(), m.at(1).get<std::int64_t>(), m.at(2).get<std::int64_t>()});
    }
  }
  if (!report.steps.empty())
    timeline.step_time_ps = static_cast<std::int64_t>(report.steps.back().seconds * 1e12);
  return {};
}

}  // namespace orrery::executor

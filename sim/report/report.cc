#include "sim/report/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ids.h"
#include "base/json.h"
#include "base/numbers.h"
#include "base/text.h"
#include "base/units.h"

namespace orrery::sim {
namespace {

std::string size_text(std::int64_t bytes) { return base::to_string(base::Bytes(real(bytes))); }

/// "12.3 %" of the step.
std::string share(std::int64_t ps, std::int64_t step_ps) {
  return fmt::format("{:.1f} %", step_ps > 0 ? 100.0 * real(ps) / real(step_ps) : 0.0);
}

base::Json stage_json(const StageReport& s, std::size_t stage) {
  base::Json categories = base::Json::object();
  for (std::size_t i = 0; i < s.memory_at_peak.size(); ++i) {
    categories[std::string(plan::to_string(static_cast<plan::BufferCategory>(i)))] =
        s.memory_at_peak[i];
  }
  base::Json parts = base::Json::object();
  for (std::size_t i = 0; i < s.parts.size(); ++i)
    parts[std::string(to_string(static_cast<TimePart>(i)))] = s.parts[i];
  base::Json json{{"stage", stage},
                  {"parts_ps", parts},
                  {"busy_compute_s", seconds(s.busy_compute_ps)},
                  {"exposed_tensor_s", seconds(s.exposed_tensor_ps)},
                  {"exposed_data_s", seconds(s.exposed_data_ps)},
                  {"exposed_pipeline_s", seconds(s.exposed_pipeline_ps)},
                  {"idle_s", seconds(s.idle_ps)},
                  {"recompute_s", seconds(s.recompute_ps)},
                  {"optimizer_s", seconds(s.optimizer_ps)},
                  {"peak_memory_bytes", s.peak_memory_bytes},
                  {"memory_at_peak_bytes", categories},
                  {"timeline_peak_bytes", s.timeline_peak_bytes}};
  if (s.host_bytes > 0) json["host_bytes"] = s.host_bytes;
  return json;
}

}  // namespace

std::string_view to_string(TimePart part) {
  return base::EnumNames<TimePart::kBubble>("forward", "backward", "recompute", "optimizer",
                                            "tensor", "context", "expert", "data", "pipeline",
                                            "bubble")[part];
}

base::Json to_json(const SimReport& report) {
  base::Json stages = base::Json::array();
  base::Json peaks = base::Json::array();
  for (std::size_t i = 0; i < report.stages.size(); ++i) {
    stages.push_back(stage_json(report.stages[i], i));
    peaks.push_back(report.stages[i].peak_memory_bytes);
  }
  base::Json json{{"schema", "orrery.report/1"},
                  {"step_time_s", seconds(report.step_time_ps)},
                  {"step_time_ps", report.step_time_ps},
                  {"samples_per_s", report.samples_per_s},
                  {"tokens_per_s", report.tokens_per_s},
                  {"peak_memory_bytes", peaks},
                  {"mfu", report.mfu},
                  {"bubble_fraction", report.bubble_fraction},
                  {"exposed_communication_fraction", report.exposed_communication_fraction},
                  {"stages", stages},
                  {"events", report.events},
                  {"fingerprint", report.fingerprint}};
  if (report.simulated_micro_batches > 0)
    json["simulated_micro_batches"] = report.simulated_micro_batches;
  return json;
}

std::string to_text(const SimReport& report) {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "step time    {}  ({} samples/s, {} tokens/s)\n",
                 base::to_string(base::Seconds(real(report.step_time_ps) / 1e12)),
                 base::grouped(report.samples_per_s), base::grouped(report.tokens_per_s));
  fmt::format_to(out,
                 "MFU          {:.1f} %  (full attention counts, recomputation does not; a device: "
                 "{} TFLOP/s, {} tokens/s)\n",
                 100 * report.mfu, base::grouped(report.model_flops_per_s_rank / 1e12),
                 base::grouped(report.tokens_per_s / std::max(report.ranks, 1)));
  fmt::format_to(out, "bubble       {:.1f} %  (waiting, mean over stages)\n",
                 100 * report.bubble_fraction);
  fmt::format_to(out, "exposed      {:.1f} %  (communication that nothing hides)\n\n",
                 100 * report.exposed_communication_fraction);
  fmt::format_to(out, "{:>5} {:>10} {:>9} {:>9} {:>9} {:>9}   {:>10} {:>10} {:>10}  {}\n", "stage",
                 "compute", "tensor", "data", "pipeline", "idle", "recompute*", "optimizer*",
                 "peak", "peak by category");
  for (std::size_t i = 0; i < report.stages.size(); ++i) {
    const StageReport& s = report.stages[i];
    const auto part = [&](std::int64_t ps) { return share(ps, report.step_time_ps); };
    fmt::format_to(out, "{:>5} {:>10} {:>9} {:>9} {:>9} {:>9}   {:>10} {:>10} {:>10} ", i,
                   part(s.busy_compute_ps), part(s.exposed_tensor_ps), part(s.exposed_data_ps),
                   part(s.exposed_pipeline_ps), part(s.idle_ps), part(s.recompute_ps),
                   part(s.optimizer_ps), size_text(s.peak_memory_bytes));
    for (std::size_t c = 0; c < s.memory_at_peak.size(); ++c) {
      if (s.memory_at_peak[c] == 0) continue;
      fmt::format_to(out, " {} {}", plan::to_string(static_cast<plan::BufferCategory>(c)),
                     size_text(s.memory_at_peak[c]));
    }
    text += '\n';
  }
  text +=
      "* contained in compute; optimizer with the zeroing of gradients, which zero 2 and 3 repeat "
      "for every micro-batch they reduce\n";
  std::int64_t host_bytes = 0;
  for (const StageReport& s : report.stages) host_bytes = std::max(host_bytes, s.host_bytes);
  if (host_bytes > 0)
    fmt::format_to(out, "beside that {} of its host's memory for a device, at most\n",
                   size_text(host_bytes));
  if (report.simulated_micro_batches > 0)
    fmt::format_to(out, "simulated as far as micro-batch {}: the others take as long\n",
                   base::grouped(real(report.simulated_micro_batches)));
  fmt::format_to(out, "\nfingerprint  {}\n", report.fingerprint);
  return text;
}

}  // namespace orrery::sim

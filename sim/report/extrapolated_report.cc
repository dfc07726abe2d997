#include "sim/report/extrapolated_report.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/numbers.h"

namespace orrery::sim {
namespace {

/// x of the header.
struct Line {
  std::int64_t a = 0, b = 0, m = 0;
  [[nodiscard]] std::int64_t at(std::int64_t at_a, std::int64_t at_b) const {
    const __int128 more = static_cast<__int128>(at_b - at_a) * (m - b) / (b - a);
    return std::max<std::int64_t>(at_b + static_cast<std::int64_t>(more), 0);
  }
  [[nodiscard]] double at(double at_a, double at_b) const {
    return at_b + (at_b - at_a) * real(m - b) / real(b - a);
  }
};

StageReport stage_of(const Line& line, const StageReport& a, const StageReport& b,
                     std::int64_t step_ps) {
  StageReport s;
  for (auto field : {&StageReport::busy_compute_ps, &StageReport::exposed_tensor_ps,
                     &StageReport::exposed_data_ps, &StageReport::exposed_pipeline_ps,
                     &StageReport::idle_ps, &StageReport::recompute_ps, &StageReport::optimizer_ps,
                     &StageReport::peak_memory_bytes, &StageReport::timeline_peak_bytes})
    s.*field = line.at(a.*field, b.*field);
  for (std::size_t c = 0; c < s.memory_at_peak.size(); ++c)
    s.memory_at_peak[c] = line.at(a.memory_at_peak[c], b.memory_at_peak[c]);
  for (std::size_t part = 0; part < s.parts.size(); ++part)
    s.parts[part] = line.at(a.parts[part], b.parts[part]);
  const std::int64_t rest =
      step_ps - std::accumulate(s.parts.begin(), s.parts.end(), std::int64_t{0});
  (rest < 0 ? *std::ranges::max_element(s.parts) : s.parts[as_index(TimePart::kBubble)]) += rest;
  s.idle_ps += std::max<std::int64_t>(rest, 0);
  return s;
}

/// Least and most power are those of both steps, mean power that of the joules.
StepEnergy energy_of(const Line& line, const SimReport& few, const SimReport& more,
                     const SimReport& step) {
  const StepEnergy &a = *few.energy, &b = *more.energy;
  StepEnergy e = b;
  for (std::size_t k = 0; k < e.devices.size(); ++k)
    e.devices[k] = line.at(a.devices[k], b.devices[k]);
  for (auto joules : {&StepEnergy::idle, &StepEnergy::hosts, &StepEnergy::fabric})
    e.*joules = line.at(a.*joules, b.*joules);
  e.joules_per_token = e.total() / (step.tokens_per_s * seconds(step.step_time_ps));
  for (auto power : {&StepEnergy::device, &StepEnergy::host, &StepEnergy::cluster}) {
    const PowerRange &x = a.*power, &y = b.*power;
    const double joules =
        line.at(x.mean * seconds(few.step_time_ps), y.mean * seconds(more.step_time_ps));
    e.*power = {joules / seconds(step.step_time_ps), std::min(x.least, y.least),
                std::max(x.most, y.most)};
  }
  return e;
}

}  // namespace

SimReport extrapolated(const StepOf& a, const StepOf& b, std::int64_t micro_batches) {
  const SimReport &few = a.report, &more = b.report;
  ORRERY_CHECK(a.micro_batches < b.micro_batches && b.micro_batches < micro_batches &&
                   few.stages.size() == more.stages.size(),
               "{} micro-batches from {} and {}", micro_batches, a.micro_batches, b.micro_batches);
  const Line line{a.micro_batches, b.micro_batches, micro_batches};
  SimReport r;
  r.simulated_micro_batches = b.micro_batches;
  r.step_time_ps = line.at(few.step_time_ps, more.step_time_ps);
  r.ranks = more.ranks;
  for (std::size_t s = 0; s < more.stages.size(); ++s)
    r.stages.push_back(stage_of(line, few.stages[s], more.stages[s], r.step_time_ps));
  // what a micro-batch has, over the time that it takes
  const double faster =
      real(micro_batches) / real(b.micro_batches) * real(more.step_time_ps) / real(r.step_time_ps);
  for (auto rate : {&SimReport::samples_per_s, &SimReport::tokens_per_s,
                    &SimReport::model_flops_per_s_rank, &SimReport::mfu})
    r.*rate = more.*rate * faster;
  for (auto share : {&SimReport::bubble_fraction, &SimReport::exposed_communication_fraction})
    r.*share = std::max(
        0.0, line.at(few.*share * real(few.step_time_ps), more.*share * real(more.step_time_ps)) /
                 real(r.step_time_ps));
  if (few.energy && more.energy) r.energy = energy_of(line, few, more, r);
  r.events = few.events + more.events;
  base::Fingerprint fingerprint;
  fingerprint.add(few.fingerprint).add(more.fingerprint).add(as_index(micro_batches));
  r.fingerprint = fingerprint.hex();
  return r;
}

}  // namespace orrery::sim

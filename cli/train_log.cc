#include "cli/train_log.h"

#include "base/json.h"

#include <algorithm>

namespace orrery::cli {

base::Json to_json(const TrainLog& log) {
  base::Json steps = base::Json::array();
  for (const TrainLog::Step& s : log.steps)
    steps.push_back({{"step", s.step}, {"loss", s.loss}, {"seconds", s.seconds}});
  return {{"schema", "orrery.train/1"},
          {"model", log.model},
          {"plan_fingerprint", log.plan_fingerprint},
          {"program_fingerprint", log.program_fingerprint},
          {"ranks", log.ranks},
          {"steps", std::move(steps)},
          {"launches", log.launches},
          {"measured",
           {{"step_time_s", log.step_time_s}, {"peak_memory_bytes", log.peak_memory_bytes}}}};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace orrery::cli

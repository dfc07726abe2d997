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
          {"measured",
           {{"step_time_s", log.step_time_s}, {"peak_memory_bytes", log.peak_memory_bytes}}}};
}

base::Result<TrainLog> load_train_log(const std::string& path) {
  TRY(const base::Json j, base::read_json(path));
  TrainLog log;
  try {
    if (j.at("schema") != "orrery.train/1")
      return base::fail(base::ErrorCode::kUnsupported, "{}: schema {}, not orrery.train/1", path,
                        j.at("schema").dump());
    log.model = j.at("model").get<std::string>();
    log.plan_fingerprint = j.at("plan_fingerprint").get<std::string>();
    log.program_fingerprint = j.at("program_fingerprint").get<std::string>();
    log.ranks = j.at("ranks").get<int>();
    for (const base::Json& s : j.at("steps"))
      log.steps.push_back({s.at("step").get<std::int64_t>(), s.at("loss").get<double>(),
                           s.at("seconds").get<double>()});
    log.step_time_s = j.at("measured").at("step_time_s").get<double>();
    log.peak_memory_bytes =
        j.at("measured").at("peak_memory_bytes").get<std::vector<std::int64_t>>();
  } catch (const base::Json::exception& e) {
    return base::fail(base::ErrorCode::kParse, "{} is not a train log: {}", path, e.what());
  }
  return log;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace orrery::cli

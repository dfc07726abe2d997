#include "executor/measure/rounds.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "executor/measure/control.h"
#include "executor/measure/microbench.h"
#include "executor/runtime/site.h"

namespace orrery::executor {

std::vector<std::size_t> round_order(std::size_t count, int round) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (count == 0) return order;
  std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(as_index(round) % count));
  if (round % 2 == 1) std::ranges::reverse(order);
  return order;
}

base::Result<RoundsReport> run_rounds(std::span<const plan::Program> programs,
                                      const RoundsOptions& options) {
  TRY(Site site, open_site(options.device, "auto"));
  RunOptions training;
  training.steps = options.steps - options.warmup;
  training.warmup = options.warmup;
  RoundsReport report;
  std::vector<model::Control> controls;
  report.programs.resize(programs.size());
  for (int round = 0; round < options.rounds; ++round) {
    if (options.on_round && site.communicator->rank() == 0) options.on_round(round);
    TRY(controls.emplace_back(), time_control(site, options.precision));
    for (const std::size_t i : round_order(programs.size(), round)) {
      TRY(RunReport run, train_at(site, programs[i], training));
      std::vector<double> seconds;
      for (const StepResult& s : run.steps) {
        if (s.step >= options.warmup) seconds.push_back(s.seconds);
      }
      report.programs[i].seconds.push_back(timing_of(std::move(seconds)).median);
      report.programs[i].peak_memory_bytes = std::move(run.peak_memory_bytes);
    }
  }
  TRY(controls.emplace_back(), time_control(site, options.precision));
  report.control = summary_of(controls);
  site.board.finish();
  return report;
}

}  // namespace orrery::executor

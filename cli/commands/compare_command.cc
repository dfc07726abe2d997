#include "base/numbers.h"
#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/measured/timeline_match.h"
#include "cli/text/show.h"

namespace orrery::cli {

namespace {

Result<int> run(const Options& options, const Invocation&) {
  TRY(const plan::Timeline predicted, plan::load_timeline(options.string("PREDICTED")));
  TRY(const plan::Timeline measured, plan::load_timeline(options.string("MEASURED")));
  TRY(const TimelineMatch match, match_timelines(predicted, measured));
  if (options.flag("json")) {
    print_json(to_json(match));
    return 0;
  }
  fmt::print("{:<32} {:>6} {:>12} {:>12} {:>8}\n", "operation", "count", "predicted", "measured",
             "ratio");
  for (const MatchRow& r : match.rows)
    fmt::print("{:<32} {:>6} {:>12} {:>12} {:>8.3f}\n", r.name, r.count, show_time(r.predicted_ps),
               show_time(r.measured_ps), r.ratio());
  fmt::print("{:<32} {:>6} {:>12} {:>12} {:>8.3f}\n", "step", "",
             show_time(match.predicted_step_ps), show_time(match.measured_step_ps),
             real(match.predicted_step_ps) / real(match.measured_step_ps));
  fmt::print("{} spans matched, {} only predicted, {} only measured\n", match.matched,
             match.only_predicted, match.only_measured);
  return 0;
}

}  // namespace

Command compare_command() {
  return {{.name = "compare",
           .summary = "lay a predicted and a measured timeline side by side",
           .examples = {{"orrery compare predicted.json measured.json",
                         "from 'simulate --trace' and 'train --trace'"}},
           .positionals = {{.name = "PREDICTED", .help = "orrery.trace/1"},
                           {.name = "MEASURED", .help = "orrery.trace/1"}},
           .options = {json_option()}},
          run};
}

}  // namespace orrery::cli

#include "cli/measured/block_errors.h"

#include "base/numbers.h"
#include "cli/inputs.h"

namespace orrery::cli {

Result<std::vector<BlockError>> block_errors(const base::Options& options,
                                             std::span<const executor::BlockCase> cases,
                                             std::span<const executor::BlockTiming> timings,
                                             const model::Profile& profile,
                                             model::Precision precision) {
  std::vector<BlockError> rows;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    TRY(Topology topology, find_cluster(options.string("cluster"), 1, options.count("ranks")));
    TRY(const auto cost, CostModel::make(cases[i].model, std::move(topology), profile,
                                         {.precision = precision, .sequence = cases[i].tokens}));
    BlockError row{.name = cases[i].model.name, .measured_s = timings[i].seconds};
    for (const auto& op : timings[i].operations)
      row.predicted_s += 1e-12 * real(cost.segment_ps(op.shape, op.phase));
    rows.push_back(std::move(row));
  }
  return rows;
}

StepErrors summary_of(std::span<const BlockError> rows) {
  std::vector<double> errors;
  for (const BlockError& r : rows) errors.push_back(r.error());
  return errors_of(errors);
}

void print_blocks(std::span<const BlockError> rows) {
  fmt::print("{:<44} {:>11} {:>11} {:>8}\n", "block, forward and backward", "predicted", "measured",
             "error");
  for (const BlockError& r : rows)
    fmt::print("{:<44} {:>8.3f} ms {:>8.3f} ms {:>+6.1f} %\n", r.name, 1e3 * r.predicted_s,
               1e3 * r.measured_s, 100 * r.error());
  const StepErrors s = summary_of(rows);
  fmt::print("blocks of shapes that were not calibrated: mean |error| {:.1f} %, largest {:.1f} %\n",
             100 * s.mean, 100 * s.largest);
}

}  // namespace orrery::cli

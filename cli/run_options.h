#pragma once
/// \file
/// Options of energy and of a whole run (`plan`, `simulate`): what they ask for, and the run they
/// say of a predicted step.
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/options.h"
#include "base/result.h"
#include "cli/inputs.h"
#include "cli/refuse.h"
#include "sim/report/report.h"
#include "sim/run/run_report.h"
#include "sim/scenario/scenario.h"

namespace orrery::cli {

/// --mtbf, of this help, and what goes with it.
std::vector<base::OptionSpec> failure_options(const char* mtbf_help);
/// Nothing without --mtbf.
std::optional<sim::DeviceFailures> failures_of(const base::Options& options);

/// --energy, --tokens, prices, limits.
std::vector<base::OptionSpec> run_options();

/// An option that says something about others: one of them must be there.
struct Company {
  const char *option, *needs, *or_needs = nullptr;
};
/// Error: kUsage for an option alone.
Result<void> check_company(const base::Options& options, std::initializer_list<Company> rows);
/// That of failure_options() and run_options().
Result<void> check_run_options(const base::Options& options);

/// Whether a step's energy is asked for, by options or where it is `minimised`. --tokens alone asks
/// for it where the cluster says what its devices draw. Error: kInconsistent, where it does not and
/// more was asked.
Result<bool> wants_energy(const base::Options& options, const Topology& topology,
                          bool minimised = false);

/// Energy of a step with --pue, and the run of --tokens.
struct EnergyAndRun {
  std::optional<sim::StepEnergy> energy;
  std::optional<sim::RunReport> run;

  void add_to(base::Json& document) const;
  [[nodiscard]] std::string text() const;
  /// 2 where a limit of the run is missed.
  [[nodiscard]] int exit_code() const { return run && !run->verdict.met() ? 2 : 0; }
};
/// The run of --tokens whose steps train `tokens_per_s` on so many ranks: whole hosts are paid for.
/// `power`: nothing where no energy is asked for. @pre --tokens. Errors: those of run_cost().
Result<sim::RunReport> run_of(const base::Options& options, const Topology& topology, int ranks,
                              double tokens_per_s,
                              const std::optional<sim::DeviceFailures>& failures,
                              const std::optional<sim::RunPower>& power = {});
/// Errors: those of run_cost().
Result<EnergyAndRun> energy_and_run(const base::Options& options, const sim::SimReport& report,
                                    const Topology& topology,
                                    const std::optional<sim::DeviceFailures>& failures);

}  // namespace orrery::cli

#pragma once
#include "base/options.h"
#include "cli/refuse.h"

namespace orrery::cli {

using base::Options;

/// How this process was started: what a command needs to start copies of itself.
struct Invocation {
  std::vector<std::string> arguments;  // without the program's name
};

/// One subcommand: its option table and what it does. stdout is data, stderr is talk.
/// The result is the exit code: 0 ok, 2 infeasible, 3 environment; diagnostics carry their own
/// (base/result.h).
struct Command {
  base::CommandSpec spec;
  Result<int> (*run)(const Options& options, const Invocation& invocation);
  bool needs_executor = false;
  bool without_data = false;  // runs where the data that ship are missing
};

/// Every subcommand, in the order of --help.
std::span<const Command> commands();

Command plan_command();
Command sweep_command();
Command simulate_command();
Command explain_command();
Command train_command();
Command replay_command();
Command calibrate_command();
Command compare_command();
Command validate_command();
Command partition_command();
Command solve_command();
Command import_command();
Command export_command();
Command check_command();
Command topology_command();
Command collective_command();
Command list_command();
Command doctor_command();
Command completions_command();

/// Of this program: "0.1.0".
std::string_view version();

/// Parses and runs; prints diagnostics to stderr; returns the exit code of the process.
int run_program(const std::vector<std::string>& arguments);

}  // namespace orrery::cli

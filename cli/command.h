#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/result.h"

namespace orrery::cli {

/// How this process was started: what a command needs to start copies of itself.
struct Invocation {
  std::vector<std::string> arguments;  // without the program's name
};

/// One subcommand: its option table and what it does. stdout is data, stderr is talk.
/// The result is the exit code: 0 ok, 2 infeasible, 3 environment; diagnostics carry their own
/// (base/result.h).
struct Command {
  const base::CommandSpec& (*spec)();
  base::Result<int> (*run)(const base::Options& options, const Invocation& invocation);
  bool needs_executor = false;
};

/// Every subcommand, in the order of --help.
std::span<const Command> commands();

const base::CommandSpec& plan_spec();
base::Result<int> run_plan(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& simulate_spec();
base::Result<int> run_simulate(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& explain_spec();
base::Result<int> run_explain(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& train_spec();
base::Result<int> run_train(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& calibrate_spec();
base::Result<int> run_calibrate(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& compare_spec();
base::Result<int> run_compare(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& validate_spec();
base::Result<int> run_validate(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& solve_spec();
base::Result<int> run_solve(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& import_spec();
base::Result<int> run_import(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& check_spec();
base::Result<int> run_check(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& topology_spec();
base::Result<int> run_topology(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& collective_spec();
base::Result<int> run_collective(const base::Options& options, const Invocation& invocation);
const base::CommandSpec& list_spec();
base::Result<int> run_list(const base::Options& options, const Invocation& invocation);

/// Parses and runs; prints diagnostics to stderr; returns the exit code of the process.
int run_program(const std::vector<std::string>& arguments);

}  // namespace orrery::cli

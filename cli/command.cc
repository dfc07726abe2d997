#include "cli/command.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "base/allocation.h"
#include "base/numbers.h"
#include "base/text.h"
#include "cli/executor_calls.h"

namespace orrery::cli {

std::span<const Command> commands() {
  static const std::array kCommands{
      plan_command(),      sweep_command(),      simulate_command(), explain_command(),
      train_command(),     calibrate_command(),  compare_command(),  validate_command(),
      partition_command(), solve_command(),      import_command(),   export_command(),
      check_command(),     collective_command(), topology_command(), list_command()};
  return kCommands;
}

std::string_view version() { return ORRERY_VERSION; }

namespace {

std::string overview() {
  std::string text =
      "orrery: the fastest way to train a Transformer on a cluster, found, explained and proved\n\n"
      "Examples:\n"
      "  orrery plan --model llama-2-7b --cluster dgx-a100 --memory 36GiB --global-batch 64 "
      "--sequence-length 2048\n"
      "  orrery simulate --model llama-3-8b --cluster dgx-h100 --tp 2 --dp 4 --zero 1 "
      "--global-batch 64 --trace step.json\n"
      "  orrery validate --model gpt2-tiny --ranks 2\n\n"
      "Commands:\n";
  for (const Command& c : commands())
    text += fmt::format("  {:<10} {}\n", c.spec.name, c.spec.summary);
  return text +
         "\n'orrery COMMAND --help' explains one. Exit codes: 0 ok, 1 wrong input, 2 nothing fits, "
         "3 environment.\n";
}

int report(const base::Diagnostics& faults) {
  say("{}\n", base::to_string(faults));
  return base::exit_code(faults);
}

int run_command(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "help") return run_command({arguments[1], "--help"});
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" ||
      arguments[0] == "help") {
    fmt::print(arguments.empty() ? stderr : stdout, "{}", overview());
    return arguments.empty() ? 1 : 0;
  }
  if (arguments[0] == "--version") {
    fmt::print("orrery {}\n", version());
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& c : commands()) names.push_back(c.spec.name);
  const auto found = std::ranges::find(names, arguments[0]);
  if (found == names.end()) {
    base::Diagnostic d = base::make_error(kUsage, "unknown command '{}'", arguments[0]);
    d.hint = base::did_you_mean(arguments[0], names);
    if (d.hint.empty()) d.hint = "orrery --help lists the commands";
    return report({d});
  }
  const Command& command = commands()[as_index(found - names.begin())];
  const std::span<const std::string> rest{arguments.data() + 1, arguments.size() - 1};
  auto options = base::parse_options(command.spec, rest);
  if (!options) return report(options.error());
  if (options->help_requested()) {
    fmt::print("{}", base::help_text(command.spec));
    return 0;
  }
  if (command.needs_executor) {
    if (const auto entered = enter_executor(arguments); !entered) return report(entered.error());
  } else {
    base::keep_freed_memory();
  }
  const auto code = command.run(*options, {arguments});
  return code ? *code : report(code.error());
}

int output_failed(std::string_view why) {
  return report({base::make_error(base::ErrorCode::kIo, "cannot write standard output: {}", why)
                     .with_hint("print to where there is room, or name files with --out")});
}

}  // namespace

int run_program(const std::vector<std::string>& arguments) {
  try {
    const int code = run_command(arguments);
    errno = 0;
    return std::fflush(stdout) == 0 ? code : output_failed(std::strerror(errno));
  } catch (const std::system_error& e) {  // fmt::print's
    return output_failed(e.code().message());
  }
}

}  // namespace orrery::cli

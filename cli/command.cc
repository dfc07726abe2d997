#include "cli/command.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/data_dir.h"
#include "base/file.h"
#include "base/numbers.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/executor_calls.h"

namespace orrery::cli {

std::span<const Command> commands() {
  static const std::array kCommands{
      plan_command(),     sweep_command(),     simulate_command(),   explain_command(),
      train_command(),    replay_command(),    calibrate_command(),  compare_command(),
      validate_command(), partition_command(), solve_command(),      import_command(),
      export_command(),   check_command(),     collective_command(), topology_command(),
      list_command(),     doctor_command(),    completions_command()};
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
    text += fmt::format("  {:<11} {}\n", c.spec.name, c.spec.summary);
  return text +
         "\n'orrery COMMAND --help' explains one. Exit codes: 0 ok, 1 wrong input, 2 nothing fits, "
         "3 environment.\n";
}

int report(const base::Diagnostics& faults) {
  say("{}\n", base::to_string(faults));
  return base::exit_code(faults);
}

/// What ships is there, so that an empty catalog is not taken for a wrong name.
Result<void> check_data() {
  const char* folder = std::getenv("ORRERY_DATA");
  std::error_code error;
  if (folder != nullptr && *folder != '\0' && !std::filesystem::is_directory(folder, error))
    return refuse(kNotFound, "unset it, or name a folder that this user may read",
                  "ORRERY_DATA is '{}', which is no folder", folder);
  for (const auto& [data, extension] :
       {std::pair{"model/catalog", ".json"}, std::pair{"topologies/catalog", ".yaml"},
        std::pair{"costmodel/profiles/devices", ".json"}}) {
    if (!base::list_data_files(data, extension).empty()) continue;
    base::Diagnostic missing =
        base::make_error(kMissingFeature, "the data of Orrery are missing: no file in '{}'", data);
    for (const std::filesystem::path& root : base::data_roots())
      missing.notes.push_back("looked in " + root.string());
    return base::fail(std::move(missing).with_hint(
        "install Orrery again, or name the folder that has them in ORRERY_DATA"));
  }
  return {};
}

/// Files that cannot be written are refused before a search, not after it.
Result<void> check_outputs(const base::CommandSpec& spec, const base::Options& options) {
  base::ErrorSink sink;
  for (const base::OptionSpec& option : spec.options) {
    if (!option.output || !options.given(option.name)) continue;
    if (const auto writable = base::check_writable(options.string(option.name)); !writable)
      sink.add(writable.error());
  }
  return sink.result();
}

/// Standard streams that were closed are open from here on, so that no file takes their place: what
/// is printed would go into it. Standard output stays one that refuses.
void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) == -1)
      ::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);  // the lowest free one
}

Result<int> run_checked(const Command& command, const Options& options,
                        const std::vector<std::string>& arguments) {
  if (!command.without_data) TRY_VOID(check_data());
  TRY_VOID(check_outputs(command.spec, options));
  if (command.needs_executor)
    TRY_VOID(enter_executor(arguments));
  else
    base::keep_freed_memory();
  return command.run(options, {arguments});
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
  const auto code = run_checked(command, *options, arguments);
  return code ? *code : report(code.error());
}

int output_failed(std::string_view why) {
  return report({base::make_error(base::ErrorCode::kIo, "cannot write standard output: {}", why)
                     .with_hint("print to where there is room, or name files with --out")});
}

}  // namespace

int run_program(const std::vector<std::string>& arguments) {
  hold_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file size is an error of write(2)
  try {
    const int code = run_command(arguments);
    errno = 0;
    return std::fflush(stdout) == 0 ? code : output_failed(std::strerror(errno));
  } catch (const std::system_error& e) {  // fmt::print's
    return output_failed(e.code().message());
  } catch (const std::bad_alloc&) {
    return report({base::make_error(kMissingFeature, "this machine has too little memory for it")
                       .with_hint("a smaller cluster or model, or a limit (ulimit -v) that is "
                                  "higher")});
  }
}

}  // namespace orrery::cli

#include "cli/shell/completions.h"

namespace orrery::cli {
namespace {

Result<int> run(const Options& options, const Invocation&) {
  const std::string& what = options.string("WHAT");
  std::string text;
  if (what == "bash")
    text = bash_completion(commands());
  else if (what == "zsh")
    text = zsh_completion(commands());
  else if (what == "fish")
    text = fish_completion(commands());
  else
    text = manual_page(commands());
  fmt::print("{}", text);
  return 0;
}

}  // namespace

Command completions_command() {
  return {{.name = "completions",
           .summary = "print completions for a shell, or the manual page",
           .examples = {{"source <(orrery completions bash)", "in this shell, or in ~/.bashrc"},
                        {"orrery completions fish > ~/.config/fish/completions/orrery.fish",
                         "for every fish"},
                        {"orrery completions man | man -l -", "read the manual page"}},
           .positionals = {{.name = "WHAT",
                            .help = "for whom",
                            .choices = {"bash", "zsh", "fish", "man"}}}},
          run,
          false,
          true};
}

}  // namespace orrery::cli

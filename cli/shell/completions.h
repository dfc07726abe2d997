#pragma once
/// \file
/// What a shell completes and what man(1) shows, made from the option tables of the commands: a new
/// option needs no edit here. Names of models, clusters, profiles and software are asked of `orrery
/// list` when they are wanted.
#include <span>
#include <string>

#include "cli/command.h"

namespace orrery::cli {

/// Scripts for bash-completion (completions/orrery), zsh (site-functions/_orrery) and fish
/// (vendor_completions.d/orrery.fish).
std::string bash_completion(std::span<const Command> commands);
std::string zsh_completion(std::span<const Command> commands);
std::string fish_completion(std::span<const Command> commands);

/// orrery(1), in the language of man(7).
std::string manual_page(std::span<const Command> commands);

/// What an option's value is completed with.
struct Completion {
  std::vector<std::string> words = {};  // the allowed values
  std::string catalog = {};             // "models": what `orrery list models` names
  bool files = false;
};
Completion completion_of(const base::OptionSpec& option);
Completion completion_of(const base::CommandSpec::Positional& positional);

}  // namespace orrery::cli

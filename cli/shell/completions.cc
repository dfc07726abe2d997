#include "cli/shell/completions.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace orrery::cli {
namespace {

using base::CommandSpec;
using base::OptionSpec;
using base::OptionType;

bool takes_value(const OptionSpec& option) { return option.type != OptionType::kFlag; }

bool names_a_file(const std::string& value_name) {
  return std::ranges::any_of(
      std::array{"FILE", "PATH", "PROFILE", "csv", "PREDICTED", "MEASURED"},
      [&](const char* word) { return value_name.find(word) != std::string::npos; });
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// Between single quotes of bash and zsh.
std::string quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

template <class Range, class Name>
std::string words_of(const Range& range, const Name& name) {
  std::vector<std::string> words;
  for (const auto& entry : range) words.push_back(name(entry));
  return base::join(words, " ");
}

std::vector<OptionSpec> shown_options(const CommandSpec& command) {
  std::vector<OptionSpec> options;
  std::ranges::copy_if(command.options, std::back_inserter(options),
                       [](const OptionSpec& o) { return !o.hidden; });
  return options;
}

std::string command_names(std::span<const Command> commands) {
  return words_of(commands, [](const Command& c) { return c.spec.name; });
}

}  // namespace

Completion completion_of(const OptionSpec& option) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kCatalogs{
      {{"model", "models"},
       {"cluster", "clusters"},
       {"profile", "profiles"},
       {"software", "software"},
       {"host", "clusters"}}};
  Completion c{.words = option.choices, .catalog = {}, .files = names_a_file(option.value_name)};
  const auto known =
      std::ranges::find(kCatalogs, option.name, [](const auto& row) { return row.first; });
  if (known != kCatalogs.end() && option.value_name != "FILE") c.catalog = known->second;
  return c;
}

Completion completion_of(const CommandSpec::Positional& positional) {
  Completion c{.words = positional.choices, .catalog = {}, .files = names_a_file(positional.name)};
  if (positional.name.starts_with("NAME|")) c.catalog = "clusters";
  return c;
}

// bash ------------------------------------------------------------------------------------------

namespace {

/// Statements that fill COMPREPLY; empty where nothing is known of the value.
std::string bash_reply(const Completion& c) {
  std::string reply;
  if (!c.words.empty()) reply += fmt::format(" _orrery_words {}", quoted(base::join(c.words, " ")));
  if (!c.catalog.empty())
    reply += fmt::format("{} _orrery_names {}", reply.empty() ? "" : ";", c.catalog);
  if (c.files) reply += fmt::format("{} _orrery_files", reply.empty() ? "" : ";");
  return reply;
}

constexpr const char* kBashHead =
    R"sh(# Completion of orrery for bash; written by 'orrery completions bash'.
_orrery_words() {
  COMPREPLY+=($(compgen -W "$1" -- "$_orrery_current"))
}
_orrery_names() {
  _orrery_words "$("$_orrery_program" list "$1" 2>/dev/null | sed -n 's/^\([^ ]\{1,\}\).*/\1/p')"
}
_orrery_files() {
  compopt -o filenames 2>/dev/null
  local file
  while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f -- "$_orrery_current")
}
_orrery() {
  local _orrery_program=${COMP_WORDS[0]} _orrery_current=${COMP_WORDS[COMP_CWORD]}
  local command=${COMP_WORDS[1]} previous=${COMP_WORDS[COMP_CWORD-1]}
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
)sh";

}  // namespace

std::string bash_completion(std::span<const Command> commands) {
  std::string text = kBashHead;
  text += fmt::format("    _orrery_words '{} help --help --version'\n    return\n  fi\n",
                      command_names(commands));
  text += "  case \"$command $previous\" in\n";
  text += fmt::format("    'help '*) _orrery_words '{}'; return ;;\n", command_names(commands));
  for (const Command& c : commands) {
    for (const OptionSpec& o : shown_options(c.spec)) {
      if (!takes_value(o)) continue;
      const std::string reply = bash_reply(completion_of(o));
      text += fmt::format("    '{} --{}'){}{} return ;;\n", c.spec.name, o.name, reply,
                          reply.empty() ? "" : ";");
    }
  }
  text += "  esac\n  case $command in\n";
  for (const Command& c : commands) {
    const std::string options =
        words_of(shown_options(c.spec), [](const OptionSpec& o) { return "--" + o.name; });
    text += fmt::format("    {})\n      if [[ $_orrery_current == -* ]]; then\n", c.spec.name);
    text +=
        fmt::format("        _orrery_words '{}{}--help'\n", options, options.empty() ? "" : " ");
    const auto& positionals = c.spec.positionals;
    for (std::size_t i = 0; i < positionals.size(); ++i) {
      const std::string reply = bash_reply(completion_of(positionals[i]));
      const bool last = i + 1 == positionals.size();
      if (!reply.empty())
        text += fmt::format("      elif ((COMP_CWORD {} {})); then{}\n", last ? ">=" : "==", i + 2,
                            replaced(reply, " _orrery", "\n        _orrery"));
    }
    text += "      fi ;;\n";
  }
  return replaced(text, ";\n        _orrery", "\n        _orrery") +
         "  esac\n}\ncomplete -F _orrery orrery\n";
}

// zsh -------------------------------------------------------------------------------------------

namespace {

/// A description in a spec of _arguments: brackets, colons and backslashes are its own.
std::string zsh_text(std::string text) {
  for (const char* special : {"\\", "[", "]", ":"})
    text = replaced(std::move(text), special, std::string("\\") + special);
  return text;
}

std::string zsh_action(const Completion& c) {
  if (!c.words.empty()) return "(" + base::join(c.words, " ") + ")";
  if (!c.catalog.empty())
    return fmt::format("_orrery_names {}{}", c.catalog, c.files ? " files" : "");
  return c.files ? "_files" : " ";
}

std::string zsh_option(const OptionSpec& o) {
  const std::string repeated = o.repeated ? "*" : "";
  if (!takes_value(o)) return quoted(fmt::format("{}--{}[{}]", repeated, o.name, zsh_text(o.help)));
  return quoted(fmt::format("{}--{}=[{}]:{}:{}", repeated, o.name, zsh_text(o.help),
                            zsh_text(o.value_name.empty() ? "value" : o.value_name),
                            zsh_action(completion_of(o))));
}

constexpr const char* kZshHead = R"sh(#compdef orrery
# Completion of orrery for zsh; written by 'orrery completions zsh'.
_orrery_names() {
  local -a names
  names=(${(f)"$(orrery list $1 2>/dev/null | sed -n 's/^\([^ ]\{1,\}\).*/\1/p')"})
  _describe -t $1 $1 names
  [[ $2 == files ]] && _files
}
_orrery() {
  local context state state_descr line
  typeset -A opt_args
  local -a commands
  commands=(
)sh";

}  // namespace

std::string zsh_completion(std::span<const Command> commands) {
  std::string text = kZshHead;
  for (const Command& c : commands)
    text += fmt::format("    {}\n", quoted(c.spec.name + ":" + zsh_text(c.spec.summary)));
  text +=
      "    'help:explain a command'\n  )\n  _arguments -C '1:command:->command' "
      "'*::argument:->argument'\n  case $state in\n    command) _describe -t commands command "
      "commands; return ;;\n  esac\n  case $words[1] in\n";
  for (const Command& c : commands) {
    text += fmt::format("    {})\n      _arguments", c.spec.name);
    for (const OptionSpec& o : shown_options(c.spec)) text += " \\\n        " + zsh_option(o);
    text += " \\\n        '--help[this text]'";
    for (std::size_t i = 0; i < c.spec.positionals.size(); ++i) {
      const auto& p = c.spec.positionals[i];
      text += " \\\n        " + quoted(fmt::format("{}{}:{}:{}", i + 1, p.required ? "" : ":",
                                                   zsh_text(p.name), zsh_action(completion_of(p))));
    }
    text += " ;;\n";
  }
  return text + "    help) _describe -t commands command commands ;;\n  esac\n}\n_orrery \"$@\"\n";
}

// fish ------------------------------------------------------------------------------------------

namespace {

/// Between single quotes of fish.
std::string fish_quoted(std::string text) {
  text = replaced(std::move(text), "\\", "\\\\");
  return "'" + replaced(std::move(text), "'", "\\'") + "'";
}

/// The flags of `complete` for a value.
std::string fish_value(const Completion& c) {
  std::string flags = c.files ? " -F" : "";
  if (!c.words.empty()) flags += " -a " + fish_quoted(base::join(c.words, " "));
  if (!c.catalog.empty()) flags += fmt::format(" -a '(__orrery_names {})'", c.catalog);
  return flags;
}

constexpr const char* kFishHead =
    R"sh(# Completion of orrery for fish; written by 'orrery completions fish'.
function __orrery_names
    orrery list $argv[1] 2>/dev/null | string match -r '^[^ ]+'
end
complete -c orrery -f
)sh";

}  // namespace

std::string fish_completion(std::span<const Command> commands) {
  std::string text = kFishHead;
  const std::string none = "__fish_use_subcommand";
  for (const Command& c : commands)
    text += fmt::format("complete -c orrery -n {} -a {} -d {}\n", none, c.spec.name,
                        fish_quoted(c.spec.summary));
  text += fmt::format("complete -c orrery -n {} -l version -d 'of this program'\n", none);
  text += "complete -c orrery -l help -d 'explain a command'\n";
  for (const Command& c : commands) {
    const std::string seen = fmt::format("-n '__fish_seen_subcommand_from {}'", c.spec.name);
    for (const OptionSpec& o : shown_options(c.spec))
      text += fmt::format("complete -c orrery {} -l {}{} -d {}\n", seen, o.name,
                          takes_value(o) ? " -r" + fish_value(completion_of(o)) : "",
                          fish_quoted(o.help));
    for (const auto& p : c.spec.positionals) {
      const std::string value = fish_value(completion_of(p));
      if (!value.empty()) text += fmt::format("complete -c orrery {}{}\n", seen, value);
    }
  }
  return text;
}

}  // namespace orrery::cli

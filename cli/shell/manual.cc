#include "base/text.h"
#include "cli/shell/completions.h"

namespace orrery::cli {
namespace {

using base::OptionSpec;
using base::OptionType;

/// Text as man(7) wants it: a backslash starts a request of its own, a dash is one that can be
/// copied, and no line begins with a control character.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  if (out.starts_with('.') || out.starts_with('\'')) out.insert(0, "\\&");
  return out;
}

std::string bold(std::string_view text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + roff(text) + "\\fR"; }

/// A paragraph with a hanging term.
std::string term(const std::string& what, const std::string& text) {
  return fmt::format(".TP\n{}\n{}\n", what, text);
}

std::string option_term(const OptionSpec& o) {
  std::string what = bold("--" + o.name);
  if (o.type != OptionType::kFlag)
    what += " " + italic(o.value_name.empty() ? "VALUE" : o.value_name);
  std::string text = o.help;
  if (!o.choices.empty()) text += fmt::format(" ({})", base::join(o.choices, ", "));
  if (!o.default_value.empty()) text += fmt::format(" [{}]", o.default_value);
  if (o.required) text += " (required)";
  if (o.repeated) text += " (may be repeated)";
  return term(what, roff(base::trim(text)));
}

std::string command_section(const base::CommandSpec& c) {
  std::string usage = bold("orrery " + c.name);
  for (const auto& p : c.positionals)
    usage += p.required ? " " + italic(p.name) : " [" + italic(p.name) + "]";
  std::string text =
      fmt::format(".SS {}\n{}.\n.PP\n{} [options]\n", roff(c.name), roff(c.summary), usage);
  for (const auto& p : c.positionals) {
    std::string help = p.help;
    if (!p.choices.empty()) help += fmt::format(" ({})", base::join(p.choices, ", "));
    if (!help.empty()) text += term(italic(p.name), roff(help));
  }
  for (const OptionSpec& o : c.options)
    if (!o.hidden) text += option_term(o);
  for (const auto& example : c.examples)
    text +=
        fmt::format(".PP\n{}:\n.PP\n.RS 4\n{}\n.RE\n",
                    roff(example.what.empty() ? "Example" : example.what), roff(example.command));
  return text;
}

constexpr const char* kEnd = R"(.SH EXIT STATUS
.TP
0
done
.TP
1
what was typed or a file that was named is wrong
.TP
2
nothing fits
.TP
3
the machine lacks what the command needs, or refused it; \fBorrery doctor\fR says what
.SH ENVIRONMENT
.TP
\fBORRERY_DATA\fR
a folder of data (model/catalog, topologies/catalog, costmodel/profiles) before those that ship
.TP
\fBXDG_CACHE_HOME\fR, \fBHOME\fR
where calibrations of this machine lie: orrery/profiles in the first, .cache/orrery/profiles in
the second
.TP
\fBTMPDIR\fR
where ranks on this machine keep what they say of themselves while they run
)";

}  // namespace

std::string manual_page(std::span<const Command> commands) {
  std::string text = fmt::format(
      ".TH ORRERY 1 \"\" \"Orrery {}\" \"User Commands\"\n.SH NAME\norrery \\- the fastest way to "
      "train a Transformer on a cluster, found, explained and proved\n.SH SYNOPSIS\n{} {} "
      "[options]\n.br\n{} {} {}\n.br\n{} {}\n.SH DESCRIPTION\n",
      version(), bold("orrery"), italic("COMMAND"), bold("orrery"), italic("COMMAND"),
      bold("--help"), bold("orrery"), bold("--version"));
  text +=
      "Orrery finds the fastest parallel plan for a model on a cluster, real or imagined, says how "
      "fast and why, and, where the hardware exists, trains with the plan and compares. Results go "
      "to standard output, talk to standard error; \\fB\\-\\-json\\fR prints one document.\n.SH "
      "COMMANDS\n";
  for (const Command& c : commands) text += command_section(c.spec);
  return text + kEnd;
}

}  // namespace orrery::cli

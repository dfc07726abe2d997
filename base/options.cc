#include "base/options.h"

#include <algorithm>
#include <boost/program_options/errors.hpp>
#include <boost/program_options/options_description.hpp>
#include <boost/program_options/parsers.hpp>
#include <boost/program_options/value_semantic.hpp>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/numbers.h"
#include "base/text.h"

namespace orrery::base {

using enum ErrorCode;

namespace po = boost::program_options;

/// Fills an Options from the command's table and the arguments, collecting faults. Boost splits the
/// command line; types, ranges and messages are ours.
class OptionParser {
 public:
  explicit OptionParser(const CommandSpec& command) : command_(command) {}

  Result<Options> parse(std::span<const std::string> args) {
    for (const auto& spec : command_.options) out_.values_[spec.name].type = spec.type;
    for (const auto& positional : command_.positionals) out_.values_[positional.name] = {};
    if (!split(args)) return fail(sink_.diagnostics());
    if (out_.help_) return std::move(out_);
    for (const auto& spec : command_.options) finish(spec);
    assign_positionals();
    return sink_.result(std::move(out_));
  }

 private:
  /// False when the line cannot be cut into options at all. What follows "--" is positional; "-h"
  /// is the only short option, so that "--slack -1" has the value -1.
  bool split(std::span<const std::string> args) {
    po::options_description table;
    auto add = table.add_options();
    for (const auto& spec : command_.options) {
      // the table owns it
      add(spec.name.c_str(), new po::untyped_value(spec.type == OptionType::kFlag));
    }
    add("help", new po::untyped_value(true));
    using Style = po::command_line_style::style_t;
    const int style = Style::allow_long | Style::long_allow_adjacent | Style::long_allow_next;
    const auto dashes = std::ranges::find(args, "--");
    try {
      const auto parsed = po::command_line_parser(std::vector<std::string>(args.begin(), dashes))
                              .options(table)
                              .style(style)
                              .allow_unregistered()
                              .run();
      for (const auto& option : parsed.options) take(option);
    } catch (const po::error_with_option_name& error) {
      usage(fmt::format("option '--{}' {}", trim_dashes(error.get_option_name()), reason(error)));
      return false;
    }
    if (dashes != args.end())
      positionals_.insert(positionals_.end(), std::next(dashes), args.end());
    return true;
  }

  static std::string trim_dashes(std::string name) {
    return name.substr(std::min(name.find_first_not_of('-'), name.size()));
  }
  static std::string_view reason(const po::error_with_option_name& error) {
    if (const auto* syntax = dynamic_cast<const po::invalid_syntax*>(&error)) {
      switch (syntax->kind()) {
        case po::invalid_syntax::missing_parameter:
        case po::invalid_syntax::empty_adjacent_parameter: return "needs a value";
        case po::invalid_syntax::extra_parameter: return "takes no value";
        default: break;
      }
    }
    return "cannot be parsed";
  }

  void take(const po::basic_option<char>& option) {
    if (option.position_key >= 0) {  // no long option: an argument, or a short option
      const std::string& text = option.value.front();
      if (text == "-h") {
        out_.help_ = true;
      } else if (text.size() > 1 && text.front() == '-') {
        unknown(text);
      } else {
        positionals_.push_back(text);
      }
      return;
    }
    if (option.string_key == "help") {
      out_.help_ = true;
      return;
    }
    if (option.unregistered) return unknown("--" + option.string_key);
    const auto& spec = *std::ranges::find_if(
        command_.options, [&](const auto& s) { return s.name == option.string_key; });
    auto& value = out_.values_.find(spec.name)->second;
    if (value.given && spec.type != OptionType::kFlag && !spec.repeated) {
      usage(fmt::format("option '--{}' is given twice", spec.name));
      return;
    }
    value.given = value.present = true;
    if (option.value.empty()) return;
    value.text = option.value.front();
    if (spec.repeated) value.texts.push_back(value.text);
  }

  void unknown(const std::string& token) {
    sink_.add(make_error(kUsage, "unknown option '{}' of '{}'", token, command_.name)
                  .with_hint(did_you_mean(token, visible_names(), "options")));
    skip_value_ = true;
  }

  [[nodiscard]] std::vector<std::string> visible_names() const {
    std::vector<std::string> names;
    for (const auto& spec : command_.options) {
      if (!spec.hidden) names.push_back("--" + spec.name);
    }
    names.emplace_back("--help");
    return names;
  }

  /// Defaults, required options, types and ranges.
  void finish(const OptionSpec& spec) {
    auto& value = out_.values_.find(spec.name)->second;
    if (spec.type == OptionType::kFlag) {
      value.present = true;
      return;
    }
    if (!value.given && !spec.default_value.empty()) {
      value.present = true;
      value.text = spec.default_value;
    }
    if (!value.present) {
      if (spec.required)
        usage(fmt::format("option '--{}' of '{}' is required", spec.name, command_.name));
      return;
    }
    convert(spec, value.text, value);
  }

  void convert(const OptionSpec& spec, const std::string& text, Options::Value& value) {
    switch (spec.type) {
      case OptionType::kFlag: return;
      case OptionType::kString:
        if (!spec.choices.empty() && std::ranges::find(spec.choices, text) == spec.choices.end()) {
          sink_.add(make_error(kBadValue, "option '--{}': unknown value '{}'", spec.name, text)
                        .with_hint(did_you_mean(text, spec.choices, "values")));
        }
        return;
      case OptionType::kInt: {
        const auto number = parse_integer(text);
        if (!number) return wrong(spec, text, "an integer");
        value.integer = *number;
        return check_range(spec, text, real(*number));
      }
      case OptionType::kDouble: {
        const auto number = parse_real(text);
        if (!number) return wrong(spec, text, "a number");
        value.real = *number;
        return check_range(spec, text, *number);
      }
      case OptionType::kBytes: return take_quantity(spec, text, value, parse_bytes(text));
      case OptionType::kDuration: return take_quantity(spec, text, value, parse_seconds(text));
      case OptionType::kDollars: return take_quantity(spec, text, value, parse_dollars(text));
      case OptionType::kCount: return take_quantity(spec, text, value, parse_count(text));
    }
  }

  template <class Q>
  void take_quantity(const OptionSpec& spec, const std::string& text, Options::Value& value,
                     Result<Q> quantity) {
    if (!quantity) {
      for (auto& diagnostic : quantity.error()) {
        diagnostic.message = fmt::format("option '--{}': {}", spec.name, diagnostic.message);
        sink_.add(std::move(diagnostic));
      }
      return;
    }
    value.real = quantity->raw();
    check_range(spec, text, value.real);
  }

  void check_range(const OptionSpec& spec, const std::string& text, double number) {
    if (number >= spec.min && number <= spec.max) return;
    const bool low = number < spec.min;
    Diagnostic d = make_error(kOutOfRange, "option '--{}': {} is {} than {}", spec.name, text,
                              low ? "less" : "more", low ? spec.min : spec.max);
    const bool bounded = spec.max < std::numeric_limits<double>::max();
    d.hint = bounded ? fmt::format("{} to {}", spec.min, spec.max)
                     : fmt::format("at least {}", spec.min);
    sink_.add(std::move(d));
  }

  void assign_positionals() {
    std::size_t next = 0;
    for (const auto& positional : command_.positionals) {
      auto& value = out_.values_.find(positional.name)->second;
      value.given = value.present = next < positionals_.size();
      if (value.given) value.text = positionals_[next++];
      if (!value.given && positional.required)
        usage(fmt::format("'{}' needs {}", command_.name, positional.name));
      if (value.given && !positional.choices.empty() &&
          std::ranges::find(positional.choices, value.text) == positional.choices.end())
        sink_.add(make_error(kBadValue, "'{}': unknown {} '{}'", command_.name, positional.name,
                             value.text)
                      .with_hint(did_you_mean(value.text, positional.choices, "values")));
    }
    // What follows an unknown option may be its value: one fault for it is enough.
    if (skip_value_) return;
    for (; next < positionals_.size(); ++next)
      usage(fmt::format("unexpected argument '{}' of '{}'", positionals_[next], command_.name));
  }

  void wrong(const OptionSpec& spec, const std::string& text, std::string_view expected) {
    sink_.add(
        make_error(kBadValue, "option '--{}': expected {}, found '{}'", spec.name, expected, text));
  }
  void usage(std::string message) {
    sink_.add(Diagnostic{.code = kUsage, .message = std::move(message)});
  }

  const CommandSpec& command_;
  Options out_;
  ErrorSink sink_;
  std::vector<std::string> positionals_;
  bool skip_value_ = false;
};

const Options::Value& Options::value(std::string_view name) const {
  const auto found = values_.find(name);
  ORRERY_CHECK(found != values_.end(), "no option '{}' in the table", name);
  return found->second;
}

const Options::Value& Options::value(std::string_view name, OptionType type) const {
  const Value& v = value(name);
  ORRERY_CHECK(v.type == type, "option '{}' has another type", name);
  ORRERY_CHECK(v.present || type == OptionType::kFlag, "option '{}' has no value: ask has() first",
               name);
  return v;
}

bool Options::has(std::string_view name) const { return value(name).present; }
bool Options::given(std::string_view name) const { return value(name).given; }
bool Options::flag(std::string_view name) const { return value(name, OptionType::kFlag).given; }
const std::string& Options::string(std::string_view name) const {
  return value(name, OptionType::kString).text;
}
std::int64_t Options::integer(std::string_view name) const {
  return value(name, OptionType::kInt).integer;
}
double Options::real(std::string_view name) const { return value(name, OptionType::kDouble).real; }
Bytes Options::bytes(std::string_view name) const {
  return Bytes(value(name, OptionType::kBytes).real);
}
Seconds Options::duration(std::string_view name) const {
  return Seconds(value(name, OptionType::kDuration).real);
}

Dollars Options::dollars(std::string_view name) const {
  return Dollars(value(name, OptionType::kDollars).real);
}
Count Options::large_count(std::string_view name) const {
  return Count(value(name, OptionType::kCount).real);
}

Result<Options> parse_options(const CommandSpec& command, std::span<const std::string> args) {
  return OptionParser(command).parse(args);
}

std::optional<double> Setting::factor() const {
  if (!value.ends_with('x')) return std::nullopt;
  return parse_real(std::string_view(value).substr(0, value.size() - 1));
}

Result<std::vector<Setting>> parse_settings(std::string_view text) {
  std::vector<Setting> settings;
  ErrorSink sink;
  for (const std::string& entry : split(text, ',')) {
    const std::size_t equals = entry.find('='), dot = entry.rfind('.', equals);
    if (equals == std::string::npos || dot == std::string::npos) {
      sink.add(make_error(kUsage, "'{}' sets nothing", entry)
                   .with_hint("PART.FIELD=VALUE, as ib.bandwidth=2x or device.memory=96GiB"));
      continue;
    }
    Setting setting{.part = std::string(trim(entry.substr(0, dot))),
                    .field = std::string(trim(entry.substr(dot + 1, equals - dot - 1))),
                    .value = std::string(trim(entry.substr(equals + 1)))};
    if (setting.factor().value_or(1) <= 0)
      sink.add(make_error(kOutOfRange, "'{}': a factor is above zero", entry));
    settings.push_back(std::move(setting));
  }
  return sink.result(std::move(settings));
}

namespace {

/// Two columns; a long left one gets a line of its own.
std::string help_row(std::string_view left, std::string_view right) {
  constexpr std::size_t kLeft = 26;
  if (right.empty()) return fmt::format("  {}\n", left);
  if (left.size() > kLeft) return fmt::format("  {}\n  {:<26} {}\n", left, "", right);
  return fmt::format("  {:<26} {}\n", left, right);
}

}  // namespace

std::string help_text(const CommandSpec& command) {
  std::string out = fmt::format("orrery {}: {}\n", command.name, command.summary);
  if (!command.examples.empty()) out += "\nExamples:\n";
  for (const auto& example : command.examples) {
    out += fmt::format("  {}\n", example.command);
    if (!example.what.empty()) out += fmt::format("      {}\n", example.what);
  }
  std::string usage = command.name;
  for (const auto& positional : command.positionals) {
    usage += positional.required ? " " + positional.name : " [" + positional.name + "]";
  }
  out += fmt::format("\nUsage: orrery {} [options]\n", usage);
  for (const auto& positional : command.positionals) {
    std::string right = positional.help;
    if (!positional.choices.empty()) right += fmt::format(" ({})", join(positional.choices, ", "));
    if (!right.empty()) out += help_row(positional.name, trim(right));
  }
  out += "\nOptions:\n";
  for (const auto& spec : command.options) {
    if (spec.hidden) continue;
    std::string left = "--" + spec.name;
    if (spec.type != OptionType::kFlag)
      left += " " + (spec.value_name.empty() ? "VALUE" : spec.value_name);
    std::string right = spec.help;
    if (!spec.choices.empty()) right += fmt::format(" ({})", join(spec.choices, ", "));
    if (!spec.default_value.empty()) right += fmt::format(" [{}]", spec.default_value);
    if (spec.required) right += " (required)";
    if (spec.repeated) right += " (may be repeated)";
    out += help_row(left, trim(right));
  }
  out += help_row("--help", "this text");
  return out;
}

}  // namespace orrery::base

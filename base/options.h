#pragma once
/// Command lines from one table per command: parsing, ranges, defaults and --help are all derived
/// from it.
///
///     const CommandSpec kPlan{
///         .name = "plan",
///         .summary = "Find the fastest plan",
///         .examples = {{"orrery plan --model llama-2-7b --cluster dgx-a100",
///                       "four ways to split 7B on one host"}},
///         .options = {{.name = "model", .value_name = "NAME|FILE", .required = true,
///                      .help = "what to train"},
///                     {.name = "ranks", .value_name = "N", .type = OptionType::kInt,
///                      .default_value = "8", .min = 1, .max = 1 << 20,
///                      .help = "number of ranks"}}};
///     TRY(const Options options, parse_options(kPlan, args));
///     if (options.help_requested()) { print(help_text(kPlan)); return 0; }
///     const std::int64_t ranks = options.integer("ranks");

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace orrery::base {

enum class OptionType { kFlag, kString, kInt, kDouble, kBytes, kDuration, kDollars, kCount };

/// One row. Texts of quantities carry their unit ("36GiB", "3.5us"); min and max are in SI and
/// inclusive.
struct OptionSpec {
  std::string name;             ///< without the dashes
  std::string value_name = {};  ///< "N", "FILE"; ignored for flags
  OptionType type = OptionType::kString;
  std::string default_value = {};  ///< empty = none
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
  std::vector<std::string> choices = {};  ///< kString only: the allowed values; empty = any
  std::string help = {};
  bool required = false;
  bool hidden = false;    ///< works, but --help does not show it
  bool repeated = false;  ///< kString only: may be given several times
  bool output = false;    ///< kString only: names a file that the command writes
};

struct CommandSpec {
  struct Example {
    std::string command;
    std::string what;  ///< what it does, a few words
  };
  struct Positional {
    std::string name;  ///< "FILE"; looked up by this name
    std::string help = {};
    bool required = true;
    std::vector<std::string> choices = {};  ///< the allowed values; empty = any
  };
  std::string name;
  std::string summary;
  std::vector<Example> examples = {};
  std::vector<Positional> positionals = {};
  std::vector<OptionSpec> options = {};
};

/// Parsed values. Every lookup of a name or type that the table does not have is our bug (CHECK).
class Options {
 public:
  [[nodiscard]] bool help_requested() const { return help_; }
  /// Given on the command line, or has a default.
  [[nodiscard]] bool has(std::string_view name) const;
  /// Given on the command line.
  [[nodiscard]] bool given(std::string_view name) const;
  [[nodiscard]] bool flag(std::string_view name) const;
  [[nodiscard]] std::string string_or(std::string_view name, std::string fallback) const {
    return has(name) ? string(name) : std::move(fallback);
  }
  /// As it was typed, or the default, of any type but a flag; empty without one.
  [[nodiscard]] const std::string& text(std::string_view name) const { return value(name).text; }
  /// Of a repeated option, in the order given.
  [[nodiscard]] const std::vector<std::string>& strings(std::string_view name) const {
    return value(name).texts;
  }
  /// The rest: @pre has(name).
  [[nodiscard]] const std::string& string(std::string_view name) const;  ///< also positionals
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] int count(std::string_view name) const {  ///< an integer whose range fits
    return static_cast<int>(integer(name));
  }
  [[nodiscard]] double real(std::string_view name) const;
  [[nodiscard]] Bytes bytes(std::string_view name) const;
  [[nodiscard]] Seconds duration(std::string_view name) const;
  [[nodiscard]] Dollars dollars(std::string_view name) const;
  [[nodiscard]] Count large_count(std::string_view name) const;

 private:
  friend class OptionParser;
  struct Value {
    OptionType type = OptionType::kString;
    bool given = false;
    bool present = false;
    std::string text = {};
    std::vector<std::string> texts = {};  // of a repeated one
    std::int64_t integer = 0;
    double real = 0.0;  // also of quantities
  };
  [[nodiscard]] const Value& value(std::string_view name) const;
  [[nodiscard]] const Value& value(std::string_view name, OptionType type) const;
  std::map<std::string, Value, std::less<>> values_;
  bool help_ = false;
};

/// Parses the arguments after the command's name: `--name value`, `--name=value`, flags,
/// positionals, `--` before positionals that start with a dash. `--help` and `-h` are always known
/// and stop checking. All faults are reported: kUsage (unknown option, missing value, missing
/// required option), kBadValue, kOutOfRange, kBadUnit.
[[nodiscard]] Result<Options> parse_options(const CommandSpec& command,
                                            std::span<const std::string> args);

/// One number that takes another value: `ib.bandwidth=2x`, `device.memory=96GiB`.
struct Setting {
  std::string part, field, value;
  auto operator<=>(const Setting&) const = default;
  /// "2x" is 2: so many times what it is.
  [[nodiscard]] std::optional<double> factor() const;
  [[nodiscard]] std::string text() const { return part + "." + field + "=" + value; }
};
/// "PART.FIELD=VALUE,...". Errors: kUsage (not of this form), kOutOfRange (a factor that is not
/// above zero).
[[nodiscard]] Result<std::vector<Setting>> parse_settings(std::string_view text);

/// Text of `--help`: summary, examples first, then the options.
[[nodiscard]] std::string help_text(const CommandSpec& command);

}  // namespace orrery::base

#pragma once
/// \file
/// The arguments that a shell script, a list or a YAML file gives to a program: `--key value`,
/// `--key=value`, `key: value`. No shell runs: comments, quotes, line continuations and arrays are
/// understood, `$NAME`, `${NAME}` and `${NAME:-word}` are replaced when the file sets NAME to a
/// plain word before, and stay as they are otherwise. Example:
/// "TP=4\nARGS=(--tensor-model-parallel-size $TP --bf16)" gives tensor-model-parallel-size 4 and
/// bf16.
#include <optional>
#include <set>

#include "base/result.h"

namespace orrery::plan {

struct Argument {
  std::string key;  // without dashes in front, '_' as '-'
  base::SourceSpan where;
  std::string value;  // expanded; empty: none
  bool unresolved() const { return value.find('$') != std::string::npos; }
};

/// All arguments in order of the file.
std::vector<Argument> read_arguments(std::string_view text, const std::string& name);

struct ImportTarget;
struct ImportedPlan;
/// The plan that settings of Megatron-Core say, by the names of Megatron-LM's arguments.
base::Result<ImportedPlan> megatron_plan(std::vector<Argument> arguments, const std::string& name,
                                         const ImportTarget& target);

/// The arguments by name, with faults collected on the way. Of an argument given twice the values
/// must be equal.
class ArgumentReader {
 public:
  ArgumentReader(std::vector<Argument> arguments, std::string file);

  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low = 1);
  std::optional<std::string> text(std::string_view key);
  /// Given, and not as `false`.
  bool flag(std::string_view key);
  /// As integer(), but nothing when its value is a variable that the file does not set.
  std::optional<std::int64_t> resolved(std::string_view key);
  bool has(std::string_view key) const { return find(key) != nullptr; }
  base::SourceSpan where(std::string_view key) const;
  template <class... Args>
  void fault(std::string_view key, base::ErrorCode code, std::string hint,
             fmt::format_string<Args...> format, Args&&... args) {
    sink_.add(base::make_error(code, format, std::forward<Args>(args)...)
                  .at(where(key))
                  .with_hint(std::move(hint)));
  }
  /// Names that nothing asked for, once each.
  std::vector<Argument> rest() const;

 protected:
  base::ErrorSink sink_;

 private:
  const Argument* find(std::string_view key) const;
  const Argument* take(std::string_view key);

  std::vector<Argument> arguments_;
  std::string file_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace orrery::plan

#pragma once
/// Errors as values: `Result<T>`, a diagnostic that names file, line and column, and the table of
/// error codes.
///
/// A function that can fail because of input or environment returns `Result<T>`; a reader of a file
/// reports *all* the faults of the file (base/config.h). Our own bugs are `ORRERY_CHECK`
/// (base/check.h).

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace orrery::base {

/// Place in an input file; line and column are 1-based (column counts bytes), 0 = unknown, empty
/// file = no place.
struct SourceSpan {
  std::string file = {};
  std::uint32_t line = 0;
  std::uint32_t column = 0;

  bool operator==(const SourceSpan&) const = default;
};

/// Stable: printed as E0001…, documented, tested. Never renumber; append.
enum class ErrorCode : std::uint16_t {
  kParse = 1,            ///< the text is not well-formed YAML or JSON
  kUnknownKey = 2,       ///< a key the reader does not know
  kMissingKey = 3,       ///< a required key is absent
  kBadUnit = 4,          ///< a quantity without a unit, or with one of another dimension
  kOutOfRange = 5,       ///< a number outside its range
  kInconsistent = 6,     ///< values that are each valid and together are not
  kNotFound = 7,         ///< a named file, model, device or link does not exist
  kIo = 8,               ///< the operating system refused to write
  kDevice = 9,           ///< an accelerator failed or is absent
  kCollective = 10,      ///< a collective or its transport failed
  kUnsupported = 11,     ///< well-formed, meaningful, and not something we do
  kDuplicateKey = 12,    ///< a key stated twice
  kWrongType = 13,       ///< a list where a number was expected, and the like
  kBadValue = 14,        ///< text that names none of the allowed values
  kUsage = 15,           ///< command line: unknown or incomplete option
  kInfeasible = 16,      ///< no plan fits; carries the shortfall
  kMissingFeature = 17,  ///< this build or machine lacks what the command needs
  kMismatch = 18,        ///< a validation found two answers that differ
  kUnreadable = 19,      ///< a file the user named is there but cannot be read
};

/// One row per code: its number is the enumerator, `exit_code` is 1 input, 2 infeasible, 3
/// environment.
struct ErrorInfo {
  ErrorCode code;
  std::string_view name;  ///< snake_case, stable
  int exit_code;
};

/// The table, in order of code; the rest (exit codes, documentation) is derived from it.
[[nodiscard]] std::span<const ErrorInfo> error_table();
[[nodiscard]] const ErrorInfo& error_info(ErrorCode code);

/// One fault: what, where, and what to do about it.
struct Diagnostic {
  ErrorCode code = ErrorCode::kParse;
  std::string message = {};             ///< one sentence, no trailing period, names the value
  SourceSpan where = {};                ///< empty for faults without a file
  std::vector<std::string> notes = {};  ///< "declared here", "while reading link 'ib'"
  std::string hint = {};                ///< "did you mean 'latency'?"

  /// The same fault, said of a place, or with a way out.
  [[nodiscard]] Diagnostic at(SourceSpan place) && {
    where = std::move(place);
    return std::move(*this);
  }
  [[nodiscard]] Diagnostic with_hint(std::string text) && {
    hint = std::move(text);
    return std::move(*this);
  }
  bool operator==(const Diagnostic&) const = default;
};

using Diagnostics = std::vector<Diagnostic>;  ///< never empty inside an error

template <class T>
using Result = tl::expected<T, Diagnostics>;

/// "net.yaml:8:1: error[E0002]: unknown key 'latncy' in link 'ib'; did you mean 'latency'?" and one
/// line per note.
[[nodiscard]] std::string to_string(const Diagnostic& diagnostic);
/// One diagnostic per line, no trailing newline.
[[nodiscard]] std::string to_string(const Diagnostics& diagnostics);

/// Exit code of the process: that of the gravest diagnostic (3 before 2 before 1), 0 when there is
/// none.
[[nodiscard]] int exit_code(const Diagnostics& diagnostics);

/// Diagnostic from a format string: `make_error(ErrorCode::kOutOfRange, "{} hosts", n)`.
template <class... Args>
[[nodiscard]] Diagnostic make_error(ErrorCode code, fmt::format_string<Args...> format,
                                    Args&&... args) {
  return Diagnostic{.code = code, .message = fmt::format(format, std::forward<Args>(args)...)};
}

/// `return fail(ErrorCode::kInconsistent, "{} stages for {} layers", p, l);`
template <class... Args>
[[nodiscard]] tl::unexpected<Diagnostics> fail(ErrorCode code, fmt::format_string<Args...> format,
                                               Args&&... args) {
  return tl::unexpected<Diagnostics>(
      Diagnostics{make_error(code, format, std::forward<Args>(args)...)});
}
/// As above, at a place of an input file.
template <class... Args>
[[nodiscard]] tl::unexpected<Diagnostics> fail_at(const SourceSpan& where, ErrorCode code,
                                                  fmt::format_string<Args...> format,
                                                  Args&&... args) {
  return tl::unexpected<Diagnostics>(
      Diagnostics{make_error(code, format, std::forward<Args>(args)...).at(where)});
}
[[nodiscard]] inline tl::unexpected<Diagnostics> fail(Diagnostic diagnostic) {
  return tl::unexpected<Diagnostics>(Diagnostics{std::move(diagnostic)});
}
/// @pre !diagnostics.empty().
[[nodiscard]] inline tl::unexpected<Diagnostics> fail(Diagnostics diagnostics) {
  return tl::unexpected<Diagnostics>(std::move(diagnostics));
}

/// Collects the faults of one reading, so that all of them are reported together.
class ErrorSink {
 public:
  void add(Diagnostic diagnostic) { diagnostics_.push_back(std::move(diagnostic)); }
  void add(Diagnostics diagnostics) {
    for (auto& d : diagnostics) diagnostics_.push_back(std::move(d));
  }
  /// Adds a fault at a place of an input file.
  template <class... Args>
  void error(const SourceSpan& where, ErrorCode code, fmt::format_string<Args...> format,
             Args&&... args) {
    add(make_error(code, format, std::forward<Args>(args)...).at(where));
  }
  /// The value of a result; its faults are collected and `fallback` returned when it has none.
  template <class T>
  T take(Result<T> result, T fallback = T{}) {
    if (result) return *std::move(result);
    add(std::move(result).error());
    return fallback;
  }
  [[nodiscard]] bool ok() const { return diagnostics_.empty(); }
  [[nodiscard]] const Diagnostics& diagnostics() const { return diagnostics_; }
  /// The end of a reader: the value when nothing went wrong, else every fault, ordered by place in
  /// the file.
  template <class T>
  [[nodiscard]] Result<T> result(T value) {
    if (ok()) return value;
    return fail(sorted());
  }
  [[nodiscard]] Result<void> result() {
    if (ok()) return {};
    return fail(sorted());
  }

 private:
  [[nodiscard]] Diagnostics sorted() const;
  Diagnostics diagnostics_;
};

}  // namespace orrery::base

template <>
struct fmt::formatter<orrery::base::Diagnostic> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const orrery::base::Diagnostic& d, Context& ctx) const {
    return fmt::formatter<std::string>::format(orrery::base::to_string(d), ctx);
  }
};

/// TRY(auto config, parse(path)); binds the value, or returns the error from the enclosing
/// function.
#define TRY(lhs, ...) \
  ORRERY_TRY_IMPL_(ORRERY_TRY_CAT_(orrery_try_, __COUNTER__), lhs, (__VA_ARGS__))
/// TRY_VOID(write(path)); as TRY for `Result<void>` or a value that is not wanted.
#define TRY_VOID(...) \
  ORRERY_TRY_VOID_IMPL_(ORRERY_TRY_CAT_(orrery_try_, __COUNTER__), (__VA_ARGS__))

#define ORRERY_TRY_CAT_(a, b) ORRERY_TRY_CAT2_(a, b)
#define ORRERY_TRY_CAT2_(a, b) a##b
#define ORRERY_TRY_IMPL_(tmp, lhs, expr)                                          \
  auto tmp = expr;                                                                \
  if (!tmp) [[unlikely]]                                                          \
    return ::tl::unexpected<::orrery::base::Diagnostics>(std::move(tmp).error()); \
  lhs = *std::move(tmp)
#define ORRERY_TRY_VOID_IMPL_(tmp, expr)                                            \
  do {                                                                              \
    if (auto tmp = expr; !tmp) [[unlikely]]                                         \
      return ::tl::unexpected<::orrery::base::Diagnostics>(std::move(tmp).error()); \
  } while (false)

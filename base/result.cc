#include "base/result.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::base {
namespace {

constexpr int kInput = 1;
constexpr int kNoPlan = 2;
constexpr int kEnvironment = 3;

constexpr std::array kErrors = {
    ErrorInfo{ErrorCode::kParse, "parse", kInput},
    ErrorInfo{ErrorCode::kUnknownKey, "unknown_key", kInput},
    ErrorInfo{ErrorCode::kMissingKey, "missing_key", kInput},
    ErrorInfo{ErrorCode::kBadUnit, "bad_unit", kInput},
    ErrorInfo{ErrorCode::kOutOfRange, "out_of_range", kInput},
    ErrorInfo{ErrorCode::kInconsistent, "inconsistent", kInput},
    ErrorInfo{ErrorCode::kNotFound, "not_found", kInput},
    ErrorInfo{ErrorCode::kIo, "io", kEnvironment},
    ErrorInfo{ErrorCode::kDevice, "device", kEnvironment},
    ErrorInfo{ErrorCode::kCollective, "collective", kEnvironment},
    ErrorInfo{ErrorCode::kUnsupported, "unsupported", kInput},
    ErrorInfo{ErrorCode::kDuplicateKey, "duplicate_key", kInput},
    ErrorInfo{ErrorCode::kWrongType, "wrong_type", kInput},
    ErrorInfo{ErrorCode::kBadValue, "bad_value", kInput},
    ErrorInfo{ErrorCode::kUsage, "usage", kInput},
    ErrorInfo{ErrorCode::kInfeasible, "infeasible", kNoPlan},
    ErrorInfo{ErrorCode::kMissingFeature, "missing_feature", kEnvironment},
    ErrorInfo{ErrorCode::kMismatch, "mismatch", kEnvironment},
    ErrorInfo{ErrorCode::kUnreadable, "unreadable", kInput},
};

constexpr bool rows_are_in_order_of_code() {
  for (std::size_t i = 0; i < kErrors.size(); ++i) {
    if (as_index(kErrors[i].code) != i + 1) return false;
  }
  return true;
}
static_assert(rows_are_in_order_of_code());

}  // namespace

std::span<const ErrorInfo> error_table() { return kErrors; }

const ErrorInfo& error_info(ErrorCode code) {
  const auto number = as_index(code);
  ORRERY_CHECK(number >= 1 && number <= kErrors.size(), "error code {}", number);
  return kErrors[number - 1];
}

std::string to_string(const Diagnostic& diagnostic) {
  std::string out;
  const SourceSpan& where = diagnostic.where;
  if (!where.file.empty()) {
    out += where.file;
    if (where.line != 0) out += fmt::format(":{}:{}", where.line, where.column);
    out += ": ";
  }
  out +=
      fmt::format("error[E{:04}]: {}", static_cast<unsigned>(diagnostic.code), diagnostic.message);
  if (!diagnostic.hint.empty()) out += "; " + diagnostic.hint;
  for (const auto& note : diagnostic.notes) out += "\n  note: " + note;
  return out;
}

std::string to_string(const Diagnostics& diagnostics) {
  std::string out;
  for (const auto& diagnostic : diagnostics) {
    if (!out.empty()) out += '\n';
    out += to_string(diagnostic);
  }
  return out;
}

int exit_code(const Diagnostics& diagnostics) {
  int worst = 0;
  for (const auto& diagnostic : diagnostics)
    worst = std::max(worst, error_info(diagnostic.code).exit_code);
  return worst;
}

Diagnostics ErrorSink::sorted() const {
  Diagnostics out = diagnostics_;
  std::ranges::stable_sort(out, [](const Diagnostic& a, const Diagnostic& b) {
    return std::tie(a.where.file, a.where.line, a.where.column) <
           std::tie(b.where.file, b.where.line, b.where.column);
  });
  return out;
}

}  // namespace orrery::base

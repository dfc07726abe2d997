#pragma once
/// ORRERY_CHECK: the mechanism for our own bugs, and for nothing else.
///
/// Wrong input, a missing file or a lost device is a `Result` with a diagnostic (base/result.h);
/// "no feasible plan" is an answer. A failed check prints file, line, condition and message, and
/// aborts: it never throws, never logs and goes on, and is compiled in every build type.

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace orrery::base {

/// Prints "FILE:LINE: check failed: CONDITION: MESSAGE" to standard error and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message = {});

}  // namespace orrery::base

/// ORRERY_CHECK(n > 0) or ORRERY_CHECK(n > 0, "{} stages", n). Usable in constexpr functions.
#define ORRERY_CHECK(condition, ...)                                                     \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      ::orrery::base::check_failed(__FILE__, __LINE__,                                   \
                                   #condition __VA_OPT__(, ::fmt::format(__VA_ARGS__))); \
    }                                                                                    \
  } while (false)

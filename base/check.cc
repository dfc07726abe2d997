#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace orrery::base {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  std::fflush(stdout);
  fmt::print(stderr, "{}:{}: check failed: {}{}{}\n", file, line, condition,
             message.empty() ? "" : ": ", message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace orrery::base

#pragma once
#include <cstdio>

#include "base/result.h"

namespace orrery::cli {

using base::ErrorCode;
using enum ErrorCode;
using base::Result;

/// An error with a way out.
template <class... Args>
tl::unexpected<base::Diagnostics> refuse(ErrorCode code, std::string hint,
                                         fmt::format_string<Args...> format, Args&&... args) {
  return base::fail(
      base::make_error(code, format, std::forward<Args>(args)...).with_hint(std::move(hint)));
}

/// To stderr, which is talk; stdout is data. A stderr that takes nothing is no error.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fputs(text.c_str(), stderr);
}

}  // namespace orrery::cli

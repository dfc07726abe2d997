#pragma once
/// What LibTorch and the standard library throw, as errors.
#include <c10/util/Exception.h>

#include <exception>
#include <new>

#include "base/result.h"

namespace orrery::executor {

inline constexpr const char* kOutOfMemory = "out of memory";

/// The result of `call`, a base::Result. Errors: its own; kDevice for what it throws.
template <class Call>
auto guarded(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const c10::OutOfMemoryError& error) {
    return base::fail(base::ErrorCode::kDevice, "{}: {}", kOutOfMemory,
                      error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return base::fail(base::ErrorCode::kDevice, "{}", error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return base::fail(base::ErrorCode::kDevice, "{}", kOutOfMemory);
  } catch (const std::exception& error) {
    return base::fail(base::ErrorCode::kDevice, "{}", error.what());
  }
}

}  // namespace orrery::executor

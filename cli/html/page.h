#pragma once
/// \file
/// Pages that open from disk and need no network: cli/html/assets/, with the numbers in them.
/// `page.css` and `page.js` are shared, so that all pages look and behave alike.
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/result.h"

namespace orrery::cli {

/// `name`.html around the data, with the shared style and script and `name`.js. Error: kNotFound
/// when the page's parts are not installed.
base::Result<std::string> page_of(std::string_view name, const base::Json& data);

}  // namespace orrery::cli

#pragma once
/// \file
/// Pages that open from disk and need no network: cli/html/assets/, with the numbers in them.
/// `page.html` (the frame), `page.css` and `page.js` are shared, so that all pages look and behave
/// alike; a page adds its body and its script.
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/result.h"

namespace orrery::cli {

/// The body `name`.html and the script `name`.js in the frame, around the data. Error: kNotFound
/// when the page's parts are not installed.
base::Result<std::string> page_of(std::string_view name, const base::Json& data);

}  // namespace orrery::cli

#pragma once
#include <cstddef>

#include "search/explain/explain.h"

namespace orrery::cli {

/// A part of a step in words: "exposed tensor communication".
std::string_view part_words(sim::TimePart part);
/// That a plan's part takes `time` more or less than before, as a clause: "tensor parallelism over
/// 8 instead of 2 exposes 1.6400 s more of communication".
std::string part_clause(sim::TimePart part, const plan::Plan& plan, const plan::Plan& before,
                        const std::string& time, bool more);
/// Columns of a text on a terminal.
std::size_t columns(const std::string& text);
/// What the words of the report mean.
std::string report_words();

}  // namespace orrery::cli

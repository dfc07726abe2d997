#pragma once
/// Small text helpers: split, join, trim, and the "did you mean" of every diagnostic.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orrery::base {

/// Damerau-Levenshtein distance (optimal string alignment): insertions, deletions, substitutions
/// and swaps of neighbours that turn one text into the other. Bytes, not characters. Cost
/// O(|a||b|).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name` if it is near enough to be a slip of the hand (distance ≤
/// max(1, |name| / 3), letter case ignored at no cost). Ties go to the first in the list.
[[nodiscard]] std::optional<std::string> nearest(std::string_view name,
                                                 std::span<const std::string> candidates);

/// Ready hint: "did you mean 'latency'?"; else what the name is part of, of at most 16 names; else
/// "known keys: a, b, c" where the list is short (≤ 12); or empty. `what` names the candidates in
/// the plural.
[[nodiscard]] std::string did_you_mean(std::string_view name,
                                       std::span<const std::string> candidates,
                                       std::string_view what = "known keys");

/// Pieces between separators; "" gives one empty piece, "a," gives {"a", ""}.
[[nodiscard]] std::vector<std::string> split(std::string_view text, char separator);
[[nodiscard]] std::string join(std::span<const std::string> pieces, std::string_view separator);
/// Without leading and trailing ASCII white space.
[[nodiscard]] std::string_view trim(std::string_view text);
/// For people: from 1,000 on a whole number with commas between thousands, below with four digits.
[[nodiscard]] std::string grouped(double number);
/// ASCII only; does not look at the locale.
[[nodiscard]] std::string to_lower(std::string_view text);

/// Strict numbers: the whole text, no white space, no locale, no leading '+', no hexadecimal.
/// Integers also refuse a fraction or exponent; doubles refuse "inf" and "nan".
[[nodiscard]] std::optional<long long> parse_integer(std::string_view text);
[[nodiscard]] std::optional<double> parse_real(std::string_view text);

}  // namespace orrery::base

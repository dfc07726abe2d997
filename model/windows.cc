#include "model/windows.h"

#include <cmath>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::model {

std::int64_t side_of(std::int64_t tokens) {
  const std::int64_t side = std::llround(std::sqrt(real(tokens)));
  ORRERY_CHECK(side * side == tokens, "{} tokens are no square", tokens);
  return side;
}

// What merges first lies in the lowest two bits of the number, column before row: Swin joins (0,
// 0), (1, 0), (0, 1), (1, 1) in this order, (row, column).
std::int64_t token_at(const ImageWindows& image, std::int64_t row, std::int64_t column) {
  std::int64_t token =
      (row >> image.merges) * (side_of(image.tokens) >> image.merges) + (column >> image.merges);
  for (int bit = image.merges - 1; bit >= 0; --bit)
    token = 4 * token + 2 * (column >> bit & 1) + (row >> bit & 1);
  return token;
}

std::int64_t window_shift(const SegmentShape& s, std::int64_t layer) {
  const bool shifts = s.windows.tokens > s.tokens && (layer - s.windows.first_block) % 2 != 0;
  return shifts ? side_of(s.tokens) / 2 : 0;
}

std::vector<WindowPlace> window_places(const SegmentShape& s, std::int64_t shift) {
  const std::int64_t width = side_of(s.tokens), side = side_of(s.windows.tokens);
  // Of a shifted image's rows or columns: those of windows before the last one, of the last one
  // those that were its neighbours, and those from the image's other end.
  const auto part = [&](std::int64_t at) {
    return shift == 0 || at < side - width ? 0 : at < side - shift ? 1 : 2;
  };
  std::vector<WindowPlace> places;
  places.reserve(as_index(s.windows.tokens));
  for (std::int64_t window = 0; window < s.windows.tokens / s.tokens; ++window)
    for (std::int64_t place = 0; place < s.tokens; ++place) {
      const std::int64_t row = window / (side / width) * width + place / width,
                         column = window % (side / width) * width + place % width;
      places.push_back({token_at(s.windows, (row + shift) % side, (column + shift) % side),
                        3 * part(row) + part(column)});
    }
  return places;
}

}  // namespace orrery::model

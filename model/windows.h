#pragma once
/// Attention inside windows with biases of relative positions (Swin, arXiv 2103.14030,
/// section 3.2): scores are made of so many windows at a time, which bounds the temporary.
#include <algorithm>
#include <vector>

#include "model/segment.h"

namespace orrery::model {

/// Side of a square of so many tokens. @pre it is one
std::int64_t side_of(std::int64_t tokens);

/// Number of the token at a place of an image, as ImageWindows orders them.
std::int64_t token_at(const ImageWindows& image, std::int64_t row, std::int64_t column);

/// By how many rows and columns block `layer` shifts its windows: half a side, or none.
std::int64_t window_shift(const SegmentShape& s, std::int64_t layer);

/// A place of a window: its token in the image, and which part of the image it is of. Windows that
/// are shifted hold up to four parts, whose tokens do not see each other.
struct WindowPlace {
  std::int64_t token = 0, part = 0;
};
/// Of the windows of an image, by rows, and of each by rows.
std::vector<WindowPlace> window_places(const SegmentShape& s, std::int64_t shift);

/// Of a kAttention with a table of biases: numbers of all heads' scores in one window.
inline std::int64_t window_scores(const SegmentShape& s) { return s.heads * s.tokens * s.tokens; }
inline std::int64_t windows_at_once(const SegmentShape& s) {
  constexpr std::int64_t kElements = 1 << 18;
  return std::clamp<std::int64_t>(kElements / window_scores(s), 1, s.sequences);
}

/// Bytes of temporaries: fp32 scores of some windows, copies of what is multiplied and, a byte
/// each, which scores shifted windows mask; of one window the biases and, int64, their places; in
/// backward probabilities as well, and the biases' gradients, all before there is a result, which
/// is as large as the gradients it is packed of.
inline std::int64_t window_temporaries(const SegmentShape& s, Phase phase) {
  constexpr std::int64_t kFloat = 4, kPlace = 8;
  const std::int64_t of_one = kFloat * window_scores(s), some = windows_at_once(s),
                     scores = some * of_one, rows = kFloat * some * s.tokens * s.heads * s.head_dim,
                     places = kPlace * s.tokens * s.tokens,
                     rounded = s.dtype == DType::kFloat32 ? 0 : rows / 2,
                     masks = s.windows.tokens > s.tokens ? some * s.tokens * s.tokens : 0;
  if (phase == Phase::kF)
    return std::max(scores + 2 * rows + std::max(rounded, masks), 2 * scores) + of_one + places;
  return std::max(2 * scores + 4 * rows, scores + 5 * rows + rounded) + 2 * of_one + 2 * places;
}

}  // namespace orrery::model

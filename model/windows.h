#pragma once
/// Attention inside windows with biases of relative positions (Swin, arXiv 2103.14030,
/// section 3.2): scores are made of so many windows at a time, which bounds the temporary.
#include <algorithm>

#include "model/segment.h"

namespace orrery::model {

/// Of a kAttention with a table of biases: numbers of all heads' scores in one window.
inline std::int64_t window_scores(const SegmentShape& s) { return s.heads * s.tokens * s.tokens; }
inline std::int64_t windows_at_once(const SegmentShape& s) {
  constexpr std::int64_t kElements = 1 << 18;
  return std::clamp<std::int64_t>(kElements / window_scores(s), 1, s.sequences);
}

/// Bytes of temporaries: fp32 scores of some windows and copies of what is multiplied; of one
/// window the biases and, int64, their places; in backward probabilities as well, and the biases'
/// gradients, all before there is a result, which is as large as the gradients it is packed of.
inline std::int64_t window_temporaries(const SegmentShape& s, Phase phase) {
  constexpr std::int64_t kFloat = 4, kPlace = 8;
  const std::int64_t scores = kFloat * window_scores(s), some = windows_at_once(s),
                     rows = kFloat * some * s.tokens * s.heads * s.head_dim,
                     places = kPlace * s.tokens * s.tokens,
                     widened = s.dtype == DType::kFloat32 ? 0 : 2 * rows;
  if (phase == Phase::kF) return some * scores + 2 * rows + widened + scores + places;
  return 2 * some * scores + 2 * rows + 2 * widened + 2 * scores + 2 * places;
}

}  // namespace orrery::model

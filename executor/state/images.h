#pragma once
/// Made-up images to train on. Image i of a run (step * global batch + index in it) is a function
/// of (seed, i) alone, so that a batch never depends on the plan. Its class is uniform over all; a
/// pixel is the texture of the class, the same in every patch, plus noise: both uniform in [-1, 1).
#include <cstdint>
#include <span>

namespace orrery::executor {

/// Images [first, first + images) of the run.
struct ImageBatch {
  std::uint64_t seed = 0;
  std::int64_t first = 0, images = 0, classes = 1;
  std::int64_t patch_features = 1;  // numbers of a patch: channels * side^2
  std::int64_t blank_tokens = 0;    // at the beginning of an image, all zero: class tokens
};

/// One class an image. @pre out has `images` elements.
void make_classes(const ImageBatch& batch, std::span<std::int64_t> out);
/// [images, tokens, patch_features]. @pre out has whole tokens, equally many of every image.
void make_pixels(const ImageBatch& batch, std::span<float> out);

}  // namespace orrery::executor

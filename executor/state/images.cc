#include "executor/state/images.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"
#include "base/rng.h"

namespace orrery::executor {
namespace {

// sub-streams of the run's seed
constexpr std::uint64_t kClassStream = 0x434c415353, kTextureStream = 0x54455854,
                        kNoiseStream = 0x4e4f495345;

std::uint64_t bits(std::int64_t number) { return static_cast<std::uint64_t>(number); }

std::int64_t class_of(const ImageBatch& batch, std::int64_t image) {
  const std::uint64_t draw = base::hash(base::derive(batch.seed, kClassStream), bits(image));
  return static_cast<std::int64_t>(draw % bits(batch.classes));
}

/// out += uniform numbers in [-1, 1), four of 16 bits from every draw of the stream.
void add_uniform(std::uint64_t stream, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += 4) {
    std::uint64_t draw = base::hash(stream, i / 4);
    for (std::size_t j = i; j < std::min(i + 4, out.size()); ++j, draw >>= 16)
      out[j] += static_cast<float>(draw & 0xffff) * 0x1p-15F - 1;
  }
}

}  // namespace

void make_classes(const ImageBatch& batch, std::span<std::int64_t> out) {
  ORRERY_CHECK(out.size() == as_index(batch.images));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = class_of(batch, batch.first + static_cast<std::int64_t>(i));
}

void make_pixels(const ImageBatch& batch, std::span<float> out) {
  const std::size_t image = out.size() / as_index(batch.images),
                    patch = as_index(batch.patch_features),
                    blank = as_index(batch.blank_tokens) * patch;
  ORRERY_CHECK(image * as_index(batch.images) == out.size() && image % patch == 0);
  std::ranges::fill(out, 0.0F);
  std::vector<float> texture(patch);
  for (std::int64_t i = 0; i < batch.images; ++i) {
    const std::int64_t number = batch.first + i;
    std::ranges::fill(texture, 0.0F);
    add_uniform(
        base::derive(base::derive(batch.seed, kTextureStream), bits(class_of(batch, number))),
        texture);
    const std::span<float> pixels = out.subspan(as_index(i) * image + blank, image - blank);
    add_uniform(base::derive(base::derive(batch.seed, kNoiseStream), bits(number)), pixels);
    for (std::size_t p = 0; p < pixels.size(); ++p) pixels[p] += texture[p % patch];
  }
}

}  // namespace orrery::executor

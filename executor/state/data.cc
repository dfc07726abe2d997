#include "executor/state/data.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/data_dir.h"
#include "base/file.h"
#include "base/numbers.h"
#include "base/rng.h"
#include "model/segment.h"

namespace orrery::executor {

using base::ErrorCode;

namespace {

static_assert(std::endian::native == std::endian::little, "tokens are read as they lie");

// sub-stream of the run's seed that picks sequences
constexpr std::uint64_t kSequenceStream = 0x5345515545, kMaskStream = 0x4d41534b;

base::Result<std::string> built_in_corpus() {
  std::string text;
  for (const std::string& name : base::list_data_files("executor/data", ".txt")) {
    TRY(const auto path, base::data_file("executor/data/" + name));
    TRY(std::string part, base::read_file(path));
    text += part;
  }
  if (text.empty())
    return base::fail(ErrorCode::kNotFound,
                      "the built-in corpus executor/data/*.txt is not installed");
  return text;
}

/// Draws of a sequence's positions, and the largest one that makes a target.
struct Draws {
  std::vector<std::uint64_t> of;
  std::uint64_t last = 0;
};
Draws draws_of(const Batch& batch, std::int64_t sequence, std::int64_t tokens) {
  const std::uint64_t stream =
      base::derive(base::derive(batch.seed, kMaskStream), static_cast<std::uint64_t>(sequence));
  Draws draws;
  for (std::int64_t t = 0; t < tokens; ++t)
    draws.of.push_back(base::hash(stream, static_cast<std::uint64_t>(t)));
  std::vector<std::uint64_t> sorted = draws.of;
  const auto last = sorted.begin() + targets_of_sequence(tokens, true) - 1;
  std::ranges::nth_element(sorted, last);
  draws.last = *last;
  return draws;
}

/// What masked training reads where there is a target. The draw's size chose the position; its hash
/// decides what stands there.
std::int64_t disguised(std::int64_t token, std::uint64_t draw, std::int64_t vocabulary) {
  const std::uint64_t kind = base::hash(draw, 0) % 10,
                      size = static_cast<std::uint64_t>(vocabulary);
  if (kind < 8) return vocabulary - 1;
  return kind == 8 ? static_cast<std::int64_t>(base::hash(draw, 1) % size) : token;
}

}  // namespace

std::int64_t targets_of_sequence(std::int64_t tokens, bool masked) {
  constexpr std::int64_t kMaskedPercent = 15;
  return masked ? ceil_div(tokens * kMaskedPercent, std::int64_t{100}) : tokens;
}

base::Result<TokenData> TokenData::open(const std::string& path, std::int64_t vocabulary,
                                        std::int64_t sequence) {
  TokenData data;
  data.vocabulary_ = vocabulary;
  data.name_ = path.empty() ? "built-in corpus" : path;
  if (path.empty()) {
    TRY(std::string text, built_in_corpus());
    const auto corpus = std::make_shared<const std::string>(std::move(text));
    data.bytes_ = {corpus, corpus->data()};
    data.size_ = static_cast<std::int64_t>(corpus->size());
  } else {
    data.width_ = vocabulary > 65536 || path.ends_with(".u32") ? 4 : 2;
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
      return base::fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: {}", path,
                        std::strerror(errno));
    }
    struct stat info {};
    const bool regular = ::fstat(file, &info) == 0 && S_ISREG(info.st_mode);
    const std::size_t size = regular ? as_index(info.st_size) : 0;
    void* mapped = size == 0 ? MAP_FAILED : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    const int mapping_error = errno;
    ::close(file);
    if (size == 0) return base::fail(ErrorCode::kIo, "{}: not a file of tokens", path);
    if (mapped == MAP_FAILED)
      return base::fail(ErrorCode::kIo, "{}: {}", path, std::strerror(mapping_error));
    data.bytes_.reset(mapped, [size](void* bytes) { ::munmap(bytes, size); });
    data.size_ = static_cast<std::int64_t>(size / data.width_);
  }
  if (data.size_ < sequence + 1) {
    return base::fail(ErrorCode::kInconsistent,
                      "{}: {} tokens are too few for a sequence of {} and its targets", data.name_,
                      data.size_, sequence);
  }
  return data;
}

std::int64_t TokenData::token(std::int64_t at) const {
  std::uint32_t value = 0;
  std::memcpy(&value, static_cast<const char*>(bytes_.get()) + width_ * as_index(at), width_);
  return value;
}

base::Result<void> TokenData::read(const Batch& batch, What what,
                                   std::span<std::int64_t> out) const {
  ORRERY_CHECK(static_cast<std::int64_t>(out.size()) == batch.sequences * batch.tokens);
  const std::uint64_t stream = base::derive(batch.seed, kSequenceStream);
  const std::int64_t length = batch.tokens * batch.token_parts,
                     chunk_tokens = length / batch.token_chunks,
                     shift = what == What::kTargets && !batch.masked ? 1 : 0;
  // the last target must exist
  const auto starts = static_cast<std::uint64_t>(size_ - length - batch.encoder_tokens);
  const std::int64_t half = batch.to_encoder ? 0 : batch.encoder_tokens;
  std::size_t at = 0;
  for (std::int64_t i = 0; i < batch.sequences; ++i) {
    const std::int64_t index = batch.step * batch.global_batch + batch.first_sequence + i;
    const auto start =
        static_cast<std::int64_t>(base::hash(stream, static_cast<std::uint64_t>(index)) % starts);
    const Draws draws = batch.masked ? draws_of(batch, index, length) : Draws{};
    for (std::int64_t t = 0; t < batch.tokens; ++t) {
      const std::int64_t place = batch.token_part * batch.tokens + t,
                         position = model::position_of(place, batch.token_chunks, chunk_tokens),
                         from = start + half + shift + position;
      const std::int64_t id = token(from);
      if (id >= vocabulary_) {
        return base::fail(ErrorCode::kOutOfRange,
                          "{}: token {} at position {} is not in the model's vocabulary of {}",
                          name_, id, from, vocabulary_);
      }
      std::int64_t& to = out[at++] = id;
      if (!batch.masked) continue;
      const std::uint64_t draw = draws.of[as_index(position)];
      const bool has_target = draw <= draws.last;
      if (what == What::kTargets && !has_target) to = -1;
      if (what == What::kTokens && has_target) to = disguised(id, draw, vocabulary_);
    }
  }
  return {};
}

}  // namespace orrery::executor

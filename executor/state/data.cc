#include "executor/state/data.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

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
constexpr std::uint64_t kSequenceStream = 0x5345515545;

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

}  // namespace

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

base::Result<void> TokenData::read(const Batch& batch, std::int64_t shift,
                                   std::span<std::int64_t> out) const {
  ORRERY_CHECK(static_cast<std::int64_t>(out.size()) == batch.sequences * batch.tokens);
  const std::uint64_t stream = base::derive(batch.seed, kSequenceStream);
  const std::int64_t chunk_tokens = batch.tokens * batch.token_parts / batch.token_chunks;
  // the last target must exist
  const auto starts = static_cast<std::uint64_t>(size_ - batch.tokens * batch.token_parts);
  std::size_t at = 0;
  for (std::int64_t i = 0; i < batch.sequences; ++i) {
    const std::int64_t index = batch.step * batch.global_batch + batch.first_sequence + i;
    const auto start =
        static_cast<std::int64_t>(base::hash(stream, static_cast<std::uint64_t>(index)) % starts);
    for (std::int64_t t = 0; t < batch.tokens; ++t) {
      const std::int64_t place = batch.token_part * batch.tokens + t,
                         from = start + shift +
                                model::position_of(place, batch.token_chunks, chunk_tokens);
      const std::int64_t id = token(from);
      if (id >= vocabulary_) {
        return base::fail(ErrorCode::kOutOfRange,
                          "{}: token {} at position {} is not in the model's vocabulary of {}",
                          name_, id, from, vocabulary_);
      }
      out[at++] = id;
    }
  }
  return {};
}

}  // namespace orrery::executor

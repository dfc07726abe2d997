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
#include "base/rng.h"

namespace orrery::executor {

using base::ErrorCode;

namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

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

TokenData::~TokenData() {
  if (mapped_ != nullptr) ::munmap(const_cast<unsigned char*>(mapped_), mapped_bytes_);
}
TokenData::TokenData(TokenData&& other) noexcept { *this = std::move(other); }
TokenData& TokenData::operator=(TokenData&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(text_, other.text_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(width_, other.width_);
  std::swap(size_, other.size_);
  std::swap(vocabulary_, other.vocabulary_);
  return *this;
}

base::Result<TokenData> TokenData::open(const std::string& path, std::int64_t vocabulary,
                                        std::int64_t sequence) {
  TokenData data;
  data.vocabulary_ = vocabulary;
  data.name_ = path.empty() ? "built-in corpus" : path;
  if (path.empty()) {
    TRY(data.text_, built_in_corpus());
    data.size_ = static_cast<std::int64_t>(data.text_.size());
  } else {
    data.width_ = vocabulary > 65536 || path.ends_with(".u32") ? 4 : 2;
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
      return base::fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: {}", path,
                        std::strerror(errno));
    }
    struct stat info {};
    const bool regular = ::fstat(file, &info) == 0 && S_ISREG(info.st_mode);
    data.mapped_bytes_ = regular ? static_cast<std::size_t>(info.st_size) : 0;
    void* mapped = data.mapped_bytes_ == 0
                       ? MAP_FAILED
                       : ::mmap(nullptr, data.mapped_bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    const int mapping_error = errno;
    ::close(file);
    if (!regular || data.mapped_bytes_ == 0)
      return base::fail(ErrorCode::kIo, "{}: not a file of tokens", path);
    if (mapped == MAP_FAILED)
      return base::fail(ErrorCode::kIo, "{}: {}", path, std::strerror(mapping_error));
    data.mapped_ = static_cast<const unsigned char*>(mapped);
    data.size_ = static_cast<std::int64_t>(data.mapped_bytes_) / data.width_;
  }
  if (data.size_ < sequence + 1) {
    return base::fail(ErrorCode::kInconsistent,
                      "{}: {} tokens are too few for a sequence of {} and its targets", data.name_,
                      data.size_, sequence);
  }
  return data;
}

std::int64_t TokenData::token(std::int64_t at) const {
  const auto index = static_cast<std::size_t>(at);
  if (mapped_ == nullptr) return static_cast<unsigned char>(text_[index]);
  if (width_ == 2) {
    std::uint16_t value = 0;
    std::memcpy(&value, mapped_ + 2 * index, sizeof value);
    return value;
  }
  std::uint32_t value = 0;
  std::memcpy(&value, mapped_ + 4 * index, sizeof value);
  return value;
}

base::Result<void> TokenData::read(const Batch& batch, std::int64_t shift,
                                   std::span<std::int64_t> out) const {
  ORRERY_CHECK(static_cast<std::int64_t>(out.size()) == batch.sequences * batch.tokens);
  const std::uint64_t stream = base::derive(batch.seed, kSequenceStream);
  // the last target must exist
  const auto starts = static_cast<std::uint64_t>(size_ - batch.tokens * batch.token_parts);
  std::size_t at = 0;
  for (std::int64_t i = 0; i < batch.sequences; ++i) {
    const std::int64_t index = batch.step * batch.global_batch + batch.first_sequence + i;
    const auto start =
        static_cast<std::int64_t>(base::hash(stream, static_cast<std::uint64_t>(index)) % starts) +
        batch.token_part * batch.tokens;
    for (std::int64_t t = 0; t < batch.tokens; ++t) {
      const std::int64_t id = token(start + t + shift);
      if (id >= vocabulary_) {
        return base::fail(ErrorCode::kOutOfRange,
                          "{}: token {} at position {} is not in the model's vocabulary of {}",
                          name_, id, start + t + shift, vocabulary_);
      }
      out[at++] = id;
    }
  }
  return {};
}

}  // namespace orrery::executor

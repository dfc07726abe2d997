#include "executor/launch/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/file.h"
#include "base/text.h"

namespace orrery::executor {

Board Board::attach(int rank) {
  Board board;
  const char* folder = std::getenv(kBoardVariable);
  if (folder == nullptr) return board;
  board.folder_ = folder;
  const std::string path = board.folder_ / ("rank-" + std::to_string(rank));
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return board;
  void* mapped = MAP_FAILED;
  if (::ftruncate(file, sizeof(RankProgress)) == 0) {
    mapped = ::mmap(nullptr, sizeof(RankProgress), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  ::close(file);
  if (mapped == MAP_FAILED) return board;
  board.mapped_ = new (mapped) RankProgress{};
  board.mapped_->pid = ::getpid();
  return board;
}

Board::~Board() {
  if (mapped_ != nullptr) ::munmap(mapped_, sizeof(RankProgress));
}
Board::Board(Board&& other) noexcept
    : mapped_(std::exchange(other.mapped_, nullptr)), folder_(std::move(other.folder_)) {}

void Board::operation(std::int32_t step, std::int32_t layer, std::int32_t micro_batch,
                      std::string_view name) {
  RankProgress& p = mapped_ != nullptr ? *mapped_ : own_;
  p.step = step;
  p.layer = layer;
  p.micro_batch = micro_batch;
  const std::size_t length = std::min(name.size(), sizeof p.operation - 1);
  std::memcpy(p.operation, name.data(), length);
  p.operation[length] = '\0';
}

void Board::stage(std::int32_t stage) { (mapped_ != nullptr ? *mapped_ : own_).stage = stage; }
void Board::finish() { (mapped_ != nullptr ? *mapped_ : own_).finished = 1; }

void Board::fail(const base::Diagnostics& diagnostics) const {
  if (!attached()) return;
  const std::string text =
      std::to_string(base::exit_code(diagnostics)) + "\n" + base::to_string(diagnostics);
  // Written whole beside its name, then linked to it: the link fails for all but the first.
  const std::string draft = folder_ / ("failure-" + std::to_string(::getpid())),
                    path = folder_ / "failure";
  if (base::write_file_atomic(draft, text) && ::link(draft.c_str(), path.c_str()) != 0)
    ::unlink(draft.c_str());
}

std::optional<RankProgress> read_progress(const std::filesystem::path& folder, int rank) {
  const auto bytes = base::read_file(folder / ("rank-" + std::to_string(rank)));
  if (!bytes || bytes->size() != sizeof(RankProgress)) return std::nullopt;
  RankProgress progress;
  std::memcpy(&progress, bytes->data(), sizeof progress);
  progress.operation[sizeof progress.operation - 1] = '\0';
  return progress;
}

std::optional<Failure> read_failure(const std::filesystem::path& folder) {
  const auto text = base::read_file(folder / "failure");
  if (!text) return std::nullopt;
  const std::size_t line = text->find('\n');
  if (line == std::string::npos) return std::nullopt;
  return Failure{static_cast<int>(base::parse_integer(text->substr(0, line)).value_or(3)),
                 text->substr(line + 1)};
}

}  // namespace orrery::executor

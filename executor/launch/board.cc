#include "executor/launch/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/file.h"
#include "base/numbers.h"
#include "base/text.h"

namespace orrery::executor {
namespace {

std::string rank_file(const std::filesystem::path& folder, int rank) {
  return folder / ("rank-" + std::to_string(rank));
}

}  // namespace

Board Board::attach(int rank) {
  Board board;
  const char* folder = std::getenv(kBoardVariable);
  if (folder == nullptr) return board;
  const std::string path = rank_file(folder, rank);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return board;
  void* mapped = MAP_FAILED;
  if (::ftruncate(file, sizeof(RankProgress)) == 0) {
    mapped = ::mmap(nullptr, sizeof(RankProgress), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  ::close(file);
  if (mapped == MAP_FAILED) return board;
  board.progress_.reset(new (mapped) RankProgress{},
                        [](RankProgress* p) { ::munmap(p, sizeof *p); });
  board.progress_->pid = ::getpid();
  board.folder_ = folder;
  return board;
}

void Board::operation(std::int32_t step, std::int32_t layer, std::int32_t micro_batch,
                      std::string_view name) {
  RankProgress& p = *progress_;
  p.step = step;
  p.layer = layer;
  p.micro_batch = micro_batch;
  const std::size_t length = std::min(name.size(), sizeof p.operation - 1);
  std::memcpy(p.operation, name.data(), length);
  p.operation[length] = '\0';
}

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
  const auto bytes = base::read_file(rank_file(folder, rank));
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
  return Failure{as_int(base::parse_integer(text->substr(0, line)).value_or(3)),
                 text->substr(line + 1)};
}

}  // namespace orrery::executor

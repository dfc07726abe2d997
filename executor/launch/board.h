#pragma once
/// What a rank tells the local launcher: a small mapped file per rank that survives the rank's
/// death.
///
/// The launcher makes a folder and names it in ORRERY_BOARD; without it nothing is written.
/// `rank-<r>` holds the operation under way; `failure` the diagnostics of the first rank that
/// failed by itself.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace orrery::executor {

inline constexpr const char* kBoardVariable = "ORRERY_BOARD";

/// Plain bytes: written by the rank, read by the launcher.
struct RankProgress {
  std::int32_t pid = 0;
  std::int32_t step = -1, layer = -1, micro_batch = -1, stage = -1;
  std::int32_t finished = 0;
  char operation[64] = {};
};

class Board {
 public:
  /// The board of this process's rank; one that nobody reads when ORRERY_BOARD is not set.
  static Board attach(int rank);

  /// True when a launcher reads the board.
  [[nodiscard]] bool attached() const { return !folder_.empty(); }
  void operation(std::int32_t step, std::int32_t layer, std::int32_t micro_batch,
                 std::string_view name);
  void stage(std::int32_t stage) { progress_->stage = stage; }
  void finish() { progress_->finished = 1; }
  /// First failure wins; others are the consequence.
  void fail(const base::Diagnostics& diagnostics) const;

 private:
  Board() = default;
  std::shared_ptr<RankProgress> progress_ = std::make_shared<RankProgress>();
  std::filesystem::path folder_;  // empty: progress_ is not mapped
};

/// Launcher's side.
std::optional<RankProgress> read_progress(const std::filesystem::path& folder, int rank);
struct Failure {
  int exit_code = 3;
  std::string text;
};
std::optional<Failure> read_failure(const std::filesystem::path& folder);

}  // namespace orrery::executor

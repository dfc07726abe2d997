#pragma once
/// \file
/// Results of finished points on disk, so that a sweep that was stopped goes on: an SQLite file.
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/tables/sweep_point.h"

struct sqlite3;

namespace orrery::cli {

/// Every result is written when it is there, in a transaction of its own: a process that is killed
/// loses no finished point. Safe for several threads, and for several sweeps on one file.
class PointStore {
 public:
  /// Makes the file where there is none. Errors: kIo (not to be opened or written), kUnsupported (a
  /// database of something else).
  static base::Result<PointStore> open(const std::filesystem::path& path);

  /// Error: kIo.
  base::Result<std::optional<PointResult>> find(const std::string& key);
  base::Result<void> put(const std::string& key, const PointResult& result);

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  PointStore(std::unique_ptr<sqlite3, Close> database, std::string path)
      : database_(std::move(database)),
        path_(std::move(path)),
        mutex_(std::make_unique<std::mutex>()) {}
  template <class Row>
  base::Result<void> run(const char* sql, std::span<const std::string> values, const Row& row);
  base::Result<void> check_owner();
  [[nodiscard]] base::Diagnostic fault(std::string_view what) const;

  std::unique_ptr<sqlite3, Close> database_;
  std::string path_;
  std::unique_ptr<std::mutex> mutex_;
};

}  // namespace orrery::cli

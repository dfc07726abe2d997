#include "cli/tables/point_store.h"

#include <sqlite3.h>

#include "base/json.h"
#include "base/numbers.h"
#include "cli/refuse.h"

namespace orrery::cli {

namespace {

// Of this file's tables, in the header of the database.
constexpr std::int64_t kOwner = 0x4f727279;  // "Orry"
constexpr int kWaitMilliseconds = 10'000;    // for another sweep's write

}  // namespace

void PointStore::Close::operator()(sqlite3* database) const { sqlite3_close_v2(database); }

base::Diagnostic PointStore::fault(std::string_view what) const {
  return base::make_error(kIo, "'{}': {}: {}", path_, what, sqlite3_errmsg(database_.get()));
}

template <class Row>
Result<void> PointStore::run(const char* sql, std::span<const std::string> values, const Row& row) {
  sqlite3_stmt* made = nullptr;
  if (sqlite3_prepare_v2(database_.get(), sql, -1, &made, nullptr) != SQLITE_OK)
    return base::fail(fault("cannot be read"));
  const std::unique_ptr<sqlite3_stmt, decltype(&sqlite3_finalize)> statement(made,
                                                                             &sqlite3_finalize);
  for (std::size_t i = 0; i < values.size(); ++i)
    sqlite3_bind_text(made, as_int(i) + 1, values[i].data(), as_int(values[i].size()),
                      SQLITE_STATIC);
  int state = sqlite3_step(made);
  for (; state == SQLITE_ROW; state = sqlite3_step(made)) row(made);
  if (state != SQLITE_DONE) return base::fail(fault("cannot be written"));
  return {};
}

Result<void> PointStore::check_owner() {
  std::int64_t owner = 0, tables = 0;
  const auto number = [](std::int64_t& into) {
    return [&into](sqlite3_stmt* s) { into = sqlite3_column_int64(s, 0); };
  };
  TRY_VOID(run("PRAGMA application_id", {}, number(owner)));
  TRY_VOID(run("SELECT count(*) FROM sqlite_schema", {}, number(tables)));
  if (owner == kOwner || (owner == 0 && tables == 0)) return {};
  return refuse(kUnsupported, "name a file that does not exist, or one that a sweep wrote",
                "'{}' is a database of something else", path_);
}

Result<PointStore> PointStore::open(const std::filesystem::path& path) {
  sqlite3* made = nullptr;
  const int state =
      sqlite3_open_v2(path.c_str(), &made,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  PointStore store(std::unique_ptr<sqlite3, Close>(made), path.string());
  if (state != SQLITE_OK) return base::fail(store.fault("cannot be opened"));
  sqlite3_busy_timeout(made, kWaitMilliseconds);
  const auto no_rows = [](sqlite3_stmt*) {};
  TRY_VOID(store.check_owner());
  const std::string own = fmt::format("PRAGMA application_id={}", kOwner);
  TRY_VOID(store.run(own.c_str(), {}, no_rows));
  TRY_VOID(store.run("CREATE TABLE IF NOT EXISTS point(key TEXT PRIMARY KEY, result TEXT NOT NULL)",
                     {}, no_rows));
  return store;
}

Result<std::optional<PointResult>> PointStore::find(const std::string& key) {
  const std::lock_guard lock(*mutex_);
  std::optional<std::string> text;
  const std::string values[] = {key};
  TRY_VOID(run("SELECT result FROM point WHERE key=?", values, [&](sqlite3_stmt* s) {
    text.emplace(reinterpret_cast<const char*>(sqlite3_column_text(s, 0)),
                 as_index(sqlite3_column_bytes(s, 0)));
  }));
  if (!text) return std::optional<PointResult>();
  TRY(const base::Json json, base::parse_json(*text, path_));
  return std::optional(point_result(json));
}

Result<void> PointStore::put(const std::string& key, const PointResult& result) {
  const std::lock_guard lock(*mutex_);
  const std::string values[] = {key, base::to_line(to_json(result))};
  return run("INSERT OR REPLACE INTO point VALUES(?,?)", values, [](sqlite3_stmt*) {});
}

}  // namespace orrery::cli

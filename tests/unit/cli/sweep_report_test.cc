// Merits of points against numbers worked out by hand, and what is kept of finished points.
#include "cli/tables/sweep_report.h"

#include <gmock/gmock.h>

#include <sqlite3.h>

#include <filesystem>

#include "base/csv.h"
#include "base/json.h"
#include "cli/tables/point_store.h"
#include "tests/support/scratch_folder.h"

namespace orrery::cli {
namespace {

using testing::HasSubstr;

/// 3,600 tokens a step; so many devices take so many seconds.
PointResult point(std::int64_t devices, double seconds) {
  PointResult r;
  r.status = PointStatus::kOk;
  r.step_ps = static_cast<std::int64_t>(seconds * 1e12);
  r.tokens = 3600;
  r.devices = devices;
  r.plan = "pp1 m1 | tp8 dp1";
  return r;
}

Sweep scaling() {
  Sweep sweep;
  sweep.axes = {{{"hosts"}, {{"1"}, {"2"}, {"4"}, {"8"}}}};
  for (const char* hosts : {"1", "2", "4", "8"}) sweep.points.push_back({{"hosts", hosts}});
  sweep.results = {point(8, 1), point(16, 0.625), point(32, 0.625), {}};
  sweep.results[3].message = "needs 4 GiB more";
  return sweep;
}

TEST(SweepMerits, CompareDevicesWithTheSmallestCluster) {
  const auto merits = merits_of(scaling());
  EXPECT_DOUBLE_EQ(*merits[0].efficiency, 1);
  EXPECT_DOUBLE_EQ(*merits[1].efficiency, 0.8);  // 1 / (2 x 0.625)
  EXPECT_DOUBLE_EQ(*merits[2].efficiency, 0.4);
  EXPECT_FALSE(merits[3].efficiency);
}

TEST(SweepMerits, CountDeviceHoursForATrillionTokens) {
  // 3,600 tokens a second on 8 devices: 10^12 / 3600 s, 8 devices, 3600 s an hour.
  EXPECT_NEAR(*merits_of(scaling())[0].device_hours, 8e12 / 3600 / 3600, 1e-3);
}

TEST(SweepMerits, MarkWhatNothingBeatsInBothSpeedAndDeviceTime) {
  const auto merits = merits_of(scaling());
  EXPECT_TRUE(merits[0].front);   // least device time
  EXPECT_TRUE(merits[1].front);   // fastest
  EXPECT_FALSE(merits[2].front);  // as fast, on twice the devices
  EXPECT_FALSE(merits[3].front);
}

TEST(SweepMerits, ScaleWithinWhatElseIsEqual) {
  Sweep sweep;
  sweep.axes = {{{"hosts"}, {{"1"}, {"2"}}}, {{"ib.bandwidth"}, {{"1x"}, {"2x"}}}};
  for (const char* hosts : {"1", "2"})
    for (const char* rate : {"1x", "2x"})
      sweep.points.push_back({{"hosts", hosts}, {"ib.bandwidth", rate}});
  sweep.results = {point(8, 1), point(8, 0.5), point(16, 1), point(16, 0.5)};
  for (const std::size_t i : {2U, 3U}) EXPECT_DOUBLE_EQ(*merits_of(sweep)[i].efficiency, 0.5);
  sweep.axes.erase(sweep.axes.begin());
  for (Assignment& p : sweep.points) p.erase(p.begin());
  EXPECT_FALSE(merits_of(sweep)[0].efficiency);  // nothing scales
}

TEST(SweepTable, NamesWhatStandsOut) {
  const std::string text = to_text(scaling());
  EXPECT_THAT(text, HasSubstr("4 points, 1 with faults"));
  EXPECT_THAT(text, HasSubstr("fastest           hosts 2: 5,760 tokens/s"));
  EXPECT_THAT(text, HasSubstr("least device time hosts 1: "));
  EXPECT_THAT(text, HasSubstr("needs 4 GiB more"));
}

TEST(SweepTable, HasALinePerPointInCsv) {
  const base::Csv csv = base::parse_csv(to_csv(scaling()), "sweep.csv");
  ASSERT_EQ(csv.records.size(), 5U);
  for (const base::CsvRecord& record : csv.records)
    EXPECT_EQ(record.cells.size(), csv.records[0].cells.size());
  EXPECT_EQ(csv.records[2].cells[0].text, "2");
  EXPECT_EQ(csv.records[2].cells[2].text, "0.625");
  EXPECT_EQ(csv.records[4].cells[1].text, "error");
}

TEST(PointResult, ReadsBackFromItsDocument) {
  PointResult r = point(8, 1.25);
  r.peak_bytes = 7;
  r.limit_bytes = 9;
  r.mfu = 0.4;
  r.flops_per_s_device = 1e14;
  r.band_low = 0.9;
  r.band_high = 1.2;
  r.gap = 0.01;
  r.message = "a note";
  EXPECT_EQ(point_result(to_json(r)), r);
}

TEST(PointStore, KeepsResultsFromRunToRun) {
  const tests::ScratchFolder folder;
  const auto file = folder.path() / "points.sqlite";
  {
    auto store = PointStore::open(file);
    ASSERT_TRUE(store) << base::to_string(store.error());
    EXPECT_FALSE(*store->find("a"));
    ASSERT_TRUE(store->put("a", point(8, 1)));
    ASSERT_TRUE(store->put("a", point(8, 2)));  // a later result takes its place
  }
  auto store = PointStore::open(file);
  ASSERT_TRUE(store);
  EXPECT_EQ(**store->find("a"), point(8, 2));
  EXPECT_FALSE(*store->find("b"));
}

std::string refusal(const std::filesystem::path& file) {
  const auto store = PointStore::open(file);
  return store ? "opened" : base::to_string(store.error());
}

TEST(PointStore, RefusesWhatIsNoDatabase) {
  const tests::ScratchFolder folder;
  folder.write("notes.txt", std::string(200, 'x'));
  EXPECT_THAT(refusal(folder.path() / "notes.txt"), HasSubstr("file is not a database"));
  EXPECT_THAT(refusal(folder.path() / "nowhere" / "points.sqlite"), HasSubstr("cannot be opened"));
}

TEST(PointStore, RefusesTheDatabaseOfAnotherProgram) {
  const tests::ScratchFolder folder;
  const auto file = folder.path() / "mail.sqlite";
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, "CREATE TABLE mail(text)", nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(database);
  EXPECT_THAT(refusal(file), HasSubstr("a database of something else"));
}

}  // namespace
}  // namespace orrery::cli

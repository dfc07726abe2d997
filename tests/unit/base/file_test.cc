#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/data_dir.h"
#include "base/json.h"
#include "tests/support/json_file.h"
#include "tests/support/scratch_folder.h"

namespace orrery::base {
namespace {

namespace fs = std::filesystem;

/// A fresh folder per test, removed after it.
class FileTest : public testing::Test {
 protected:
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }
  const tests::ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path();
};

TEST_F(FileTest, BytesGoThereAndBack) {
  std::string bytes(200'000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  ASSERT_TRUE(write_file_atomic(folder_ / "a.bin", bytes));
  EXPECT_EQ(read_file(folder_ / "a.bin"), bytes);
  ASSERT_TRUE(write_file_atomic(folder_ / "a.bin", ""));
  EXPECT_EQ(read_file(folder_ / "a.bin"), "");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileTest, AMissingFileIsNotFound) {
  const auto text = read_file(folder_ / "none");
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().at(0).code, ErrorCode::kNotFound);
  EXPECT_EQ(text.error().at(0).message, fmt::format("cannot read '{}': No such file or directory",
                                                    (folder_ / "none").string()));
}

TEST_F(FileTest, AFolderIsNotAFile) {
  const auto text = read_file(folder_);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().at(0).code, ErrorCode::kUnreadable);
  EXPECT_EQ(exit_code(text.error()), 1);
}

TEST_F(FileTest, AMissingFolderIsNotCreated) {
  const auto written = write_file_atomic(folder_ / "no" / "a", "x");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().at(0).code, ErrorCode::kNotFound);
  EXPECT_EQ(files(), 0);
}

TEST_F(FileTest, AFailedReplacementLeavesNoTemporary) {
  fs::create_directories(folder_ / "target" / "inside");  // a file cannot replace a folder
  EXPECT_FALSE(write_file_atomic(folder_ / "target", "x"));
  EXPECT_EQ(files(), 1);
}

TEST_F(FileTest, AReplacedFileKeepsItsMode) {
  ASSERT_TRUE(write_file_atomic(folder_ / "a", "1"));
  fs::permissions(folder_ / "a",
                  fs::perms::owner_read | fs::perms::owner_write | fs::perms::owner_exec);
  ASSERT_TRUE(write_file_atomic(folder_ / "a", "2"));
  EXPECT_EQ(fs::status(folder_ / "a").permissions(), fs::perms::owner_all);
}

TEST_F(FileTest, ALinkStandsAndWhatItLeadsToIsReplaced) {
  ASSERT_TRUE(write_file_atomic(folder_ / "real", "1"));
  fs::create_symlink(folder_ / "real", folder_ / "link");
  ASSERT_TRUE(write_file_atomic(folder_ / "link", "2"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "real"), "2");
}

TEST_F(FileTest, ADeviceIsWrittenToAndNotReplaced) {
  ASSERT_TRUE(write_file_atomic("/dev/null", "x"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const auto full = write_file_atomic("/dev/full", "x");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().at(0).code, ErrorCode::kIo);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(FileTest, ADeviceWithoutEndCannotBeRead) {
  const auto text = read_file("/dev/zero");
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().at(0).code, ErrorCode::kUnreadable);
}

TEST_F(FileTest, WhatCannotBeWrittenIsKnownBefore) {
  EXPECT_TRUE(check_writable(folder_ / "new"));
  EXPECT_EQ(files(), 0);
  for (const fs::path& wrong : {folder_, folder_ / "no" / "a", folder_ / ""}) {
    const auto writable = check_writable(wrong);
    ASSERT_FALSE(writable) << wrong;
    EXPECT_EQ(exit_code(writable.error()), 1) << wrong;
  }
}

TEST_F(FileTest, JsonGoesThereAndBack) {
  const Json document = {{"b", 0.1}, {"a", {1, 2, nullptr}}};
  ASSERT_TRUE(write_json(folder_ / "a.json", document));
  EXPECT_EQ(tests::read_json(folder_ / "a.json"), document);
}

TEST_F(FileTest, DataIsFoundInTheFolderOfTheEnvironmentFirst) {
  fs::create_directories(folder_ / "catalog");
  ASSERT_TRUE(write_file_atomic(folder_ / "catalog" / "dgx.yaml", "a: 1\n"));
  ::setenv("ORRERY_DATA", folder_.c_str(), 1);
  EXPECT_EQ(data_file("catalog/dgx.yaml"), folder_ / "catalog" / "dgx.yaml");
  EXPECT_EQ(list_data_files("catalog", ".yaml"), std::vector<std::string>{"dgx.yaml"});
  const auto missing = data_file("catalog/dgz.yaml");
  ::unsetenv("ORRERY_DATA");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().at(0).hint, "did you mean 'dgx.yaml'?");
}

TEST_F(FileTest, DataIsFoundInTheSourceTree) { EXPECT_TRUE(data_file("CMakePresets.json")); }

}  // namespace
}  // namespace orrery::base

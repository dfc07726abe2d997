/// The shipped profile is the import of the published folder.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/json.h"
#include "costmodel/profiles/galvatron_import.h"
#include "costmodel/profiles/profiles.h"
#include "tests/support/paths.h"

namespace orrery::costmodel {
namespace {

const std::filesystem::path kFolder =
    std::filesystem::path(tests::kSharedDir) / "data" / "galvatron" / "llama2-7b";

class GalvatronImport : public testing::Test {
 protected:
  void SetUp() override {
    if (std::filesystem::is_directory(kFolder)) return;
    if (std::getenv("CI") != nullptr) FAIL() << "reference data missing: " << kFolder;
    GTEST_SKIP() << "REFERENCE DATA MISSING: " << kFolder;
  }
  static model::ModelSpec llama() { return *model::find_model("llama-2-7b"); }
};

TEST_F(GalvatronImport, EqualsTheShippedProfile) {
  auto imported = import_galvatron(kFolder, llama());
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  const auto shipped = find_profile("llama2-7b-a100-8gpu", llama());
  ASSERT_TRUE(shipped.has_value()) << base::to_string(shipped.error());
  imported->name = shipped->name;
  imported->device = shipped->device;
  imported->provenance = shipped->provenance;
  EXPECT_EQ(base::to_text(model::to_json(*imported)), base::to_text(model::to_json(*shipped)));
}

TEST_F(GalvatronImport, IsReachedByThePathOfTheFolder) {
  const auto found = find_profile(kFolder.string(), llama());
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->layers.size(), 1U);
  EXPECT_EQ(found->layers[0].points.size(), 12U);
}

TEST_F(GalvatronImport, AnotherModelIsNoticedByItsParameters) {
  const auto found = import_galvatron(kFolder, *model::find_model("llama-2-13b"));
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().front().code, base::ErrorCode::kInconsistent);
}

TEST_F(GalvatronImport, SeveralLayerTypesAreRefused) {
  const auto found = import_galvatron(kFolder.parent_path() / "t5-3b", llama());
  ASSERT_FALSE(found.has_value());
}

}  // namespace
}  // namespace orrery::costmodel

#include "cli/shell/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/scratch_folder.h"

namespace orrery::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Doctor : public testing::Test {
 protected:
  void write(const char* name, const std::string& text) const { scratch_.write(name, text); }
  [[nodiscard]] static Finding find(const std::vector<Finding>& findings, const char* subject) {
    const auto found = std::ranges::find(findings, subject, &Finding::subject);
    return found == findings.end() ? Finding{"nothing", Health::kOk, ""} : *found;
  }
  [[nodiscard]] DoctorPlaces places() const {
    DoctorPlaces p;
    p.temporary = p.working = folder_;
    p.cache = folder_ / "cache" / "orrery";
    p.driver = folder_ / "gpus";
    p.devices = folder_ / "dev";
    return p;
  }
  const tests::ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path();
};

TEST_F(Doctor, CountsGpusByTheirModels) {
  EXPECT_EQ(find(examine_gpus(places()), "GPUs").health, Health::kMissing);
  write("gpus/0000:01:00.0/information", "Model: \t NVIDIA H100\nIRQ: 7\n");
  write("gpus/0000:02:00.0/information", "Model: \t NVIDIA H100\n");
  write("dev/nvidiactl", "");
  const auto findings = examine_gpus(places());
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].health, Health::kOk);
  EXPECT_EQ(findings[0].found, "2 (NVIDIA H100, NVIDIA H100)");
}

TEST_F(Doctor, GpusThatCannotBeOpenedAreAProblem) {
  write("gpus/0000:01:00.0/information", "Model: NVIDIA H100\n");
  const Finding access = find(examine_gpus(places()), "GPU access");
  EXPECT_EQ(access.health, Health::kProblem);
  EXPECT_THAT(access.found, HasSubstr("nvidiactl: No such file"));
}

TEST_F(Doctor, ACacheThatIsNotThereYetIsLookedAtThroughItsParent) {
  const Finding cache = find(examine_folders(places()), "cache");
  EXPECT_EQ(cache.health, Health::kOk);
  EXPECT_THAT(cache.found, HasSubstr("(will be created)"));
  EXPECT_FALSE(fs::exists(places().cache));
}

TEST_F(Doctor, AFileInPlaceOfTheCacheIsMissing) {
  write("cache/orrery", "");
  const Finding cache = find(examine_folders(places()), "cache");
  EXPECT_EQ(cache.health, Health::kMissing);
  EXPECT_THAT(cache.advice, HasSubstr("XDG_CACHE_HOME"));
}

TEST_F(Doctor, ATemporaryFolderThatIsGoneIsAProblem) {
  DoctorPlaces p = places();
  p.temporary = folder_ / "cache" / "no";
  write("cache/no", "");
  EXPECT_EQ(find(examine_folders(p), "temporary folder").health, Health::kProblem);
}

TEST_F(Doctor, CalibrationsAreListedByName) {
  EXPECT_EQ(find(examine_folders(places()), "calibrations").health, Health::kMissing);
  write("cache/orrery/profiles/local-2-ranks-fp32.json", "{}");
  const Finding found = find(examine_folders(places()), "calibrations");
  EXPECT_EQ(found.health, Health::kOk);
  EXPECT_EQ(found.found, "local-2-ranks-fp32");
}

TEST_F(Doctor, MpirunIsLookedForOnThePath) {
  DoctorPlaces p = places();
  p.search_path = "/nowhere:" + folder_.string();
  EXPECT_EQ(find(examine_executor(p), "MPI").health, Health::kMissing);
  write("mpirun", "");
  fs::permissions(folder_ / "mpirun", fs::perms::owner_all);
  EXPECT_EQ(find(examine_executor(p), "MPI").health, Health::kOk);
}

TEST_F(Doctor, LibrariesOfTheExecutorAreAskedOfTheLoader) {
  DoctorPlaces p = places();
  p.executor = "/proc/self/exe";
  const auto findings = examine_executor(p);
  EXPECT_EQ(find(findings, "executor").health, Health::kOk);
  EXPECT_EQ(find(findings, "LibTorch").found, "part of the executor");
  p.executor = folder_ / "nothing";
  EXPECT_EQ(find(examine_executor(p), "executor").health, Health::kProblem);
}

TEST_F(Doctor, DataThatShipAreReadThrough) {
  DoctorPlaces p = places();
  p.data_variable = (folder_ / "nowhere").string();
  const auto findings = examine_data(p);
  EXPECT_EQ(find(findings, "ORRERY_DATA").health, Health::kProblem);
  EXPECT_EQ(find(findings, "data").health, Health::kProblem);  // the roots of `places` are none
  for (const char* what : {"models", "clusters", "profiles", "devices measured", "software"})
    EXPECT_EQ(find(findings, what).health, Health::kOk) << what << find(findings, what).found;
}

}  // namespace
}  // namespace orrery::cli

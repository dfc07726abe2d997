#include "cli/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace orrery::cli {
namespace {

using testing::HasSubstr;

std::string error_of(const char* text) {
  const auto cluster = cluster_of_gpus(text);
  return cluster ? "" : base::to_string(cluster.error());
}

TEST(Gpus, AreWholeHostsOfTheUsualKind) {
  const auto cluster = cluster_of_gpus("64xH100");
  ASSERT_TRUE(cluster) << error_of("64xH100");
  EXPECT_EQ(cluster->cluster, "dgx-h100");
  EXPECT_EQ(cluster->hosts, 8);
}

TEST(Gpus, AreFoundInAnyCaseAndByTheirWholeName) {
  EXPECT_EQ(cluster_of_gpus("8xmi300x")->cluster, "mi300x");
  EXPECT_EQ(cluster_of_gpus("8xA100-SXM4-40GB")->cluster, "dgx-a100-40g");
  EXPECT_EQ(cluster_of_gpus("8xA100")->cluster, "dgx-a100");
}

TEST(Gpus, ThatDoNotFillHostsAreRefusedWithTheNeighbours) {
  EXPECT_THAT(error_of("60xH100"), HasSubstr("60 devices are not whole hosts: 'dgx-h100' has 8; "
                                             "56xH100 or 64xH100"));
  EXPECT_THAT(error_of("4xH100"), HasSubstr("; 8xH100"));
}

TEST(Gpus, OfSeveralHostsAskForOne) {
  EXPECT_THAT(error_of("16xV100"), HasSubstr("dgx-1-v100, dgx-2-v100"));
}

TEST(Gpus, ThatNobodyHasAndThatAreNoNumberAreRefused) {
  EXPECT_THAT(error_of("8xH101"), HasSubstr("no host of the catalog has a device 'H101'; known"));
  for (const char* text : {"", "x", "8", "8x", "xH100", "0xH100", "-8xH100", "8.5xH100"})
    EXPECT_THAT(error_of(text), HasSubstr("is no number of devices")) << text;
}

}  // namespace
}  // namespace orrery::cli

/// A profile folder as Hetu-Galvatron's profilers leave it, written here from the measured facts of
/// tests/data/llama2_7b_a100.json: its import is the profile that ships.
#include "costmodel/profiles/galvatron_import.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "base/json.h"
#include "costmodel/profiles/profiles.h"
#include "tests/support/json_file.h"
#include "tests/support/paths.h"
#include "tests/support/scratch_folder.h"

namespace orrery::costmodel {
namespace {

namespace fs = std::filesystem;

/// Name in that tool's files: "<name>_<hosts>nodes_8gpus_per_node.json".
std::string file_of(const char* name, int hosts) {
  return fmt::format("hardware_configs/{}_{}nodes_8gpus_per_node.json", name, hosts);
}

class GalvatronImport : public testing::Test {
 protected:
  void SetUp() override {
    const auto read =
        tests::read_json(fs::path(tests::kSourceDir) / "tests/data/llama2_7b_a100.json");
    ASSERT_TRUE(read.has_value()) << base::to_string(read.error());
    facts_ = *read;
    fs::create_directories(folder_ / "configs");
    fs::create_directories(folder_ / "hardware_configs");
    write_computation();
    write(
        "configs/memory_profiling_bf16_all.json",
        {{"layertype_0_sp", {{"2048", {{"parameter_size", facts_.at("layer_parameters_mib")}}}}}});
    for (const int hosts : {1, 2}) write_bandwidths(hosts);
    write_times();
    write("hardware_configs/overlap_coefficient.json",
          {{"overlap_coe", facts_.at("overlap_slowdown")}});
  }
  void write(const std::string& name, const base::Json& json) const {
    std::ofstream(folder_ / name) << json.dump(1);
  }

  /// Per-sample times of a layer and of the rest, by batch.
  void write_computation() const {
    base::Json json;
    for (std::size_t i = 0; i < facts_.at("batches").size(); ++i) {
      const int batch = facts_.at("batches").at(i);
      json[fmt::format("layertype_0_bsz{}_seq2048", batch)] = facts_.at("layer_ms").at(i);
      json[fmt::format("layertype_other_bsz{}_seq2048", batch)] = facts_.at("other_ms").at(i);
    }
    write("configs/computation_profiling_bf16_all.json", json);
  }

  void write_bandwidths(int hosts) const {
    base::Json reduce, send;
    for (const base::Json& row : facts_.at("all_reduce_gb_per_s")) {
      if (row.at("hosts") != hosts) continue;
      const int ranks = row.at("ranks"), side_by_side = row.at("side_by_side").get<bool>() ? 1 : 0;
      reduce[fmt::format("allreduce_size_{}_consec_{}", ranks, side_by_side)] = row.at("bandwidth");
    }
    for (const base::Json& row : facts_.at("send_gb_per_s")) {
      if (row.at("hosts") == hosts)
        send[fmt::format("pp_size_{}", row.at("stages").get<int>())] = row.at("bandwidth");
    }
    write(file_of("allreduce_bandwidth", hosts), reduce);
    write(file_of("p2p_bandwidth", hosts), send);
  }

  void write_times() const {
    base::Json json;
    for (const auto& [ranks, ms] : facts_.at("all_reduce_of_1_mib_ms").items())
      json[fmt::format("allreduce_size_{}_1MB_time", ranks)] = ms;
    for (const auto& [ranks, times] : facts_.at("all_to_all_ms_of_powers_of_2_mib").items()) {
      for (std::size_t i = 0; i < times.size(); ++i)
        json[fmt::format("all2all_size_{}_{}MB_time", ranks, 1 << i)] = times.at(i);
    }
    write(file_of("sp_time", 1), json);
  }

  static model::ModelSpec llama() { return *model::find_model("llama-2-7b"); }

  base::Json facts_;
  const tests::ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path();
};

/// Groups are compared as sets: the order of a folder's entries is that of their names.
std::string sorted_text(model::Profile profile) {
  std::ranges::sort(profile.collectives, {}, [](const model::CollectiveTimes& c) {
    return std::tuple(c.op, c.hosts, c.size, c.stride);
  });
  return base::to_text(model::to_json(profile));
}

TEST_F(GalvatronImport, EqualsTheShippedProfile) {
  auto imported = import_galvatron(folder_, llama());
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  const auto shipped = find_profile("llama2-7b-a100-8gpu", llama());
  ASSERT_TRUE(shipped.has_value()) << base::to_string(shipped.error());
  imported->name = shipped->name;
  imported->device = shipped->device;
  imported->provenance = shipped->provenance;
  EXPECT_EQ(imported->collectives.size(), 19U);
  EXPECT_EQ(sorted_text(*imported), sorted_text(*shipped));
}

TEST_F(GalvatronImport, TimesOfWholeModelsGiveThoseOfALayer) {
  base::Json json;
  for (const base::Json& row : facts_.at("whole_models_ms")) {
    for (const int layers : {2, 4})
      json[fmt::format("layernum[{}]_bsz{}_seq2048", layers, row.at("batch").get<int>())] =
          row.at(fmt::format("layers_{}", layers));
  }
  write("configs/computation_profiling_bf16_all.json", json);
  const auto imported = import_galvatron(folder_, llama());
  ASSERT_TRUE(imported.has_value()) << base::to_string(imported.error());
  ASSERT_EQ(imported->layers.size(), 1U);
  ASSERT_EQ(imported->layers[0].points.size(), 2U);
  for (const model::LayerPoint& point : imported->layers[0].points) {
    const auto i = static_cast<std::size_t>(point.batch - 1);
    EXPECT_DOUBLE_EQ(point.layer_seconds_per_sample,
                     facts_.at("layer_ms").at(i).get<double>() / 1e3);
    EXPECT_DOUBLE_EQ(point.other_seconds_per_sample,
                     facts_.at("other_ms").at(i).get<double>() / 1e3);
  }
}

TEST_F(GalvatronImport, IsReachedByThePathOfTheFolder) {
  const auto found = find_profile(folder_.string(), llama());
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->layers.size(), 1U);
  EXPECT_EQ(found->layers[0].points.size(), 12U);
}

TEST_F(GalvatronImport, AnotherModelIsNoticedByItsParameters) {
  const auto found = import_galvatron(folder_, *model::find_model("llama-2-13b"));
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().front().code, base::ErrorCode::kInconsistent);
}

/// As that tool profiles T5: an encoder's and a decoder's blocks.
TEST_F(GalvatronImport, SeveralLayerTypesAreRefused) {
  write("configs/computation_profiling_bf16_all.json", {{"layernum[2,2]_bsz1_seq[512,512]", 11.6},
                                                        {"layertype_0_bsz1_seq512", 1.4},
                                                        {"layertype_1_bsz1_seq512", 2.7}});
  const auto found = import_galvatron(folder_, llama());
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().size(), 2U);
  EXPECT_EQ(found.error().front().code, base::ErrorCode::kUnknownKey);
}

}  // namespace
}  // namespace orrery::costmodel

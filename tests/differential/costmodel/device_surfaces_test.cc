/// The surfaces that ship against measured points that they were not fitted to: every fifth of
/// those that experiments/surfaces/held_out.py holds back. It takes them all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "base/csv.h"
#include "base/file.h"
#include "costmodel/compute/compute.h"
#include "costmodel/profiles/profiles.h"
#include "tests/support/paths.h"
#include "topologies/topology.h"

namespace orrery::costmodel {
namespace {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

struct Point {
  SegmentShape shape;
  double seconds = 0;
};

SegmentShape product(const std::vector<std::int64_t>& n) {
  SegmentShape s;
  s.kind = SegmentKind::kMlpIn;
  s.dtype = model::DType::kBFloat16;
  s.sequences = 1;
  s.tokens = n[0];
  s.out = n[1];
  s.in = n[2];
  return s;
}

SegmentShape attention(const std::vector<std::int64_t>& n) {
  SegmentShape s;
  s.kind = SegmentKind::kAttention;
  s.dtype = model::DType::kBFloat16;
  s.sequences = n[0];
  s.tokens = n[1];
  s.heads = n[2];
  s.kv_heads = n[3];
  s.head_dim = n[4];
  return s;
}

/// Measured points of a device's kind of work: "product" or "attention".
std::vector<Point> points_of(const std::string& device, const std::string& work) {
  const auto path = std::filesystem::path(tests::kSourceDir) / "tests/data/device_points.csv";
  const auto text = base::read_file(path);
  EXPECT_TRUE(text.has_value()) << path;
  std::vector<Point> points;
  for (const base::CsvRecord& record : base::parse_csv(*text, path.string()).records) {
    const auto& cells = record.cells;
    if (cells.at(0).text != device || cells.at(1).text != work) continue;
    std::istringstream stream(cells.at(2).text);
    std::vector<std::int64_t> sizes;
    for (std::int64_t size = 0; stream >> size;) sizes.push_back(size);
    points.push_back(
        {work == "product" ? product(sizes) : attention(sizes), std::stod(cells.at(3).text) / 1e6});
  }
  return points;
}

struct Machine {
  const char* profile;
  double peak, bandwidth;  // datasheet: experiments/surfaces/devices.json
  std::size_t products, attentions;
};
constexpr Machine kMachines[] = {{"a100", 312e12, 2.039e12, 349, 70},
                                 {"h100", 989.4e12, 3.35e12, 349, 70},
                                 {"h200", 989.4e12, 4.8e12, 454, 70},
                                 {"b200", 2250e12, 8e12, 454, 70},
                                 {"gb200", 2500e12, 8e12, 349, 0}};

std::vector<double> errors(const SurfacePrices& prices, const std::vector<Point>& points) {
  std::vector<double> out;
  for (const Point& p : points)
    out.push_back(std::abs(prices.seconds(p.shape, Phase::kF) / p.seconds - 1));
  return out;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

SurfacePrices prices_of(const Machine& machine) {
  const auto path = std::filesystem::path(tests::kSourceDir) / "costmodel" / "profiles" /
                    "devices" / (std::string(machine.profile) + ".json");
  const auto profile = model::load_profile(path.string());
  EXPECT_TRUE(profile.has_value()) << base::to_string(profile.error());
  return {profile->surfaces.front(),
          std::nullopt,
          {base::FlopsPerSecond(machine.peak), base::BytesPerSecond(machine.bandwidth)}};
}

TEST(DeviceSurfaces, PredictProductsAndAttentionFromATenthOfTheirPoints) {
  std::vector<double> all;
  for (const Machine& machine : kMachines) {
    const SurfacePrices prices = prices_of(machine);
    for (const bool products : {true, false}) {
      const auto points = points_of(machine.profile, products ? "product" : "attention");
      ASSERT_EQ(points.size(), products ? machine.products : machine.attentions);
      if (points.empty()) continue;  // attention was not measured on every device
      const std::vector<double> part = errors(prices, points);
      std::printf("%-6s %-9s %4zu points: median %.3f, 90th percentile %.3f\n", machine.profile,
                  products ? "products" : "attention", part.size(), quantile(part, 0.5),
                  quantile(part, 0.9));
      EXPECT_LT(quantile(part, 0.5), 0.06) << machine.profile;
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  std::printf("all: median %.4f, 90th percentile %.4f\n", quantile(all, 0.5), quantile(all, 0.9));
  EXPECT_EQ(all.size(), 2235U);
  EXPECT_LE(quantile(all, 0.5), 0.04);
  EXPECT_LE(quantile(all, 0.9), 0.12);
}

}  // namespace
}  // namespace orrery::costmodel

/// The surfaces that ship, fitted to a tenth of the measured points by experiments/surfaces/fit.py,
/// against the points that were held back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

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

const std::filesystem::path kFolder = std::filesystem::path(tests::kSharedDir) / "data" / "compute";

struct Point {
  SegmentShape shape;
  std::vector<double> logs;  // of its sizes
  double seconds = 0;
};

/// Points of a device from a table of sizes and milliseconds.
std::vector<Point> read_points(const char* file, const std::string& device,
                               const std::vector<std::string>& sizes,
                               SegmentShape (*shape)(const std::vector<std::int64_t>&)) {
  const auto text = base::read_file((kFolder / file).string());
  EXPECT_TRUE(text.has_value());
  const base::Csv csv = base::parse_csv(*text, file);
  std::map<std::string, std::size_t> column;
  for (std::size_t i = 0; i < csv.records[0].cells.size(); ++i)
    column[csv.records[0].cells[i].text] = i;
  std::vector<Point> points;
  for (std::size_t r = 1; r < csv.records.size(); ++r) {
    const auto& cells = csv.records[r].cells;
    if (cells[column.at("device")].text != device) continue;
    std::vector<std::int64_t> numbers;
    Point p;
    for (const std::string& name : sizes) {
      numbers.push_back(std::stoll(cells[column.at(name)].text));
      p.logs.push_back(std::log2(static_cast<double>(numbers.back())));
    }
    p.shape = shape(numbers);
    p.seconds = std::stod(cells[column.at("latency_ms")].text) / 1e3;
    points.push_back(std::move(p));
  }
  return points;
}

double squared_distance(const Point& a, const Point& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.logs.size(); ++i)
    sum += (a.logs[i] - b.logs[i]) * (a.logs[i] - b.logs[i]);
  return sum;
}

/// The tenth of experiments/surfaces/fit.py: from the middle on, always the point farthest from
/// those taken.
std::vector<bool> spread(const std::vector<Point>& points) {
  Point middle = points.front();
  for (std::size_t i = 0; i < middle.logs.size(); ++i) {
    double sum = 0;
    for (const Point& p : points) sum += p.logs[i];
    middle.logs[i] = sum / static_cast<double>(points.size());
  }
  std::vector<double> distance;
  for (const Point& p : points) distance.push_back(-squared_distance(p, middle));
  std::vector<bool> taken(points.size(), false);
  for (std::size_t count = 0; count < points.size() / 10; ++count) {
    const auto next = static_cast<std::size_t>(std::max_element(distance.begin(), distance.end()) -
                                               distance.begin());
    taken[next] = true;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double d = squared_distance(points[i], points[next]);
      distance[i] = count == 0 ? d : std::min(distance[i], d);
    }
  }
  return taken;
}

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

struct Machine {
  const char* name;  // in the tables
  const char* profile;
  double peak, bandwidth;  // datasheet: experiments/surfaces/devices.json
};
constexpr Machine kMachines[] = {{"A100-SXM4-80GB", "a100", 312e12, 2.039e12},
                                 {"H100-SXM5-80GB", "h100", 989.4e12, 3.35e12},
                                 {"H200-SXM5", "h200", 989.4e12, 4.8e12},
                                 {"B200", "b200", 2250e12, 8e12},
                                 {"GB200", "gb200", 2500e12, 8e12}};

/// Errors of the points held back.
std::vector<double> errors(const SurfacePrices& prices, const std::vector<Point>& points) {
  const std::vector<bool> taken = spread(points);
  std::vector<double> out;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!taken[i])
      out.push_back(std::abs(prices.seconds(points[i].shape, Phase::kF) / points[i].seconds - 1));
  }
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

class DeviceSurfaces : public testing::Test {
 protected:
  void SetUp() override {
    if (std::filesystem::is_directory(kFolder)) return;
    if (std::getenv("CI") != nullptr) FAIL() << "reference data missing: " << kFolder;
    GTEST_SKIP() << "REFERENCE DATA MISSING: " << kFolder;
  }
};

TEST_F(DeviceSurfaces, PredictProductsAndAttentionFromATenthOfTheirPoints) {
  std::vector<double> all;
  for (const Machine& machine : kMachines) {
    const SurfacePrices prices = prices_of(machine);
    for (const bool products : {true, false}) {
      const auto points =
          products ? read_points("gemm_bf16.csv", machine.name, {"m", "n", "k"}, product)
                   : read_points("attention_forward_bf16.csv", machine.name,
                                 {"batch", "sequence", "heads", "kv_heads", "head_dim"}, attention);
      if (points.empty()) continue;  // attention was not measured on every device
      const std::vector<double> part = errors(prices, points);
      std::printf("%-15s %-9s %5zu points held back: median %.3f, 90th percentile %.3f\n",
                  machine.name, products ? "products" : "attention", part.size(),
                  quantile(part, 0.5), quantile(part, 0.9));
      EXPECT_LT(quantile(part, 0.5), 0.06) << machine.name;
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  std::printf("all: median %.4f, 90th percentile %.4f\n", quantile(all, 0.5), quantile(all, 0.9));
  EXPECT_LE(quantile(all, 0.5), 0.04);
  EXPECT_LE(quantile(all, 0.9), 0.12);
}

}  // namespace
}  // namespace orrery::costmodel

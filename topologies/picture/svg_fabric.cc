#include "topologies/picture/svg_fabric.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <vector>

#include "base/numbers.h"
#include "base/units.h"

namespace orrery::topologies {

namespace {

using enum FabricShape;

constexpr uint32_t kMaxShown = 16;
constexpr uint32_t kMaxGroups = 24;
constexpr uint32_t kMaxSide = 8;
constexpr double kWidth = kPageWidth - 2 * kMargin;
constexpr std::string_view kSwitchFill = "#dbe7f5";
constexpr std::string_view kHostFill = "#cfe8d8";

std::string title_of(const Topology& t) {
  const FabricSpec& spec = t.cluster()->spec;
  const auto switches = t.cluster()->fabric->switches().size();
  const std::string paths =
      spec.paths == PathChoice::kFluid ? "" : fmt::format(", {}", to_string(spec.paths));
  return fmt::format("fabric {} ({}{}): {} switch{}, {} hosts", spec.name, to_string(spec.shape),
                     paths, switches, switches == 1 ? "" : "es", t.hosts());
}

/// Centres of the first boxes of a row of n, and the text that tells of the others.
std::vector<Point> row(Canvas& canvas, size_t n, double y) {
  const size_t shown = n > kMaxShown ? kMaxShown - 1 : n;
  const double slot = (kWidth - 40) / real(std::max<size_t>(n > shown ? shown + 1 : shown, 1));
  std::vector<Point> centres;
  for (size_t i = 0; i < shown; ++i) centres.push_back({kMargin + 20 + (real(i) + 0.5) * slot, y});
  if (n > shown)
    canvas.text({kMargin + 20 + (real(shown) + 0.5) * slot, y + 4}, fmt::format("… {} in all", n),
                12);
  return centres;
}

double box_width(size_t shown) {
  return std::min(130.0, (kWidth - 40) / real(std::max<size_t>(shown, 1)) - 8);
}

double draw_tiers(Canvas& canvas, const Topology& t, double top) {
  const ClusterShape& shape = *t.cluster();
  const auto switches = shape.fabric->switches();
  constexpr double kRow = 92;
  std::vector<std::vector<uint32_t>> tiers;
  for (uint32_t s = 0; s < switches.size(); ++s) {
    if (switches[s].tier >= tiers.size()) tiers.resize(switches[s].tier + 1);
    tiers[switches[s].tier].push_back(s);
  }
  const auto rows = real(tiers.size() + 1);
  std::vector<Point> at(switches.size());
  for (size_t tier = 0; tier < tiers.size(); ++tier) {
    const auto centres =
        row(canvas, tiers[tier].size(), top + 40 + kRow * (rows - 1.5 - real(tier)));
    for (size_t i = 0; i < centres.size(); ++i) {
      at[tiers[tier][i]] = centres[i];
      canvas.box(centres[i], tiers[tier].size() == 1 ? 420 : box_width(centres.size()), 30,
                 kSwitchFill, switches[tiers[tier][i]].name);
    }
  }
  const std::string_view stroke = canvas.colour(shape.spec.kind);
  for (const FabricLink& link : shape.fabric->links()) {
    if (link.from < link.to && at[link.from].x > 0 && at[link.to].x > 0)
      canvas.line(at[link.from], at[link.to], stroke);
  }
  const auto hosts = row(canvas, t.hosts(), top + 40 + kRow * (rows - 0.5));
  for (uint32_t host = 0; host < hosts.size(); ++host) {
    canvas.box(hosts[host], box_width(hosts.size()), 30, kHostFill, fmt::format("host {}", host));
    const HostRun& run = shape.run_of_host(host);
    std::set<uint32_t> leaves;
    for (uint32_t j = 0; j < run.nics.size(); ++j)
      leaves.insert(t.link(LinkId(run.cable_up(host, j))).to.raw() - shape.fabric_vertex);
    for (const uint32_t leaf : leaves) {
      if (at[leaf].x > 0) canvas.line(hosts[host], at[leaf], stroke);
    }
  }
  return 40 + kRow * rows;
}

double draw_dragonfly(Canvas& canvas, const Topology& t, double top) {
  const ClusterShape& shape = *t.cluster();
  const uint32_t routers = shape.spec.routers_per_group;
  const auto groups = as_u32(shape.fabric->switches().size() / routers),
             shown = std::min(groups, kMaxGroups);
  const std::string_view stroke = canvas.colour(shape.spec.kind);
  const Point centre{kPageWidth / 2, top + 270};
  const auto spot = [&](uint32_t g) {
    const double angle = 2 * std::numbers::pi * g / shown - std::numbers::pi / 2;
    return Point{centre.x + 330 * std::cos(angle), centre.y + 195 * std::sin(angle)};
  };
  for (uint32_t g = 0; g < shown; ++g) {
    for (uint32_t other = g + 1; other < shown; ++other)
      canvas.line(spot(g), spot(other), stroke, 0.8);
    canvas.box(spot(g), 96, 36, kSwitchFill, fmt::format("group {}", g));
    canvas.text({spot(g).x, spot(g).y + 34}, fmt::format("{} routers", routers), 11);
  }
  if (groups > shown)
    canvas.text({centre.x, centre.y + 245}, fmt::format("… {} groups in all", groups), 12);
  canvas.text(
      {kMargin + 14, top + 44},
      fmt::format("routers of a group are joined all to all; {} cards and {} global links each",
                  shape.spec.ports_per_router, shape.spec.global_links_per_router),
      12, "start");
  return 540;
}

double draw_torus(Canvas& canvas, const Topology& t, double top) {
  const ClusterShape& shape = *t.cluster();
  std::vector<uint32_t> sides = shape.spec.dimensions;
  while (sides.size() < 3) sides.insert(sides.begin(), 1);
  const uint32_t planes = std::min(sides[0], kMaxSide), rows = std::min(sides[1], kMaxSide),
                 columns = std::min(sides[2], kMaxSide);
  const std::string_view stroke = canvas.colour(shape.spec.kind);
  const double slot = std::min(78.0, (kWidth - 80) / (planes * (columns + 0.8)));
  const auto spot = [&](uint32_t p, uint32_t r, uint32_t c) {
    const double x0 = kPageWidth / 2 - slot * planes * (columns + 0.8) / 2;
    return Point{x0 + slot * (p * (columns + 0.8) + c + 0.9), top + 80 + r * slot + p * 12.0};
  };
  const auto wraps = [](uint32_t size, uint32_t shown) { return size == shown && size > 2; };
  for (uint32_t p = 0; p < planes; ++p) {
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t c = 0; c < columns; ++c) {
        if (c + 1 < columns) canvas.line(spot(p, r, c), spot(p, r, c + 1), stroke);
        if (r + 1 < rows) canvas.line(spot(p, r, c), spot(p, r + 1, c), stroke);
        if (p + 1 < planes && r == 0)
          canvas.arc(spot(p, r, c), spot(p + 1, r, c), {0, -34}, stroke, 0.6);
        canvas.circle(spot(p, r, c), std::min(14.0, slot / 4), kSwitchFill, "#333333");
      }
      if (wraps(sides[2], columns))
        canvas.arc(spot(p, r, 0), spot(p, r, columns - 1), {0, -slot * 0.6}, stroke, 0.8);
    }
    for (uint32_t c = 0; c < columns && wraps(sides[1], rows); ++c) {
      canvas.arc(spot(p, 0, c), spot(p, rows - 1, c), {slot * 0.6, 0}, stroke, 0.8);
    }
  }
  const double height = 90 + rows * slot + planes * 12.0;
  std::string note = "a router per host; every dimension wraps around";
  if (sides[0] > planes || sides[1] > rows || sides[2] > columns)
    note +=
        fmt::format("; of {} x {} x {} routers the first are shown", sides[0], sides[1], sides[2]);
  canvas.text({kMargin + 14, top + height - 14}, note, 12, "start");
  return height;
}

}  // namespace

double draw_fabric(Canvas& canvas, const Topology& t, double top) {
  double height = 0;
  switch (t.cluster()->spec.shape) {
    case kSwitch:
    case kLeafSpine:
    case kRailOptimised:
    case kTree:
    case kFatTree: height = draw_tiers(canvas, t, top); break;
    case kDragonfly: height = draw_dragonfly(canvas, t, top); break;
    case kTorus: height = draw_torus(canvas, t, top); break;
  }
  canvas.panel(kMargin, top, kWidth, height, title_of(t));
  return height;
}

}  // namespace orrery::topologies

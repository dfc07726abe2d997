#include "topologies/picture/svg_host.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/numbers.h"

namespace orrery::topologies {

namespace {

using enum VertexKind;

constexpr uint32_t kMaxShown = 16;  // parts of a row; of more, half of them are shown
constexpr double kRowHeight = 78;
constexpr double kTitleHeight = 40;

std::string_view fill_of(VertexKind kind) {
  return base::EnumNames<kHostBridge>("#cfe8d8", "#dbe7f5", "#fbe3cf", "#e9e3f2")[kind];
}

/// Which row each vertex is in, from the bottom.
class Rows {
 public:
  Rows(const Topology& t, uint32_t first, uint32_t count, uint32_t first_link, uint32_t links)
      : row_(count, kUnset) {
    std::vector<std::vector<uint32_t>> near(count);
    for (const Link& link : t.links().subspan(first_link, links)) {
      near[link.from.raw() - first].push_back(link.to.raw() - first);
      near[link.to.raw() - first].push_back(link.from.raw() - first);
    }
    const auto kind = [&](uint32_t v) { return t.vertices()[first + v].kind; };
    const auto only_devices = [&](uint32_t v) {
      return std::ranges::all_of(near[v], [&](uint32_t u) { return kind(u) == kDevice; });
    };
    bool private_switch = false;
    for (uint32_t v = 0; v < count; ++v)
      private_switch = private_switch || (kind(v) == kSwitch && only_devices(v));
    const uint32_t devices = private_switch ? 1 : 0;
    std::vector<uint32_t> queue;
    for (uint32_t v = 0; v < count; ++v) {
      if (kind(v) == kDevice) {
        row_[v] = devices;
        queue.push_back(v);
      }
      if (kind(v) == kSwitch && only_devices(v)) row_[v] = 0;
    }
    uint32_t top = devices;
    for (size_t head = 0; head < queue.size(); ++head) {
      for (const uint32_t v : near[queue[head]]) {
        if (row_[v] != kUnset || kind(v) != kSwitch) continue;
        row_[v] = row_[queue[head]] + 1;
        top = std::max(top, row_[v]);
        queue.push_back(v);
      }
    }
    count_ = top + 1;
    for (const VertexKind upper : {kHostBridge, kNic}) {
      bool any = false;
      for (uint32_t v = 0; v < count; ++v) {
        if (kind(v) != upper) continue;
        row_[v] = count_;
        any = true;
      }
      if (any) ++count_;
    }
    for (uint32_t& row : row_) row = row == kUnset ? 0 : row;  // a switch that reaches no device
  }
  uint32_t count() const { return count_; }
  uint32_t of(uint32_t v) const { return row_[v]; }

 private:
  static constexpr uint32_t kUnset = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> row_;
  uint32_t count_ = 0;
};

}  // namespace

double draw_host(Canvas& canvas, const Topology& t, uint32_t first_vertex, uint32_t vertices,
                 uint32_t first_link, uint32_t links, double top, std::string_view title) {
  const Rows rows(t, first_vertex, vertices, first_link, links);
  std::vector<std::vector<uint32_t>> members(rows.count());
  for (uint32_t v = 0; v < vertices; ++v) members[rows.of(v)].push_back(v);
  std::vector<std::optional<Point>> at(vertices);
  const double width = kPageWidth - 2 * kMargin,
               bottom_row = top + kTitleHeight + kRowHeight * (rows.count() - 0.5);
  bool mesh = false;
  for (uint32_t r = 0; r < rows.count(); ++r) {
    const auto n = count_of(members[r]), shown = n > kMaxShown ? kMaxShown / 2 : n;
    const double y = bottom_row - r * kRowHeight,
                 slot = (width - 40) / (n > shown ? shown + 1 : std::max(shown, 1u));
    for (uint32_t i = 0; i < shown; ++i) {
      const Vertex& vertex = t.vertices()[first_vertex + members[r][i]];
      at[members[r][i]] = Point{kMargin + 20 + (i + 0.5) * slot, y};
      canvas.box(*at[members[r][i]], std::min(slot - 8, n == 1 ? 420.0 : 120.0), 30,
                 fill_of(vertex.kind), vertex.name);
    }
    const double x = kMargin + 20 + (shown + 0.5) * slot;
    if (n > shown) canvas.text({x, y + 4}, fmt::format("… {} in all", n), 12);
  }
  for (const Link& link : t.links().subspan(first_link, links)) {
    const auto a = at[link.from.raw() - first_vertex], b = at[link.to.raw() - first_vertex];
    if (!a || !b || link.from > link.to) continue;  // both directions are one stroke
    const std::string_view stroke = canvas.colour(link.kind);
    if (a->y == b->y) {
      mesh = mesh || a->y == bottom_row;
      const double distance = std::abs(a->x - b->x), side = a->y == bottom_row ? 1 : -1;
      canvas.arc({a->x, a->y + side * 15}, {b->x, b->y + side * 15},
                 {0, side * (18 + distance * 0.13)}, stroke);
    } else {
      canvas.line(*a, *b, stroke);
    }
  }
  const double height = kTitleHeight + kRowHeight * rows.count() + (mesh ? 50 : 0);
  canvas.panel(kMargin, top, width, height, title);
  return height;
}

}  // namespace orrery::topologies

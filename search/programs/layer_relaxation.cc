#include "search/programs/layer_relaxation.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace orrery::search {
namespace {

/// True when `middle` lies on or above the segment left-right, m ascending.
bool above(const Item& left, const Item& middle, const Item& right) {
  return (middle.cost - left.cost) * (right.memory - left.memory) >=
         (right.cost - left.cost) * (middle.memory - left.memory);
}

/// Leaves the lower hull, cost strictly descending, at the front of `order`; returns how many.
std::size_t lower_hull(std::span<const Item> items, std::span<std::uint32_t> order) {
  std::size_t h = 0;
  for (const std::uint32_t i : order) {
    if (h > 0 && items[i].cost >= items[order[h - 1]].cost) continue;
    while (h >= 2 && above(items[order[h - 2]], items[order[h - 1]], items[i])) --h;
    order[h++] = i;
  }
  return h;
}

}  // namespace

void sort_by_memory(std::span<const Item> items, std::span<std::uint32_t> order) {
  std::ranges::sort(order, [&](std::uint32_t x, std::uint32_t y) {
    if (items[x].memory != items[y].memory) return items[x].memory < items[y].memory;
    if (items[x].cost != items[y].cost) return items[x].cost < items[y].cost;
    return x < y;
  });
}

LinearRelaxation relax(std::span<const Item> items, int layers, std::int64_t capacity) {
  // Called often, for a few dozen items.
  std::array<std::uint32_t, 64> few;
  std::vector<std::uint32_t> many(items.size() > few.size() ? items.size() : 0);
  const std::span<std::uint32_t> order =
      many.empty() ? std::span(few).first(items.size()) : std::span(many);
  std::iota(order.begin(), order.end(), 0U);
  sort_by_memory(items, order);
  return relax(items, order, layers, capacity);
}

LinearRelaxation relax(std::span<const Item> items, std::span<std::uint32_t> order, int layers,
                       std::int64_t capacity) {
  LinearRelaxation result;
  if (order.empty()) return result;
  const auto hull = order.first(lower_hull(items, order));
  if (items[hull.front()].memory * layers > capacity) return result;
  result.feasible = true;
  std::size_t heavy = hull.size() - 1;
  if (items[hull[heavy]].memory * layers <= capacity) {
    result.a = result.b = hull[heavy];
    result.value = items[result.a].cost * layers;
    return result;
  }
  while (items[hull[heavy - 1]].memory * layers > capacity) --heavy;
  result.a = hull[heavy];
  result.b = hull[heavy - 1];
  const Item& fast = items[result.a];
  const Item& light = items[result.b];
  result.scale = fast.memory - light.memory;
  result.price = light.cost - fast.cost;
  result.value = result.scale * layers * fast.cost +
                 result.price * (static_cast<__int128>(fast.memory) * layers - capacity);
  return result;
}

}  // namespace orrery::search

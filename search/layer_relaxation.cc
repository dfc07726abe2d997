#include "search/layer_relaxation.h"

#include <algorithm>
#include <numeric>

namespace orrery::search {
namespace {

/// True when `middle` lies on or above the segment left-right, m ascending.
bool above(const Item& left, const Item& middle, const Item& right) {
  return (middle.cost - left.cost) * (right.memory - left.memory) >=
         (right.cost - left.cost) * (middle.memory - left.memory);
}

/// Indices of the lower hull, memory ascending, cost strictly descending.
std::vector<std::size_t> lower_hull(std::span<const Item> items) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t x, std::size_t y) {
    if (items[x].memory != items[y].memory) return items[x].memory < items[y].memory;
    if (items[x].cost != items[y].cost) return items[x].cost < items[y].cost;
    return x < y;
  });
  std::vector<std::size_t> hull;
  for (const std::size_t i : order) {
    if (!hull.empty() && items[i].cost >= items[hull.back()].cost) continue;
    while (hull.size() >= 2 && above(items[hull[hull.size() - 2]], items[hull.back()], items[i])) hull.pop_back();
    hull.push_back(i);
  }
  return hull;
}

}  // namespace

LinearRelaxation relax(std::span<const Item> items, int layers, std::int64_t capacity) {
  LinearRelaxation result;
  if (items.empty()) return result;
  const std::vector<std::size_t> hull = lower_hull(items);
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
  result.value =
      result.scale * layers * fast.cost + result.price * (static_cast<__int128>(fast.memory) * layers - capacity);
  return result;
}

}  // namespace orrery::search

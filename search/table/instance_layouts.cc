#include "search/table/instance_layouts.h"

#include <algorithm>

#include "base/numbers.h"
#include "search/programs/layer_program.h"

namespace orrery::search {

std::optional<InstanceLayouts> InstanceLayouts::find(const Instance& instance) {
  InstanceLayouts layouts;
  if (instance.transition_ps.empty()) {
    layouts.between_ = {0};
    layouts.tabulate();
    return layouts;
  }
  const std::size_t options = instance.layers.front().size();
  const auto other_shape = [&](const auto& layer) { return layer.size() != options; };
  if (instance.transition_ps.size() > 1 || std::ranges::any_of(instance.layers, other_shape))
    return std::nullopt;
  const auto r = [&](std::size_t from, std::size_t to) {
    return instance.transition_ps.front()[from * options + to];
  };
  const auto exchangeable = [&](std::size_t a, std::size_t b) {
    if (r(a, b) != 0 || r(b, a) != 0) return false;
    for (std::size_t k = 0; k < options; ++k) {
      if (r(a, k) != r(b, k) || r(k, a) != r(k, b)) return false;
    }
    return true;
  };
  std::vector<std::size_t> known;
  for (std::size_t s = 0; s < options; ++s) {
    if (r(s, s) != 0) return std::nullopt;
    const auto found =
        std::ranges::find_if(known, [&](std::size_t other) { return exchangeable(other, s); });
    layouts.of_.push_back(as_index(found - known.begin()));
    if (found == known.end()) known.push_back(s);
    if (known.size() > kMaxWalkLayouts) return std::nullopt;
  }
  layouts.count_ = known.size();
  for (const std::size_t a : known) {
    for (const std::size_t b : known) {
      layouts.between_.push_back(r(a, b));
      for (const std::size_t c : known) {
        if (r(a, c) > r(a, b) + r(b, c)) return std::nullopt;
      }
    }
  }
  layouts.tabulate();
  return layouts;
}

void InstanceLayouts::tabulate() {
  const std::uint32_t sets = 1U << count_;
  paths_.assign(sets * count_ * count_, kForbidden);
  for (std::uint32_t set = 1; set < sets; ++set) {
    for (std::size_t from = 0; from < count_; ++from) {
      for (std::size_t to = 0; to < count_; ++to) {
        std::int64_t& best = paths_[(set * count_ + from) * count_ + to];
        if ((set >> from & 1U) == 0 || (set >> to & 1U) == 0) continue;
        if (from == to) {
          if (set == 1U << from) best = 0;
          continue;
        }
        best = path_on(set & ~(1U << to), from, to);
      }
    }
  }
}

std::int64_t InstanceLayouts::path_on(std::uint32_t set, std::size_t from, std::size_t to) const {
  std::int64_t best = kForbidden;
  for (std::size_t last = 0; last < count_; ++last) {
    const std::int64_t way = path(set, from, last);
    if (way < kForbidden) best = std::min(best, way + transition(last, to));
  }
  return best;
}

std::int64_t InstanceLayouts::walk(std::uint32_t set, std::size_t from, std::size_t to) const {
  return from != to || set == 1U << from ? path(set, from, to) : path_on(set, from, to);
}

std::vector<std::size_t> InstanceLayouts::order(std::uint32_t set, std::size_t from,
                                                std::size_t to) const {
  std::vector<std::size_t> reversed;
  bool round_trip = from == to && set != 1U << from;  // `to` is left twice
  for (std::size_t end = to; round_trip || end != from;) {
    reversed.push_back(end);
    const std::int64_t whole = walk(set, from, end);
    if (!round_trip) set &= ~(1U << end);
    round_trip = false;
    std::size_t last = 0;
    while (path(set, from, last) >= kForbidden ||
           path(set, from, last) + transition(last, end) != whole)
      ++last;
    end = last;
  }
  reversed.push_back(from);
  std::ranges::reverse(reversed);
  return reversed;
}

}  // namespace orrery::search

#include "sim/kernel/refinement.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::sim::kernel {

Refinement::Refinement(std::vector<std::uint32_t> colours) : colours_(std::move(colours)) {}

void Refinement::add_edge(std::uint32_t from, std::uint32_t to, std::uint32_t type,
                          std::int64_t weight) {
  ORRERY_CHECK(from < colours_.size() && to < colours_.size() && weight >= 1);
  edges_.push_back({from, to, type, weight});
  if (type >= arrows_.size()) arrows_.resize(type + 1);
}

void Refinement::queue(std::uint32_t cell) {
  if (cells_[cell].queued) return;
  cells_[cell].queued = true;
  queue_.push_back(cell);
}

/// Edges by their source; one cell for each colour.
void Refinement::start() {
  const auto n = as_u32(colours_.size());
  first_.assign(n + 1, 0);
  for (const Edge& e : edges_) ++first_[e.from + 1];
  for (std::uint32_t x = 0; x < n; ++x) first_[x + 1] += first_[x];
  std::vector<std::uint32_t> next(first_.begin(), first_.end() - 1);
  std::vector<Edge> sorted(edges_.size());
  for (const Edge& e : edges_) sorted[next[e.from]++] = e;
  edges_ = std::move(sorted);

  order_.resize(n);
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::stable_sort(order_, [&](auto a, auto b) { return colours_[a] < colours_[b]; });
  place_.resize(n);
  cell_of_.resize(n);
  sums_.assign(n, 0);
  for (std::uint32_t i = 0; i < n; ++i) {
    if (i == 0 || colours_[order_[i]] != colours_[order_[i - 1]])
      cells_.push_back({i, i, 0, false});
    cells_.back().end = i + 1;
    place_[order_[i]] = i;
    cell_of_[order_[i]] = as_u32(cells_.size() - 1);
  }
  for (std::uint32_t c = 0; c < cells_.size(); ++c) queue(c);
}

std::vector<std::uint32_t> Refinement::run() {
  start();
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    cells_[queue_[i]].queued = false;
    split_by(queue_[i]);
  }
  constexpr std::uint32_t kUnnumbered = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> number(cells_.size(), kUnnumbered);
  std::uint32_t next = 0;
  for (std::uint32_t& cell : cell_of_) {
    if (number[cell] == kUnnumbered) number[cell] = next++;
    cell = number[cell];
  }
  return std::move(cell_of_);
}

void Refinement::split_by(std::uint32_t cell) {
  for (std::uint32_t i = cells_[cell].begin; i < cells_[cell].end; ++i) {
    const std::uint32_t x = order_[i];
    for (std::uint32_t e = first_[x]; e < first_[x + 1]; ++e)
      arrows_[edges_[e].type].push_back({edges_[e].to, edges_[e].weight});
  }
  for (std::vector<Arrow>& arrows : arrows_) {
    for (const Arrow& a : arrows) {
      if (sums_[a.to] == 0) reached_.push_back(a.to);
      sums_[a.to] += a.weight;
    }
    for (const std::uint32_t x : reached_) mark(x);
    for (const std::uint32_t c : hit_) split(c);
    for (const std::uint32_t x : reached_) sums_[x] = 0;
    reached_.clear();
    hit_.clear();
    arrows.clear();
  }
}

/// Moves an element to the marked front of its cell.
void Refinement::mark(std::uint32_t element) {
  Cell& cell = cells_[cell_of_[element]];
  if (cell.marked == 0) hit_.push_back(cell_of_[element]);
  const std::uint32_t to = cell.begin + cell.marked++, from = place_[element];
  const std::uint32_t other = order_[to];
  order_[from] = other;
  place_[other] = from;
  order_[to] = element;
  place_[element] = to;
}

/// Parts of equal sums: the marked elements by sum, and the others, whose sum is zero.
void Refinement::split(std::uint32_t c) {
  const Cell whole = cells_[c];
  cells_[c].marked = 0;
  const std::uint32_t marked_end = whole.begin + whole.marked;
  const auto at = [&](std::uint32_t i) { return order_.begin() + i; };
  const auto less = [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(sums_[a], a) < std::pair(sums_[b], b);
  };
  const bool equal = std::all_of(at(whole.begin), at(marked_end),
                                 [&](auto x) { return sums_[x] == sums_[order_[whole.begin]]; });
  if (equal && marked_end == whole.end) return;
  if (!equal) std::sort(at(whole.begin), at(marked_end), less);
  std::uint32_t largest = c, size = 0;
  std::vector<std::uint32_t> parts;
  for (std::uint32_t begin = whole.begin; begin < whole.end;) {
    std::uint32_t end = begin + 1;
    if (begin >= marked_end) end = whole.end;
    while (end < marked_end && sums_[order_[end]] == sums_[order_[begin]]) ++end;
    std::uint32_t id = c;
    if (parts.empty()) {
      cells_[c].begin = begin;
      cells_[c].end = end;
    } else {
      id = as_u32(cells_.size());
      cells_.push_back({begin, end, 0, false});
    }
    for (std::uint32_t i = begin; i < end; ++i) {
      place_[order_[i]] = i;
      cell_of_[order_[i]] = id;
    }
    parts.push_back(id);
    if (end - begin > size) {
      size = end - begin;
      largest = id;
    }
    begin = end;
  }
  for (const std::uint32_t part : parts) {
    if (whole.queued || part != largest) queue(part);
  }
}

}  // namespace orrery::sim::kernel

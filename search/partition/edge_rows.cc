#include "search/partition/edge_rows.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/partition/clones.h"

namespace orrery::search {
namespace {

constexpr std::size_t kTogether = 512;  // columns whose traffic stays in the nearest cache

std::vector<std::size_t> gradients_apart(const TensorMoves& t) {
  std::vector<std::size_t> columns;
  for (std::size_t c = 0; c < t.wanted.size(); ++c)
    if (t.gradients[c] != t.wanted[c]) columns.push_back(c);
  return columns;
}

std::vector<plan::Layout64> selected(const std::vector<plan::Layout64>& layouts,
                                     const std::vector<std::size_t>& columns) {
  std::vector<plan::Layout64> some;
  for (const std::size_t c : columns) some.push_back(layouts[c]);
  return some;
}

std::vector<char> in_parts(const std::vector<plan::Layout64>& layouts, int bits) {
  std::vector<char> parts;
  for (const plan::Layout64& layout : layouts) parts.push_back(layout.bits() == bits);
  return parts;
}

/// What moves takes a tick more than it fills.
ORRERY_CLONES("avx512f", "avx2")
void add_ticks(const MoveTicks& terms, std::span<const std::int32_t> in_hosts,
               std::span<const std::int32_t> across, std::span<Ticks> ticks) {
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double near = real(in_hosts[i]), far = real(across[i]);
    const double sum = terms.in_host_part * near + terms.across_part * far +
                       (near > 0 ? terms.in_host_latency : 0.0) +
                       (far > 0 ? terms.across_latency : 0.0) + (near + far > 0 ? 1.0 : 0.0);
    ticks[i] += static_cast<Ticks>(std::min(sum, static_cast<double>(kNever)));
  }
}

}  // namespace

EdgeRows::EdgeRows(const std::vector<TensorMoves>& tensors, int bits, int host_bits) {
  ORRERY_CHECK(!tensors.empty());
  saved_by_row_.resize(tensors.front().held.size());
  saved_by_column_.resize(tensors.front().wanted.size());
  for (const TensorMoves& t : tensors) {
    std::vector<std::size_t> apart = gradients_apart(t);
    plan::TrafficTable gradients(t.held, selected(t.gradients, apart), bits, host_bits);
    tensors_.push_back({t.forward,
                        t.backward,
                        {t.held, t.wanted, bits, host_bits},
                        std::move(apart),
                        std::move(gradients),
                        t.scatter,
                        t.gradient_scatter,
                        in_parts(t.held, bits),
                        in_parts(t.wanted, bits)});
    for (std::size_t r = 0; r < rows(); ++r) saved_by_row_[r] += t.scatter[r];
    for (std::size_t c = 0; c < columns(); ++c) saved_by_column_[c] += t.gradient_scatter[c];
  }
}

void EdgeRows::cells(std::size_t row, std::size_t first, std::span<Ticks> cells) const {
  for (std::size_t at = 0; at < cells.size(); at += kTogether) {
    const auto part = cells.subspan(at, std::min(kTogether, cells.size() - at));
    std::ranges::fill(part, 0);
    for (const Tensor& t : tensors_) add(t, row, first + at, part);
    for (Ticks& cell : part) cell = std::min(cell, kNever);
  }
}

void EdgeRows::add(const Tensor& t, std::size_t row, std::size_t first,
                   std::span<Ticks> cells) const {
  using Counts = std::array<std::int32_t, kTogether>;
  Counts near, far, near_back, far_back, near_apart, far_apart, unused_near, unused_far;
  const auto of = [](Counts& counts, std::size_t n) { return std::span(counts).first(n); };
  const std::size_t n = cells.size();
  t.both_ways.between(row, first, {of(near, n), of(far, n)}, {of(near_back, n), of(far_back, n)});
  add_ticks(t.forward, of(near, n), of(far, n), cells);
  if (const Ticks saved = t.scatter[row]; saved != 0)
    for (std::size_t i = 0; i < n; ++i)
      if (t.column_in_parts[first + i] != 0 && near[i] + far[i] == 0) cells[i] -= saved;

  const auto begin = std::ranges::lower_bound(t.apart, first),
             end = std::ranges::lower_bound(t.apart, first + n);
  const auto m = as_index(end - begin);
  t.gradients.between(row, as_index(begin - t.apart.begin()),
                      {of(unused_near, m), of(unused_far, m)},
                      {of(near_apart, m), of(far_apart, m)});
  for (std::size_t i = 0; i < m; ++i) {
    near_back[begin[as_int(i)] - first] = near_apart[i];
    far_back[begin[as_int(i)] - first] = far_apart[i];
  }
  add_ticks(t.backward, of(near_back, n), of(far_back, n), cells);
  if (t.row_in_parts[row] == 0) return;
  for (std::size_t i = 0; i < n; ++i)
    if (near_back[i] + far_back[i] == 0) cells[i] -= t.gradient_scatter[first + i];
}

}  // namespace orrery::search

#pragma once
/// \file
/// What changes of layout between two operators cost, both ways, row by row: no table of all of
/// them need stand in memory.
///
///   cell(r, c) = sum over tensors of ticks(held[r] -> wanted[c]) + ticks(gradients[c] -> held[r])
///                - what reduce-scatters save
///
/// Where nothing moves, every device has another block and the block is a sum, the sum's all-reduce
/// was a reduce-scatter: half of it comes off.
#include <span>
#include <vector>

#include "plan/partition/layout.h"
#include "search/partition/tick_matrix.h"

namespace orrery::search {

/// Time of moves in units of a tick: so many where there is any, and so many for each part.
struct MoveTicks {
  double in_host_latency = 0, in_host_part = 0, across_latency = 0, across_part = 0;
};

/// A tensor that one operator hands to another.
struct TensorMoves {
  MoveTicks forward, backward;                              // of the tensor, of its gradient
  std::vector<plan::Layout64> held = {};                    // [row]
  std::vector<plan::Layout64> wanted = {}, gradients = {};  // [column]
  std::vector<Ticks> scatter = {};                          // [row] half of the output's all-reduce
  std::vector<Ticks> gradient_scatter = {};                 // [column] half of the gradient's
};

class EdgeRows {
 public:
  /// Hosts are blocks of 2^host_bits neighbours of 2^bits devices. @pre at least one tensor.
  EdgeRows(const std::vector<TensorMoves>& tensors, int bits, int host_bits);

  std::size_t rows() const { return saved_by_row_.size(); }
  std::size_t columns() const { return saved_by_column_.size(); }
  /// Cells [row][first], [row][first + 1], .., at most kNever each.
  void cells(std::size_t row, std::size_t first, std::span<Ticks> cells) const;
  /// No cell is below -(row's + column's).
  const std::vector<Ticks>& saved_by_row() const { return saved_by_row_; }
  const std::vector<Ticks>& saved_by_column() const { return saved_by_column_; }

 private:
  struct Tensor {
    MoveTicks forward, backward;
    plan::TrafficTable both_ways;
    std::vector<std::size_t> apart;  // columns whose gradient lies elsewhere than what is read
    plan::TrafficTable gradients;    // of these
    std::vector<Ticks> scatter, gradient_scatter;
    std::vector<char> row_in_parts, column_in_parts;  // every device has another block
  };
  void add(const Tensor& tensor, std::size_t row, std::size_t first, std::span<Ticks> cells) const;

  std::vector<Tensor> tensors_;
  std::vector<Ticks> saved_by_row_, saved_by_column_;
};

}  // namespace orrery::search

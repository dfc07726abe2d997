#pragma once
/// Colour refinement: the coarsest equitable partition of a coloured graph.
///
/// Elements x carry a colour; edges (s, x) carry a type t and a weight w >= 1. A partition into
/// cells is *equitable* when elements of one cell have one colour and, for every cell S and type t,
/// one and the same
///
///     sum of w over the edges (s, x) of type t with s in S.
///
/// There is one coarsest such partition (Paige, Tarjan, "Three partition refinement algorithms",
/// SIAM J. Comput. 16 (1987), section 3; Berkholz, Bonsma, Grohe, ESA 2013). Worklist: cells split
/// by every cell that is new; of the parts of a cell that has split others already the largest need
/// not do so again, since the sums of the others and of the whole give its own. O((n + m) log n).
///
/// Worked example (a test): a path of four vertices, one colour, edges both ways: the ends {0, 3}
/// and the middle {1, 2}.

#include <cstdint>
#include <vector>

namespace orrery::sim::kernel {

class Refinement {
 public:
  /// Elements 0 .. n-1 with their colours, any numbers.
  explicit Refinement(std::vector<std::uint32_t> colours);
  /// @pre weight >= 1; types are small: each costs a list.
  void add_edge(std::uint32_t from, std::uint32_t to, std::uint32_t type, std::int64_t weight);

  /// The cell of each element; cells are numbered by their first element. Call once.
  [[nodiscard]] std::vector<std::uint32_t> run();

 private:
  struct Edge {
    std::uint32_t from = 0, to = 0, type = 0;
    std::int64_t weight = 0;
  };
  struct Arrow {
    std::uint32_t to = 0;
    std::int64_t weight = 0;
  };
  struct Cell {
    std::uint32_t begin = 0, end = 0;  // in order_
    std::uint32_t marked = 0;          // of its first elements
    bool queued = false;
  };
  void start();
  void split_by(std::uint32_t cell);
  void mark(std::uint32_t element);
  void split(std::uint32_t cell);
  void queue(std::uint32_t cell);

  std::vector<std::uint32_t> colours_;
  std::vector<Edge> edges_;
  std::vector<std::uint32_t> first_;    // [element + 1] into edges_, once sorted
  std::vector<std::uint32_t> order_;    // elements by cell
  std::vector<std::uint32_t> place_;    // [element] in order_
  std::vector<std::uint32_t> cell_of_;  // [element]
  std::vector<Cell> cells_;
  std::vector<std::uint32_t> queue_;
  // Scratch of one splitter.
  std::vector<std::vector<Arrow>> arrows_;  // [type]
  std::vector<std::int64_t> sums_;          // [element]
  std::vector<std::uint32_t> reached_;      // elements
  std::vector<std::uint32_t> hit_;          // cells
};

}  // namespace orrery::sim::kernel

#pragma once
/// \file
/// Convex costs of whole numbers of layers, and how stages with such costs share layers.
///
/// The linear relaxation of a stage with n layers is a maximum of lines in n, one for each price of
/// memory (pipeline_bound.h): convex, and of few pieces whatever n. So a function is kept as its
/// pieces, and nothing below grows with the number of layers.
///
///   sum      min Σ_i f_i(n_i), Σ n_i = L: from the fewest layers of each on, the cheapest next
///            layer goes to its stage, all the layers of a piece at once. Optimal as no stage's
///            next layer gets cheaper (marginal analysis; Fox, Management Science 13, 1966)
///   f ⊕ g    (f ⊕ g)(n) = min_k f(k) + g(n - k): the pieces of both by ascending slope, again
///            convex
///   largest  min max_i f_i(n_i), f_i not falling: all values up to a level T that gives about L
///            layers, then layer by layer
///
/// Worked example (ConvexCost.WorkedExample): f(n) = max(2n, 5n - 6), g(n) = 3n, both from 1 to 4
/// layers. Of 5 layers f takes 2, of slope 2, then g, of slope 3: f(2) + g(3) = 4 + 9 = 13.
/// Largest: f(3) = 9 and g(2) = 6 make 9, f(2) = 4 and g(3) = 9 as well.
#include <cstdint>
#include <span>
#include <vector>

namespace orrery::search {

inline constexpr __int128 kNever = static_cast<__int128>(1) << 120;

struct Line {
  __int128 constant = 0, slope = 0;
};

class ConvexCost {
 public:
  /// Nowhere possible.
  ConvexCost() = default;
  /// The maximum of lines on fewest..most, their slopes ascending. O(lines).
  ConvexCost(std::span<const Line> lines, int fewest, int most);
  /// f ⊕ g. O(pieces).
  ConvexCost(const ConvexCost& f, const ConvexCost& g);
  /// 0 at no layers.
  static ConvexCost nothing() { return ConvexCost(std::vector<Line>{{}}, 0, 0); }

  [[nodiscard]] int fewest() const { return fewest_; }
  [[nodiscard]] int most() const { return most_; }
  [[nodiscard]] bool possible() const { return fewest_ <= most_; }
  void restrict_to(int fewest, int most);
  /// kNever beyond fewest()..most(). O(log pieces).
  [[nodiscard]] __int128 at(int layers) const;
  /// Most layers of value <= limit; fewest() - 1: none. @pre the function does not fall.
  [[nodiscard]] int most_within(__int128 limit) const;

  /// The next `layers` layers cost `slope` each.
  struct Run {
    __int128 slope = 0;
    int layers = 0;
  };
  /// Ascending. The runs between fewest() and most().
  [[nodiscard]] std::vector<Run> runs() const;

 private:
  struct Piece {
    int from = 0;
    __int128 value = 0, slope = 0;  // at `from`, and behind it
  };
  [[nodiscard]] const Piece& piece(int layers) const;

  std::vector<Piece> pieces_;  // `from` ascending, slopes too
  int fewest_ = 1, most_ = 0;
};

/// Stages that share layers at the least sum.
class LeastSum {
 public:
  /// Of equal next layers the first stage's is taken first, or the last's. @pre all are possible.
  explicit LeastSum(std::span<const ConvexCost> stages, bool first = true);
  /// kNever: not possible.
  [[nodiscard]] __int128 value(int layers) const;
  [[nodiscard]] std::vector<int> partition(int layers) const;
  /// Where `stage` has `own` of the layers.
  [[nodiscard]] __int128 value_through(int layers, std::size_t stage, int own) const;

 private:
  struct Next {
    ConvexCost::Run run;
    std::size_t stage = 0;
  };
  [[nodiscard]] __int128 extra(int layers, std::size_t without) const;

  std::span<const ConvexCost> stages_;
  std::vector<Next> next_;  // slope ascending
  __int128 base_ = 0;       // at the fewest layers of each
  int fewest_ = 0, most_ = 0;
};

/// min max f_i(n_i); kNever: not possible. @pre no function falls or is below 0.
__int128 least_maximum(std::span<const ConvexCost> stages, int layers);

}  // namespace orrery::search

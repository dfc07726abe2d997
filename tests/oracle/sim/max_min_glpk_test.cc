// Max-min shares against their definition: the lexicographically largest sorted vector of rates, by
// linear programs.
#include <glpk.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "sim/kernel/max_min.h"

namespace orrery::sim::kernel {
namespace {

// of ours in one of GLPK's: whole rates are fine enough
constexpr std::int64_t kUnit = 1'000'000'000'000;

struct System {
  std::vector<std::int64_t> capacities, caps;      // caps: 0 is none
  std::vector<std::vector<std::int64_t>> weights;  // [variable][constraint]
};

System random_system(std::uint64_t seed) {
  base::Rng rng(seed);
  System s;
  const auto links = 1 + rng.below(6), flows = 1 + rng.below(9);
  for (std::uint64_t l = 0; l < links; ++l)
    s.capacities.push_back(static_cast<std::int64_t>(1 + rng.below(100)));
  for (std::uint64_t f = 0; f < flows; ++f) {
    std::vector<std::int64_t> weights(links, 0);
    for (auto& w : weights) w = rng.below(2) == 0 ? static_cast<std::int64_t>(1 + rng.below(3)) : 0;
    weights[rng.below(links)] = 1;
    s.weights.push_back(weights);
    s.caps.push_back(rng.below(3) == 0 ? static_cast<std::int64_t>(1 + rng.below(30)) : 0);
  }
  return s;
}

/// Columns 1 .. n: the rates; column n + 1: the level t, with t <= x_v for every variable that
/// still rises.
class Program {
 public:
  explicit Program(const System& s)
      : flows_(static_cast<int>(s.weights.size())), lp_(glp_create_prob()) {
    glp_set_obj_dir(lp_, GLP_MAX);
    glp_add_cols(lp_, flows_ + 1);
    for (int v = 1; v <= flows_; ++v) {
      const std::int64_t cap = s.caps[static_cast<std::size_t>(v - 1)];
      glp_set_col_bnds(lp_, v, cap > 0 ? GLP_DB : GLP_LO, 0, static_cast<double>(cap));
    }
    glp_set_col_bnds(lp_, flows_ + 1, GLP_LO, 0, 0);
    for (std::size_t l = 0; l < s.capacities.size(); ++l) {
      const int row = glp_add_rows(lp_, 1);
      glp_set_row_bnds(lp_, row, GLP_UP, 0, static_cast<double>(s.capacities[l]));
      std::vector<int> columns{0};
      std::vector<double> values{0};
      for (int v = 1; v <= flows_; ++v) {
        const std::int64_t w = s.weights[static_cast<std::size_t>(v - 1)][l];
        if (w == 0) continue;
        columns.push_back(v);
        values.push_back(static_cast<double>(w));
      }
      glp_set_mat_row(lp_, row, static_cast<int>(columns.size()) - 1, columns.data(),
                      values.data());
    }
    first_level_row_ = glp_add_rows(lp_, flows_);
    for (int v = 1; v <= flows_; ++v) {  // x_v - t >= 0
      const int columns[] = {0, v, flows_ + 1};
      const double values[] = {0, 1, -1};
      glp_set_mat_row(lp_, first_level_row_ + v - 1, 2, columns, values);
      glp_set_row_bnds(lp_, first_level_row_ + v - 1, GLP_LO, 0, 0);
    }
  }
  ~Program() { glp_delete_prob(lp_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Raises the common level; what cannot rise above it stops there; again, until all have stopped.
  std::vector<double> lexicographic() {
    std::vector<double> rates(static_cast<std::size_t>(flows_), -1);
    for (int left = flows_; left > 0;) {
      glp_set_col_bnds(lp_, flows_ + 1, GLP_LO, 0, 0);
      const double level = largest(flows_ + 1);
      glp_set_col_bnds(lp_, flows_ + 1, GLP_FX, level, level);
      std::vector<int> stopped;
      for (int v = 1; v <= flows_; ++v) {
        if (rates[static_cast<std::size_t>(v - 1)] < 0 && largest(v) < level + 1e-7)
          stopped.push_back(v);
      }
      if (stopped.empty()) return {};
      for (const int v : stopped) {
        rates[static_cast<std::size_t>(v - 1)] = level;
        glp_set_col_bnds(lp_, v, GLP_FX, level, level);
        glp_set_row_bnds(lp_, first_level_row_ + v - 1, GLP_FR, 0, 0);
        --left;
      }
    }
    return rates;
  }

 private:
  double largest(int column) {
    for (int c = 1; c <= flows_ + 1; ++c) glp_set_obj_coef(lp_, c, c == column ? 1 : 0);
    glp_std_basis(lp_);
    if (glp_simplex(lp_, nullptr) != 0 || glp_get_status(lp_) != GLP_OPT) return -1;
    return glp_get_obj_val(lp_);
  }
  int flows_;
  int first_level_row_ = 0;
  glp_prob* lp_;
};

TEST(MaxMinOracle, EqualsTheLexicographicLinearProgram) {
  glp_term_out(GLP_OFF);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const System s = random_system(seed);
    const auto expected = Program(s).lexicographic();
    ASSERT_EQ(expected.size(), s.weights.size()) << "seed " << seed;
    MaxMin shares;
    for (const auto c : s.capacities) shares.add_constraint(c * kUnit);
    for (std::size_t v = 0; v < s.weights.size(); ++v) {
      std::vector<Consumption> uses;
      for (std::uint32_t l = 0; l < s.capacities.size(); ++l) {
        if (s.weights[v][l] > 0) uses.push_back({ConstraintId(l), s.weights[v][l]});
      }
      shares.activate(
          shares.add_variable(s.caps[v] > 0 ? s.caps[v] * kUnit : MaxMin::kNoCap, uses));
    }
    shares.solve();
    for (std::uint32_t v = 0; v < s.weights.size(); ++v) {
      const double ours =
          static_cast<double>(shares.rate(VariableId(v))) / static_cast<double>(kUnit);
      ASSERT_NEAR(ours / expected[v], 1, 1e-9) << "seed " << seed << ", variable " << v;
    }
  }
}

}  // namespace
}  // namespace orrery::sim::kernel

// `orrery solve` against GLPK's integer solver, at 10 to 12 layers of up to 8 options with
// transitions.
#include <glpk.h>
#include <gtest/gtest.h>

#include <cmath>

#include "search/proof/certificate_check.h"
#include "search/table/instance_program.h"
#include "tests/oracle/search/random_instance.h"

namespace orrery::search {
namespace {

/// A path through a layered graph under one knapsack row: y_e in {0, 1} for every edge (option,
/// option of the next layer), one edge leaves the first layer, flow is kept at every option behind
/// it.
class PathModel {
 public:
  explicit PathModel(const Instance& instance) : instance_(instance), lp_(glp_create_prob()) {
    glp_set_obj_dir(lp_, GLP_MIN);
    glp_add_rows(lp_, 2);
    glp_set_row_bnds(lp_, 1, GLP_UP, 0, static_cast<double>(instance.budget_bytes));
    glp_set_row_bnds(lp_, 2, GLP_FX, 1, 1);
    rows_.emplace_back(instance.layers.front().size(), 2);
    for (std::size_t i = 1; i + 1 < instance.layers.size(); ++i) {
      rows_.emplace_back();
      for (std::size_t s = 0; s < instance.layers[i].size(); ++s)
        rows_.back().push_back(glp_add_rows(lp_, 1));
      for (const int row : rows_.back()) glp_set_row_bnds(lp_, row, GLP_FX, 0, 0);
    }
    for (std::size_t i = 0; i + 1 < instance.layers.size(); ++i) {
      for (std::size_t a = 0; a < instance.layers[i].size(); ++a) {
        for (std::size_t b = 0; b < instance.layers[i + 1].size(); ++b) add_edge(i, a, b);
      }
    }
  }
  ~PathModel() { glp_delete_prob(lp_); }
  PathModel(const PathModel&) = delete;
  PathModel& operator=(const PathModel&) = delete;

  /// -1: infeasible.
  double solve() {
    glp_iocp parameters;
    glp_init_iocp(&parameters);
    parameters.presolve = GLP_ON;
    parameters.msg_lev = GLP_MSG_OFF;
    if (glp_intopt(lp_, &parameters) != 0 || glp_mip_status(lp_) != GLP_OPT) return -1;
    return glp_mip_obj_val(lp_);
  }

 private:
  void add_edge(std::size_t layer, std::size_t from, std::size_t to) {
    const int column = glp_add_cols(lp_, 1);
    glp_set_col_kind(lp_, column, GLP_BV);
    const InstanceOption& o = instance_.layers[layer + 1][to];
    std::int64_t time = o.time_ps + instance_.transition(layer, from, to), memory = o.memory_bytes;
    if (layer == 0) {
      time += instance_.layers[0][from].time_ps;
      memory += instance_.layers[0][from].memory_bytes;
    }
    glp_set_obj_coef(lp_, column, static_cast<double>(time));
    std::vector<int> rows{0, 1, rows_[layer][from]};
    std::vector<double> values{0, static_cast<double>(memory), layer == 0 ? 1.0 : -1.0};
    if (layer + 2 < instance_.layers.size()) {
      rows.push_back(rows_[layer + 1][to]);
      values.push_back(1);
    }
    glp_set_mat_col(lp_, column, static_cast<int>(rows.size()) - 1, rows.data(), values.data());
  }

  const Instance& instance_;
  glp_prob* lp_;
  // [layer][option]: flow in = flow out; the first layer: the source
  std::vector<std::vector<int>> rows_;
};

TEST(InstanceOracle, LargerInstancesMatchGlpk) {
  glp_term_out(GLP_OFF);
  int feasible = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    base::Rng rng(seed + 13'000'000);
    Instance instance;
    do {
      instance = random_instance(rng, {.layers = 12, .options = 8, .equal_layers = seed % 4 == 0});
    } while (instance.layers.size() < 10);
    const Solution found = solve_instance(instance);
    ASSERT_TRUE(check_solution(instance, found).holds()) << "seed " << seed;
    const double expected = PathModel(instance).solve();
    ASSERT_EQ(found.status == Status::kInfeasible, expected < 0) << "seed " << seed;
    if (expected < 0) continue;
    ++feasible;
    EXPECT_EQ(found.time_ps, std::llround(expected)) << "seed " << seed;
  }
  EXPECT_EQ(feasible, 58);
}

}  // namespace
}  // namespace orrery::search

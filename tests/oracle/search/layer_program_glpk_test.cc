// The layer program against GLPK's integer solver, at sizes that brute force does not reach.
#include <glpk.h>
#include <gtest/gtest.h>

#include <cmath>

#include "search/programs/layer_program.h"
#include "tests/oracle/search/random_layers.h"

namespace orrery::search {
namespace {

/// min Σ x_s (a n_s + b y_s) + a Σ_l z_l h_l, Σ x_s = L, Σ x_s m_s <= budget,
/// x_s <= L z_{l(s)}: options of layout l cost h_l once, which is what entry costs of a star-shaped
/// transition are when layouts are entered at their own price.
double solve_with_glpk(const LayerProblem& p, const Weights& w,
                       const std::vector<std::int64_t>& h) {
  glp_prob* lp = glp_create_prob();
  glp_set_obj_dir(lp, GLP_MIN);
  const int options = static_cast<int>(p.options.size());
  glp_add_cols(lp, options + p.layouts);
  glp_add_rows(lp, 2 + options);
  glp_set_row_bnds(lp, 1, GLP_FX, p.layers, p.layers);
  glp_set_row_bnds(lp, 2, GLP_UP, 0, static_cast<double>(p.budget_bytes));
  for (int s = 0; s < options; ++s) {
    const LayerOption& o = p.options[static_cast<std::size_t>(s)];
    glp_set_col_kind(lp, s + 1, GLP_IV);
    glp_set_col_bnds(lp, s + 1, GLP_DB, 0, p.layers);
    glp_set_obj_coef(lp, s + 1, static_cast<double>(w.steady * o.steady_ps + w.once * o.once_ps));
    glp_set_row_bnds(lp, 3 + s, GLP_UP, 0, 0);
    const int rows[] = {0, 1, 2, 3 + s};
    const double values[] = {0, 1, static_cast<double>(o.memory_bytes), 1};
    glp_set_mat_col(lp, s + 1, 3, rows, values);
  }
  for (int l = 0; l < p.layouts; ++l) {
    const int column = options + l + 1;
    glp_set_col_kind(lp, column, GLP_BV);
    glp_set_obj_coef(lp, column, static_cast<double>(w.steady * h[static_cast<std::size_t>(l)]));
    std::vector<int> rows{0};
    std::vector<double> values{0};
    for (int s = 0; s < options; ++s) {
      if (p.options[static_cast<std::size_t>(s)].layout != l) continue;
      rows.push_back(3 + s);
      values.push_back(-p.layers);
    }
    glp_set_mat_col(lp, column, static_cast<int>(rows.size()) - 1, rows.data(), values.data());
  }
  glp_iocp parameters;
  glp_init_iocp(&parameters);
  parameters.presolve = GLP_ON;
  parameters.msg_lev = GLP_MSG_OFF;
  double best = -1;
  if (glp_intopt(lp, &parameters) == 0 && glp_mip_status(lp) == GLP_OPT) best = glp_mip_obj_val(lp);
  glp_delete_prob(lp);
  return best;
}

TEST(LayerProgramOracle, MatchesGlpk) {
  glp_term_out(GLP_OFF);
  int feasible = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    base::Rng rng(seed + 5'000'000);
    LayerProblem p;
    p.layers = 8 + static_cast<int>(draw(rng, 40));
    p.layouts = 1 + static_cast<int>(draw(rng, 3));
    // Entering layout l costs h_l wherever it stands, leaving is free: a path through a set costs
    // the sum of its h.
    std::vector<std::int64_t> h;
    for (int l = 0; l < p.layouts; ++l) h.push_back(draw(rng, 3000));
    for (int from = 0; from < p.layouts; ++from) {
      for (int to = 0; to < p.layouts; ++to)
        p.transition_ps.push_back(from == to ? 0 : h[static_cast<std::size_t>(to)]);
    }
    p.entry_ps = h;
    for (int s = 0; s < 8; ++s) {
      const std::int64_t memory = 1000 + draw(rng, 4000);
      p.options.push_back({.steady_ps = 9000 - memory + draw(rng, 4000),
                           .once_ps = draw(rng, 2000),
                           .memory_bytes = memory,
                           .layout = static_cast<int>(draw(rng, p.layouts))});
    }
    p.budget_bytes = p.layers * (1500 + draw(rng, 2500));
    const Weights w{1 + draw(rng, 8), 1};
    Effort effort;
    const Bounded found = solve_layers(p, w, kNoAnswer, effort);
    const double expected = solve_with_glpk(p, w, h);
    ASSERT_EQ(found.answer.has_value(), expected >= 0) << "seed " << seed;
    if (!found.answer) continue;
    ++feasible;
    EXPECT_EQ(w.steady * found.answer->steady_ps + w.once * found.answer->once_ps,
              std::llround(expected))
        << "seed " << seed;
  }
  EXPECT_EQ(feasible, 141);
}

}  // namespace
}  // namespace orrery::search

// Whole pipelines against GLPK's integer solver, one size beyond brute force: 7 to 10 layers, 2 to
// 4 stages, partition, options and layouts at boundaries all free.
#include <glpk.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

#include "search/programs/pipeline_program.h"
#include "tests/oracle/search/random_layers.h"

namespace orrery::search {
namespace {

/// A path through nodes (layer j, stage i, option s), x in {0, 1}; edges y lead to the next layer,
/// in the same stage or the next one:
///
///     min  Σ_i N_i + Σ once + Σ sends + (m - 1) τ,   τ >= N_i,   N_i linear in x and y,
///     Σ_j,s m_s x_jis + P_i + bytes at boundaries <= budget_i,   P_i >= t_s x_jis,   P_i >= t_0.
///
/// No canonical order is asked for: changes of layout are metric and memory does not depend on the
/// order (no stashes, no gathers).
class PathModel {
 public:
  explicit PathModel(const PipelineProblem& p) : p_(p), lp_(glp_create_prob()) {
    glp_set_obj_dir(lp_, GLP_MIN);
    slowest_ = column(GLP_CV, static_cast<double>(p.micro_batches - 1));
    for (std::size_t i = 0; i < p.stages.size(); ++i) add_stage(i);
    const int start = row(GLP_FX, 1), end = row(GLP_FX, 1);
    for (int j = 0; j < p.layers; ++j) {
      for (std::size_t i = 0; i < p.stages.size(); ++i) {
        if (static_cast<int>(i) > j || static_cast<int>(p.stages.size() - i) > p.layers - j)
          continue;
        for (std::size_t s = 0; s < options(i).size(); ++s) add_node(j, i, s, start, end);
      }
    }
    for (const auto& [from, rows] : nodes_) {
      const auto& [j, i, s] = from;
      for (const std::size_t to : {i, i + 1}) {
        for (std::size_t t = 0; to < p.stages.size() && t < options(to).size(); ++t) {
          const auto next = nodes_.find({j + 1, to, t});
          if (next != nodes_.end()) add_edge(i, s, rows.second, to, t, next->second.first);
        }
      }
    }
    close();
  }
  ~PathModel() { glp_delete_prob(lp_); }
  PathModel(const PathModel&) = delete;
  PathModel& operator=(const PathModel&) = delete;

  /// -1: infeasible.
  double solve() {
    glp_iocp parameters;
    glp_init_iocp(&parameters);
    parameters.presolve = GLP_ON;
    parameters.gmi_cuts = GLP_ON;
    parameters.msg_lev = GLP_MSG_OFF;
    if (glp_intopt(lp_, &parameters) != 0 || glp_mip_status(lp_) != GLP_OPT) return -1;
    return glp_mip_obj_val(lp_) + constant_;
  }

 private:
  [[nodiscard]] const std::vector<LayerOption>& options(std::size_t i) const {
    return p_.stages[i].layers.options;
  }
  static double at(const std::vector<std::int64_t>& values, int layout) {
    return values.empty() ? 0 : static_cast<double>(values[static_cast<std::size_t>(layout)]);
  }
  int column(int kind, double cost) {
    const int c = glp_add_cols(lp_, 1);
    glp_set_col_bnds(lp_, c, GLP_LO, 0, 0);
    glp_set_col_kind(lp_, c, kind);
    glp_set_obj_coef(lp_, c, cost);
    return c;
  }
  int row(int type, double bound) {
    const int r = glp_add_rows(lp_, 1);
    glp_set_row_bnds(lp_, r, type, bound, bound);
    return r;
  }
  void set(int c, const std::vector<std::pair<int, double>>& entries) {
    std::vector<int> rows{0};
    std::vector<double> values{0};
    for (const auto& [r, value] : entries) {
      if (value == 0) continue;
      rows.push_back(r);
      values.push_back(value);
    }
    glp_set_mat_col(lp_, c, static_cast<int>(rows.size()) - 1, rows.data(), values.data());
  }

  /// Rows N_i - τ <= -steady_i and memory <= budget; the column P_i.
  void add_stage(std::size_t i) {
    const PipelineStage& s = p_.stages[i];
    steady_.push_back(row(GLP_UP, -static_cast<double>(s.steady_ps)));
    memory_.push_back(row(GLP_UP, static_cast<double>(s.layers.budget_bytes)));
    constant_ += static_cast<double>(s.steady_ps + s.once_ps);
    const int floor = row(GLP_LO, static_cast<double>(s.layers.transient_floor_bytes));
    peak_.push_back(column(GLP_CV, 0));
    peak_entries_.push_back({{memory_.back(), 1}, {floor, 1}});
  }
  void add_node(int j, std::size_t i, std::size_t s, int start, int end) {
    const LayerOption& o = options(i)[s];
    const LayerProblem& layers = p_.stages[i].layers;
    const int in = row(GLP_FX, 0), out = row(GLP_FX, 0), transient = row(GLP_LO, 0);
    nodes_[{j, i, s}] = {in, out};
    double steady = static_cast<double>(o.steady_ps);
    std::vector<std::pair<int, double>> entries{
        {memory_[i], static_cast<double>(o.memory_bytes)},
        {transient, -static_cast<double>(o.transient_bytes)}};
    if (j == 0) steady += at(layers.entry_ps, o.layout);
    if (j + 1 == p_.layers) steady += at(layers.exit_ps, o.layout);
    entries.emplace_back(j == 0 ? start : in, j == 0 ? 1 : -1);
    entries.emplace_back(j + 1 == p_.layers ? end : out, j + 1 == p_.layers ? 1 : -1);
    entries.emplace_back(steady_[i], steady);
    peak_entries_[i].emplace_back(transient, 1);
    const int x = column(GLP_BV, steady + static_cast<double>(o.once_ps));
    glp_set_col_bnds(lp_, x, GLP_DB, 0, 1);
    set(x, entries);
  }
  void add_edge(std::size_t i, std::size_t s, int out, std::size_t to, std::size_t t, int in) {
    const int from = options(i)[s].layout, next = options(to)[t].layout;
    const LayerProblem& layers = p_.stages[to].layers;
    const double change = at(layers.transition_ps, from * layers.layouts + next);
    std::vector<std::pair<int, double>> entries{{out, 1}, {in, 1}};
    double cost = change;
    if (to == i) {
      entries.emplace_back(steady_[i], change);
    } else {
      const double back = at(p_.stages[i].return_ps, from),
                   arrive = at(p_.stages[to].receive_ps, from);
      entries.emplace_back(steady_[i], back);
      entries.emplace_back(steady_[to], change + arrive);
      entries.emplace_back(memory_[i], at(p_.stages[i].departure_bytes, from));
      entries.emplace_back(memory_[to], at(p_.stages[to].arrival_bytes, from));
      cost += back + arrive + at(p_.stages[i].send_ps, from);
    }
    set(column(GLP_CV, cost), entries);
  }

  /// The columns of τ and P_i stand in rows of all nodes: set last.
  void close() {
    std::vector<std::pair<int, double>> entries;
    for (const int r : steady_) entries.emplace_back(r, -1);
    set(slowest_, entries);
    for (std::size_t i = 0; i < peak_.size(); ++i) set(peak_[i], peak_entries_[i]);
  }

  const PipelineProblem& p_;
  glp_prob* lp_;
  int slowest_ = 0;
  double constant_ = 0;
  std::vector<int> steady_, memory_, peak_;  // [stage]
  std::vector<std::vector<std::pair<int, double>>> peak_entries_;
  // rows: what flows in, out
  std::map<std::tuple<int, std::size_t, std::size_t>, std::pair<int, int>> nodes_;
};

PipelineProblem random_pipeline(base::Rng& rng) {
  PipelineProblem p;
  const std::size_t stages = 2 + rng.below(3);
  p.layers = 7 + static_cast<int>(draw(rng, 4));
  p.micro_batches = 1 + draw(rng, 8);
  const LayerProblem shared = random_problem(rng, 1, 1);
  for (std::size_t i = 0; i < stages; ++i) {
    PipelineStage stage;
    stage.layers = shared;
    stage.layers.options =
        random_options(rng, 2 + static_cast<int>(draw(rng, 2)), shared.layouts, shared.flight);
    for (LayerOption& o : stage.layers.options)
      o.stash_bytes = o.forward_bytes = o.neighbour_bytes = o.step_bytes = 0;
    stage.layers.front_transient_bytes = stage.layers.front_forward_bytes =
        stage.layers.front_step_bytes = stage.layers.back_neighbour_bytes = 0;
    if (i > 0) stage.layers.entry_ps.clear();
    if (i + 1 < stages) stage.layers.exit_ps.clear();
    stage.most = p.layers - static_cast<int>(stages) + 1;
    stage.layers.budget_bytes =
        30 + p.layers * (60 + draw(rng, 60)) / static_cast<std::int64_t>(4 * stages);
    stage.steady_ps = draw(rng, 60);
    stage.once_ps = draw(rng, 60);
    for (int l = 0; l < shared.layouts; ++l) {
      if (i + 1 < stages) {
        stage.send_ps.push_back(draw(rng, 30));
        stage.departure_bytes.push_back(draw(rng, 10));
        stage.return_ps.push_back(draw(rng, 20));
      }
      if (i > 0) {
        stage.arrival_bytes.push_back(draw(rng, 10));
        stage.receive_ps.push_back(draw(rng, 20));
      }
    }
    p.stages.push_back(std::move(stage));
  }
  return p;
}

TEST(PipelineProgramOracle, LargerPipelinesMatchGlpk) {
  glp_term_out(GLP_OFF);
  int feasible = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    base::Rng rng(seed + 15'000'000);
    const PipelineProblem p = random_pipeline(rng);
    Effort effort;
    const auto found = solve_pipeline(p, kForbidden, effort);
    const double expected = PathModel(p).solve();
    ASSERT_EQ(found.has_value(), expected >= 0) << "seed " << seed;
    if (!found) continue;
    ++feasible;
    EXPECT_EQ(found->cost_ps, std::llround(expected)) << "seed " << seed;
  }
  EXPECT_EQ(feasible, 59);
}

}  // namespace
}  // namespace orrery::search

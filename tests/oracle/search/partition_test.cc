// The segmented program against every combination of plans: on random tables, and on the real
// tables of two devices; what bounds leave out against what they may.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <span>

#include "base/numbers.h"
#include "search/partition/partition_search.h"

namespace orrery::search {
namespace {

using namespace plan;  // names of LayerOperator

class RandomTables {
 public:
  /// Up to `classes` of an operator, cells of the chain from -`saved` on.
  explicit RandomTables(unsigned seed, int classes = 2, int saved = 8)
      : random_(seed), classes_(classes), saved_(saved) {}

  LayerTables tables() {
    LayerTables t;
    for (std::size_t i = 0; i < t.operators.size(); ++i) t.operators[i] = op();
    t.operators[kStreamMiddle] = t.operators[kStreamOut] = t.operators[kStreamIn];
    const auto between = [&](LayerOperator from, LayerOperator to) {
      const bool jumps = to - from > 2;
      return edge(t.operators[from], t.operators[to], jumps ? 0 : saved_);
    };
    t.stream_qkv = between(kStreamIn, kQkvProduct);
    t.qkv_scores = between(kQkvProduct, kScoreProduct);
    t.scores_softmax = between(kScoreProduct, kSoftmaxOf);
    t.qkv_values = between(kQkvProduct, kValueProduct);
    t.softmax_values = between(kSoftmaxOf, kValueProduct);
    t.values_projection = between(kValueProduct, kOutProjection);
    t.projection_stream = between(kOutProjection, kStreamMiddle);
    t.residual = between(kStreamIn, kStreamMiddle);
    t.stream_mlp_in = between(kStreamMiddle, kMlpInProduct);
    t.mlp_in_activation = between(kMlpInProduct, kActivationOf);
    t.activation_mlp_out = between(kActivationOf, kMlpOutProduct);
    t.mlp_out_stream = between(kMlpOutProduct, kStreamOut);
    if (below(2) == 0) {
      for (std::size_t v = 0; v < t.operators[kValueProduct].cost.size(); ++v) {
        t.fused.cost.push_back(below(3) == 0 ? kNever : below(120));
        t.fused.scores.push_back(below(as_int(t.operators[kScoreProduct].cost.size())));
      }
    }
    return t;
  }

 private:
  int below(int n) { return as_int(random_() % as_u32(n)); }

  OperatorTable op() {
    OperatorTable op{.cost = {}, .class_of = {}, .classes = 1 + below(classes_)};
    for (int c = 0; c < op.classes; ++c) {
      op.cost.push_back(below(50));
      op.class_of.push_back(c);
    }
    if (below(2) == 0) {
      op.cost.push_back(below(50));
      op.class_of.push_back(below(op.classes));
    }
    return op;
  }

  /// Cells from -`saved` on.
  EdgeTable edge(const OperatorTable& from, const OperatorTable& to, int saved) {
    const int columns = 1 + below(as_int(to.cost.size()));
    EdgeTable e{TickMatrix(as_index(from.classes), as_index(columns), 0), {}};
    for (Ticks& cell : e.cost.cells) cell = below(3) == 0 ? -below(saved + 1) : below(60);
    for (std::size_t p = 0; p < to.cost.size(); ++p) e.column.push_back(below(columns));
    return e;
  }

  std::mt19937 random_;
  int classes_, saved_;
};

/// Least cost over all plans of `layers` layers.
class BruteForce {
 public:
  BruteForce(const LayerTables& tables, int layers) : t_(tables), layers_(as_index(layers)) {}

  std::int64_t least() {
    choose(0, kStreamIn);
    return least_;
  }
  /// Of one layer with each plan. @pre least() ran.
  std::int64_t least_with(LayerOperator op, int plan) const {
    const auto at = least_with_.find({op, plan});
    return at == least_with_.end() ? std::numeric_limits<std::int64_t>::max() : at->second;
  }

 private:
  void choose(std::size_t layer, int op) {
    if (layer == layers_.size()) {
      const std::int64_t ticks = ticks_of(t_, layers_);
      least_ = std::min(least_, ticks);
      if (layers_.size() > 1) return;
      for (int i = 0; i < kLayerOperators; ++i) {
        const auto [known, fresh] =
            least_with_.try_emplace({i, layers_.front()[as_index(i)]}, ticks);
        known->second = std::min(known->second, ticks);
      }
      return;
    }
    LayerPlans& plans = layers_[layer];
    if (op == kStreamIn && layer > 0) {
      plans[kStreamIn] = layers_[layer - 1][kStreamOut];
      return choose(layer, kQkvProduct);
    }
    for (std::size_t p = 0; p < t_.operators[as_index(op)].cost.size(); ++p) {
      plans[as_index(op)] = as_int(p);
      if (op == kValueProduct) try_fused(layer);
      op == kStreamOut ? choose(layer + 1, kStreamIn) : choose(layer, op + 1);
    }
  }

  /// Attention in one operation in place of what is chosen of scores and softmax.
  void try_fused(std::size_t layer) {
    LayerPlans& plans = layers_[layer];
    const auto v = as_index(plans[kValueProduct]);
    if (t_.fused.cost.empty() || t_.fused.cost[v] >= kNever) return;
    const LayerPlans apart = plans;
    plans[kScoreProduct] = t_.fused.scores[v];
    plans[kSoftmaxOf] = kFusedPlan;
    choose(layer, kOutProjection);
    plans = apart;
  }

  const LayerTables& t_;
  std::vector<LayerPlans> layers_;
  std::int64_t least_ = std::numeric_limits<std::int64_t>::max();
  std::map<std::pair<int, int>, std::int64_t> least_with_;  // [operator, plan]
};

/// The table's cells, columns by first appearance; what is saved is known by row or by column.
ChainEdge chain_edge(const EdgeTable& table, const PlanNumbers& behind, bool by_row) {
  std::vector<int> number(table.cost.columns, -1), columns;
  ChainEdge edge;
  for (const int p : behind) {
    const int c = table.column[as_index(p)];
    if (number[as_index(c)] < 0) {
      number[as_index(c)] = as_int(columns.size());
      columns.push_back(c);
    }
    edge.column.push_back(number[as_index(c)]);
  }
  edge.saved_by_row.assign(table.cost.rows, 0);
  edge.saved_by_column.assign(columns.size(), 0);
  for (std::size_t r = 0; r < table.cost.rows; ++r)
    for (std::size_t c = 0; c < columns.size(); ++c) {
      Ticks& saved = by_row ? edge.saved_by_row[r] : edge.saved_by_column[c];
      saved = std::max(saved, -table.cost.row(r)[columns[c]]);
    }
  edge.cells = [&table, columns](std::size_t row, std::size_t first, std::span<Ticks> cells) {
    for (std::size_t i = 0; i < cells.size(); ++i)
      cells[i] = table.cost.row(row)[columns[first + i]];
  };
  return edge;
}

TEST(PartitionOracle, BoundsKeepEveryPlanOfCheapLayers) {
  int left_out = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    const LayerTables t = RandomTables(seed).tables();
    const std::array<const EdgeTable*, kLayerOperators - 1> chain{
        &t.stream_qkv,         &t.qkv_scores,        &t.scores_softmax, &t.softmax_values,
        &t.values_projection,  &t.projection_stream, &t.stream_mlp_in,  &t.mlp_in_activation,
        &t.activation_mlp_out, &t.mlp_out_stream};
    const ChainBounds bounds(t.operators, t.fused, [&](int from, const PlanNumbers& behind) {
      return chain_edge(*chain[as_index(from)], behind, (from + seed) % 2 == 0);
    });
    BruteForce all(t, 1);
    const std::int64_t least = all.least();
    EXPECT_LE(bounds.least(), least);
    for (const std::int64_t limit : {least, least + least / 4}) {
      const auto kept = bounds.within(limit);
      for (int i = 0; i < kLayerOperators; ++i)
        for (int p = 0; p < as_int(t.operators[as_index(i)].cost.size()); ++p) {
          const bool is_kept = std::ranges::binary_search(kept[as_index(i)], p);
          if (all.least_with(LayerOperator(i), p) <= limit) {
            EXPECT_TRUE(is_kept) << "seed " << seed << ", plan " << p << " of " << i;
          }
          left_out += is_kept ? 0 : 1;
        }
    }
  }
  EXPECT_GT(left_out, 300);
}

TEST(PartitionOracle, BoundsOfWideEdgesAreThoseOfThePlainChain) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    LayerTables t = RandomTables(seed, 200, 60).tables();
    t.fused = {};
    const std::array<const EdgeTable*, kLayerOperators - 1> chain{
        &t.stream_qkv,         &t.qkv_scores,        &t.scores_softmax, &t.softmax_values,
        &t.values_projection,  &t.projection_stream, &t.stream_mlp_in,  &t.mlp_in_activation,
        &t.activation_mlp_out, &t.mlp_out_stream};
    const ChainBounds bounds(t.operators, t.fused, [&](int from, const PlanNumbers& behind) {
      return chain_edge(*chain[as_index(from)], behind, true);
    });
    std::vector<std::int64_t> after(as_index(t.operators[kStreamOut].classes), 0);
    for (std::size_t i = chain.size(); i-- > 0;) {
      const OperatorTable& next = t.operators[i + 1];
      std::vector<std::int64_t> before(as_index(t.operators[i].classes), 1 << 20);
      for (std::size_t row = 0; row < before.size(); ++row)
        for (std::size_t p = 0; p < next.cost.size(); ++p)
          before[row] = std::min(before[row], chain[i]->at(as_int(row), p) +
                                                  (i + 1 == kStreamOut ? 0 : next.cost[p]) +
                                                  after[as_index(next.class_of[p])]);
      after = before;
    }
    const OperatorTable& first = t.operators[kStreamIn];
    std::int64_t least = 1 << 20;
    for (std::size_t p = 0; p < first.cost.size(); ++p)
      least = std::min(least, first.cost[p] + after[as_index(first.class_of[p])]);
    EXPECT_EQ(bounds.least(), least) << "seed " << seed;
  }
}

TEST(PartitionOracle, LimitThatProves) {
  // One other layer beside the best one; two in place of both; three runs of one layer each.
  EXPECT_EQ(proving_limit(std::array<std::int64_t, 2>{0, 10}), 10);
  EXPECT_EQ(proving_limit(std::array<std::int64_t, 3>{0, 10, 21}), 11);
  EXPECT_EQ(proving_limit(std::array<std::int64_t, 6>{0, 10, 25, 40, 55, 70}), 20);
  // Every stack with others: none costs less, and with a limit below one could.
  std::mt19937 random{5};
  for (int times = 0; times < 50; ++times) {
    std::vector<std::int64_t> runs{0};
    for (int n = 0; n < 7; ++n) runs.push_back(runs.back() + 50 + as_int(random() % 30));
    const std::int64_t limit = proving_limit(runs);
    const auto least_with_others = [&](std::int64_t other) {
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (unsigned others = 1; others < 1U << 7; ++others) {
        std::int64_t sum = 0;
        std::size_t run = 0;
        for (unsigned l = 0; l <= 7; ++l) {
          const bool ends = l == 7 || (others >> l & 1) != 0;
          run = ends ? 0 : run + 1;
          if (!ends)
            sum += runs[run] - runs[run - 1];
          else if (l < 7)
            sum += other;
        }
        least = std::min(least, sum);
      }
      return least;
    };
    EXPECT_GT(least_with_others(limit + 1), runs.back());
    EXPECT_LE(least_with_others(limit), runs.back());
  }
}

TEST(PartitionOracle, RandomTables) {
  int different = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    const LayerTables tables = RandomTables(seed).tables();
    const PartitionProgram one = solve_partition(tables, 1).value();
    ASSERT_EQ(one.ticks, BruteForce(tables, 1).least()) << "seed " << seed;
    std::size_t pairs = 1;  // combinations of two layers
    for (const OperatorTable& op : tables.operators) pairs *= op.cost.size() * op.cost.size();
    if (pairs > 3'000'000) continue;
    const PartitionProgram two = solve_partition(tables, 2).value();
    ASSERT_EQ(two.ticks, BruteForce(tables, 2).least()) << "seed " << seed;
    ++different;
  }
  EXPECT_GT(different, 5);
}

TEST(PartitionOracle, MatricesOverMinPlus) {
  std::mt19937 random{7};
  for (const auto [rows, inner, columns] :
       {std::array<std::size_t, 3>{3, 5, 2}, {70, 130, 90}, {17, 200, 1100}, {1, 1, 513}}) {
    const auto matrix = [&](std::size_t r, std::size_t c) {
      TickMatrix m(r, c, 0);
      for (Ticks& cell : m.cells)
        cell = random() % 9 == 0 ? kNever : static_cast<Ticks>(random() % 100'000);
      return m;
    };
    const TickMatrix a = matrix(rows, inner), b = matrix(inner, columns);
    TickMatrix plain(rows, columns, kNever);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t k = 0; k < inner; ++k)
        for (std::size_t j = 0; j < columns; ++j)
          plain.row(i)[j] = std::min(plain.row(i)[j], a.row(i)[k] + b.row(k)[j]);
    EXPECT_EQ(min_plus(a, b).cells, plain.cells);
  }
}

TEST(PartitionOracle, TwoDevices) {
  const auto model = model::find_model("gpt2").value();
  auto topology = topologies::catalog_topology("dgx-1-v100").value();
  const auto cost = costmodel::CostModel::make(
                        model, std::move(topology), std::nullopt,
                        {.precision = model::Precision::kFloat32, .sequence = 256, .library = {}})
                        .value();
  for (const double weight : {0.0, 100.0}) {
    for (const PartitionStep& step :
         {PartitionStep{}, PartitionStep{.micro_batches = 4, .zero = 3, .recomputes = true}}) {
      const PartitionRequest request{.bits = 1,
                                     .sequences = 2,
                                     .tokens = 256,
                                     .layers = 1,
                                     .memory_weight = weight,
                                     .step = step};
      const auto search = PartitionSearch::make(cost, request).value();
      EXPECT_EQ(solve_partition(search.tables(), 1)->ticks, BruteForce(search.tables(), 1).least());
    }
  }
}

TEST(PartitionOracle, WhatIsLeftOutIsInNoOptimum) {
  const auto model = model::find_model("llama-3-8b").value();
  const auto cost = costmodel::CostModel::make(
                        model, topologies::catalog_topology("dgx-1-v100", 2).value(), std::nullopt,
                        {.precision = model::Precision::kFloat32, .sequence = 512, .library = {}})
                        .value();
  for (const int bits : {2, 4})
    for (const int layers : {1, 3, 32})
      for (const double weight : {0.0, 100.0})
        for (const bool fused : {false, true}) {
          const PartitionRequest request{.bits = bits,
                                         .sequences = 4,
                                         .tokens = 512,
                                         .layers = layers,
                                         .memory_weight = weight,
                                         .skews = fused ? 1 : 0,
                                         .fused_attention = fused};
          const auto search = PartitionSearch::make(cost, request).value();
          const PartitionProgram all = solve_partition(search.tables(), layers).value();
          EXPECT_EQ(search.ticks(), all.ticks)
              << bits << " bits, " << layers << " layers, weight " << weight;
          EXPECT_EQ(search.plans(), all.layers);
        }
}

TEST(PartitionOracle, EdgesOfAllPlansCostWhatTheyCostAlone) {
  const auto cost = costmodel::CostModel::make(
                        model::find_model("llama-3-8b").value(),
                        topologies::catalog_topology("dgx-1-v100", 2).value(), std::nullopt,
                        {.precision = model::Precision::kFloat32, .sequence = 512, .library = {}})
                        .value();
  constexpr std::int64_t kTick = 1000;
  const PricedPlans plans(cost, {.bits = 4, .sequences = 4, .tokens = 512, .skews = 1});
  std::mt19937 random{9};
  int saving = 0;
  for (int to = kQkvProduct; to <= kStreamOut; ++to)
    for (int from = 0; from < to; ++from) {
      if (std::ranges::none_of(plans.graph().connections,
                               [&](const Connection& c) { return c.from == from && c.to == to; }))
        continue;
      const auto some = [&](int op) {
        PlanNumbers numbers;
        for (int i = 0; i < 30; ++i)
          numbers.push_back(as_int(random() % as_index(plans.count(op))));
        return numbers;
      };
      const PlanNumbers before = some(from), behind = some(to);
      for (const int f : before) {
        const PlanEdge edge = plans.edge(from, {f}, to, behind, kTick);
        std::vector<Ticks> cells(edge.rows.columns());
        edge.rows.cells(0, 0, cells);
        for (std::size_t i = 0; i < behind.size(); ++i) {
          const PricedPlans::MovePrice alone = plans.moves(from, f, to, behind[i]);
          const std::int64_t ps = alone.forward_ps + alone.backward_ps - alone.scatter_ps;
          // up to two tensors both ways, each a tick more than it fills
          const std::int64_t off = std::int64_t{cells[as_index(edge.column[i])]} * kTick - ps;
          EXPECT_GE(off, 0) << from << " to " << to;
          EXPECT_LE(off, 5 * kTick) << from << " to " << to;
          saving += alone.scatter_ps > 0 ? 1 : 0;
        }
      }
    }
  EXPECT_GT(saving, 100);
}

}  // namespace
}  // namespace orrery::search

// The segmented program against every combination of plans: on random tables, and on the real
// tables of two devices.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "base/numbers.h"
#include "search/partition/partition_search.h"

namespace orrery::search {
namespace {

using namespace plan;  // names of LayerOperator

class RandomTables {
 public:
  explicit RandomTables(unsigned seed) : random_(seed) {}

  LayerTables tables() {
    LayerTables t;
    for (std::size_t i = 0; i < t.operators.size(); ++i) t.operators[i] = op();
    t.operators[kStreamMiddle] = t.operators[kStreamOut] = t.operators[kStreamIn];
    const auto between = [&](LayerOperator from, LayerOperator to) {
      return edge(t.operators[from], t.operators[to]);
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
    OperatorTable op{.cost = {}, .class_of = {}, .classes = 1 + below(2)};
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

  EdgeTable edge(const OperatorTable& from, const OperatorTable& to) {
    const int columns = 1 + below(as_int(to.cost.size()));
    EdgeTable e{TickMatrix(as_index(from.classes), as_index(columns), 0), {}};
    for (Ticks& cell : e.cost.cells) cell = below(3) == 0 ? 0 : below(60);
    for (std::size_t p = 0; p < to.cost.size(); ++p) e.column.push_back(below(columns));
    return e;
  }

  std::mt19937 random_;
};

/// Least cost over all plans of `layers` layers.
class BruteForce {
 public:
  BruteForce(const LayerTables& tables, int layers) : t_(tables), layers_(as_index(layers)) {}

  std::int64_t least() {
    choose(0, kStreamIn);
    return least_;
  }

 private:
  void choose(std::size_t layer, int op) {
    if (layer == layers_.size()) {
      least_ = std::min(least_, ticks_of(t_, layers_));
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
};

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

}  // namespace
}  // namespace orrery::search

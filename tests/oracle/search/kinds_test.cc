// Models with blocks of several kinds: the planner against every plan of its space
// (kinds_solver.h), each priced by costmodel::plan_cost. The enumeration knows nothing of the
// search: all powers of two, on all devices and on fewer, all cuts, interleaved plans of equal
// stages, and what plan::validate accepts.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "costmodel/closed_form/layer_costs.h"
#include "search/loop/planner.h"
#include "search/space/space_text.h"
#include "tests/unit/search/checked_answer.h"
#include "tests/unit/search/random_machine.h"

namespace orrery::search {
namespace {

model::BlockShape shape_of(const model::ModelSpec& m) {
  return {.hidden = m.hidden,
          .heads = m.heads,
          .kv_heads = m.kv_heads,
          .head_dim = m.head_dim,
          .ffn = m.ffn,
          .causal = m.causal};
}
model::ModelSpec finished(model::ModelSpec m) {
  m.layers = 0;
  for (const model::BlockRun& run : m.runs) m.layers += run.count;
  return m.of_kind(0);
}
model::ModelSpec tiny_t5() {
  model::ModelSpec m = block_kind(0, 1);
  m.family = model::Family::kT5;
  m.position = model::PositionKind::kRelative;
  m.relative_buckets = 4;
  m.gated_mlp = false;
  m.activation = model::Activation::kRelu;
  m.tied_embeddings = true;
  model::BlockShape s = shape_of(m);
  s.causal = false;
  m.runs.push_back({"encoder", 2, s});
  s.causal = s.cross_attention = true;
  s.entry = model::BlockEntry::kEncoderEnd;
  m.runs.push_back({"decoder 1", 1, s});
  s.entry = model::BlockEntry::kNone;
  m.runs.push_back({"decoder", 1, s});
  return finished(m);
}
model::ModelSpec tiny_swin() {
  model::ModelSpec m = block_kind(0, 1);
  m.family = model::Family::kSwin;
  m.norm = model::NormKind::kLayerNorm;
  m.position = model::PositionKind::kRelative;
  m.patch_norm = m.qkv_bias = m.projection_bias = m.mlp_bias = true;
  m.gated_mlp = m.causal = false;
  m.patch_features = 12;
  m.max_positions = 256;
  model::BlockShape s = shape_of(m);
  s.window = 16;
  m.runs.push_back({"stage 1", 1, s});
  s.hidden = 512;
  s.head_dim = 64;
  s.ffn = 1024;
  s.token_share = 4;
  s.entry = model::BlockEntry::kPatchMerging;
  m.runs.push_back({"stage 2 merge", 1, s});
  s.entry = model::BlockEntry::kNone;
  m.runs.push_back({"stage 2", 2, s});
  return finished(m);
}
model::ModelSpec tiny_mixture() {
  model::ModelSpec m = block_kind(0, 1);
  m.family = model::Family::kDeepSeek;
  m.shared_gate = false;
  model::BlockShape s = shape_of(m);
  m.runs.push_back({"dense", 1, s});
  s.experts = 8;
  s.experts_per_token = 2;
  s.shared_ffn = 256;
  s.ffn = 128;
  m.runs.push_back({"experts", 3, s});
  return finished(m);
}

/// Groups of the model: layers that share a strategy.
std::vector<std::int64_t> group_sizes(const model::ModelSpec& m) {
  if (m.encoder_decoder() || m.patch_features > 0)
    return {m.runs[0].count, m.runs[1].count + m.runs[2].count};
  return {m.runs[0].count, m.runs[1].count};
}

struct Priced {
  std::int64_t cost_ps, peak_bytes;
};

class Enumeration {
 public:
  Enumeration(const costmodel::CostModel& cost, std::int64_t batch)
      : cost_(cost), costs_(cost), batch_(batch) {
    const int devices = static_cast<int>(cost.topology().device_count());
    for (int stages = 1; stages <= std::min<std::int64_t>(devices, cost.model().layers); ++stages) {
      for (int each = 1; stages * each <= devices; each *= 2) {
        for (std::int64_t m = 1; m <= batch; m *= 2) problem(stages, each, m);
      }
    }
  }
  std::vector<Priced> all;

  [[nodiscard]] std::int64_t best(std::int64_t limit) const {
    std::int64_t least = -1;
    for (const Priced& p : all) {
      if (p.peak_bytes <= limit && (least < 0 || p.cost_ps < least)) least = p.cost_ps;
    }
    return least;
  }

 private:
  void problem(int stages, int devices, std::int64_t m) {
    plan_ = {};
    plan_.model = cost_.model().name;
    plan_.model_fingerprint = cost_.model().fingerprint();
    plan_.precision = cost_.options().precision;
    plan_.sequence = cost_.options().sequence;
    plan_.global_batch = batch_;
    plan_.micro_batches = m;
    std::vector<plan::LayerStrategy> strategies, vocabularies;
    for (int tp = 1; tp <= devices; tp *= 2) {
      for (const int zero : {0, 3}) {
        if (zero > 0 && devices == tp) continue;
        vocabularies.push_back({.tp = tp, .dp = devices / tp, .zero = zero});
        for (const auto recompute : {plan::Recompute::kNone, plan::Recompute::kFull}) {
          for (int ep = 1; ep <= devices / tp; ep *= 2) {
            plan::LayerStrategy strategy{
                .tp = tp, .dp = devices / tp, .zero = zero, .recompute = recompute, .ep = ep};
            strategies.push_back(strategy);
            if (zero < 3 || m == 1) continue;
            strategy.grad_reduce = plan::GradReduce::kMicroBatch;
            strategies.push_back(strategy);
          }
        }
      }
    }
    const std::vector<std::int64_t> sizes = group_sizes(cost_.model());
    for (const auto& v : vocabularies) {
      for (const auto& first : strategies) {
        for (const auto& second : strategies) {
          std::vector<plan::LayerStrategy> layers(static_cast<std::size_t>(sizes[0]), first);
          layers.insert(layers.end(), static_cast<std::size_t>(sizes[1]), second);
          plan_.vocabulary = v;
          plan_.stages.clear();
          plan_.schedule = plan::Schedule::k1F1B;
          plan_.virtual_stages = 1;
          cut(layers, 0, stages);
          if (first.same_layout(second)) spread(layers, stages);
        }
      }
    }
  }
  void cut(const std::vector<plan::LayerStrategy>& layers, std::size_t from, int left) {
    if (left == 0) {
      if (from == layers.size()) price();
      return;
    }
    plan::Stage stage;
    for (std::size_t to = from + 1; to <= layers.size(); ++to) {
      stage.runs.push_back({1, layers[to - 1]});
      plan_.stages.push_back(stage);
      cut(layers, to, left - 1);
      plan_.stages.pop_back();
    }
  }
  /// Interleaved, stages of equal length.
  void spread(const std::vector<plan::LayerStrategy>& layers, int stages) {
    plan_.schedule = plan::Schedule::kInterleaved;
    for (int v = 2; stages * v <= static_cast<int>(layers.size()); ++v) {
      plan_.virtual_stages = v;
      plan_.stages.clear();
      auto layer = layers.begin();
      for (const int count : plan::stage_layers(std::ssize(layers), stages, v)) {
        plan_.stages.emplace_back();
        for (int k = 0; k < count; ++k) plan_.stages.back().runs.push_back({1, *layer++});
      }
      price();
    }
  }
  void price() {
    if (!plan::validate(plan_, cost_.model()).empty()) return;
    const auto priced = costmodel::plan_cost(costs_, plan_);
    ASSERT_TRUE(priced.has_value());
    all.push_back({priced->step_ps, std::ranges::max(priced->stage_peak_bytes)});
  }

  const costmodel::CostModel& cost_;
  costmodel::LayerCosts costs_;
  std::int64_t batch_;
  plan::Plan plan_;
};

Space space() {
  Space named = space_of("dp,zero3,tp,pp,recompute,ep,interleaved,idle");
  named.recompute_selective = false;
  return named;
}

void compare(const model::ModelSpec& model, int devices, int limits_asked) {
  const auto made = costmodel::CostModel::make(model, tiny_cluster(devices), std::nullopt,
                                               {model::Precision::kBFloat16, model.max_positions});
  ASSERT_TRUE(made.has_value()) << base::to_string(made.error());
  const costmodel::CostModel& cost = *made;
  constexpr std::int64_t kBatch = 4;
  const Enumeration every(cost, kBatch);
  std::set<std::int64_t> limits;
  for (const Priced& p : every.all) limits.insert(p.peak_bytes);
  const std::vector<std::int64_t> sorted(limits.begin(), limits.end());
  int optimal = 0, asked = 0;
  for (std::size_t i = 0; i < sorted.size(); i += std::max<std::size_t>(1, sorted.size() / 12)) {
    PlanRequest request;
    request.global_batch = kBatch;
    request.memory_bytes = sorted[i] + cost.context_bytes();
    request.top = 2;
    request.relax = false;
    request.space = space();
    const auto answer = find_plan(cost, request);
    ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
    const std::int64_t best = every.best(sorted[i]);
    ASSERT_GT(best, 0);
    ASSERT_FALSE(answer->candidates.empty()) << sorted[i];
    EXPECT_EQ(checkers_fault(cost, *answer), "");
    ++asked;
    EXPECT_LE(answer->certificate.bound_ps, best);
    EXPECT_GE(answer->certificate.cost_ps, best);
    if (answer->status != Status::kOptimal) continue;
    ++optimal;
    EXPECT_EQ(answer->certificate.cost_ps, best) << model.name << " limit " << sorted[i];
  }
  EXPECT_EQ(asked, limits_asked);
  EXPECT_EQ(optimal, asked);
  PlanRequest nothing;
  nothing.global_batch = kBatch;
  nothing.memory_bytes = sorted.front() + cost.context_bytes() - 1;
  nothing.relax = false;
  nothing.space = space();
  const auto answer = find_plan(cost, nothing);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, Status::kInfeasible);
  EXPECT_GT(answer->shortfall_bytes, 0);
}

TEST(KindsPlans, EncoderDecoderEqualsEveryPlan) { compare(tiny_t5(), 4, 12); }
TEST(KindsPlans, StagesOfSwinEqualEveryPlan) { compare(tiny_swin(), 4, 13); }
TEST(KindsPlans, DenseBlockBeforeExpertsEqualsEveryPlan) { compare(tiny_mixture(), 4, 13); }

}  // namespace
}  // namespace orrery::search

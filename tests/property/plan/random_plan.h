#pragma once
/// Random valid plans for property tests of any room: small models of every shape, heterogeneous
/// strategies, pp 1..4, every schedule, stages from even to lopsided, zero 0..3 (of all operators
/// or some, in slices), hybrid sharding, context parallelism of both kinds, strided groups,
/// reduction per step and per micro-batch, recomputation, sequence parallelism, vocabulary tensor
/// parallelism.
///
///     rc::check("...", [] {
///       const RandomPlan r = random_plan(*rc::gen::arbitrary<std::uint64_t>());
///       ... r.model, r.plan ...
///     });

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "plan/program/plan.h"

namespace orrery::plan {

struct RandomPlan {
  model::ModelSpec model;
  Plan plan;
};

/// Numbers of a seed.
class Draw {
 protected:
  explicit Draw(std::uint64_t seed) : rng_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool flag() { return rng_.below(2) == 1; }
  /// A power of two up to `limit`, which is one itself.
  std::int64_t power_of_two(std::int64_t limit) {
    std::int64_t n = 1;
    while (n < limit && flag()) n *= 2;
    return n;
  }

  base::Rng rng_;
};

/// Draws one plan. Everything is a function of the seed, so a failure is repeated by its seed.
class PlanDraw : Draw {
 public:
  explicit PlanDraw(std::uint64_t seed, bool mixture = false) : Draw(seed), mixture_(mixture) {}

  RandomPlan draw(std::int64_t max_devices_per_stage = 8) {
    RandomPlan r;
    const std::int64_t devices = power_of_two(max_devices_per_stage);
    const std::int64_t pp = between(1, 4);
    Schedule schedule = static_cast<Schedule>(between(0, 5));
    const bool interleaved = schedule == Schedule::kInterleaved && pp > 1,
               v_shaped = is_v_shaped(schedule) && pp > 1;
    if (pp == 1 && (schedule == Schedule::kInterleaved || is_v_shaped(schedule)))
      schedule = Schedule::k1F1B;
    const std::int64_t chunks = interleaved ? between(2, 3) : 1 + v_shaped;
    r.model = model(pp * chunks);
    Plan& p = r.plan;
    p.model = r.model.name;
    p.model_fingerprint = r.model.fingerprint();
    p.cluster = "random";
    p.precision = flag() ? model::Precision::kFloat32 : model::Precision::kBFloat16;
    p.sequence = r.model.max_positions;
    p.micro_batches = interleaved ? pp * between(1, 3) : between(1, 5);
    p.global_batch = p.micro_batches * devices * between(1, 2);
    p.schedule = schedule;
    p.virtual_stages = static_cast<int>(chunks);
    p.prefetch_depth = static_cast<int>(between(0, 2));
    p.vocabulary = strategy(devices, true);
    p.stages = stages(r.model.layers, pp * chunks, devices);
    return r;
  }

 private:
  /// Eight heads and even sizes, so that every tp up to 8 divides; the rest varies.
  model::ModelSpec model(std::int64_t pp) {
    model::ModelSpec m;
    m.name = "random";
    m.layers = pp + between(0, 4);
    m.heads = 8;
    m.kv_heads = 8;
    m.head_dim = 4;
    m.hidden = 32;
    m.ffn = ffn_ = 8 * between(2, 6);
    m.vocab = between(17, 60);
    m.max_positions = 8 * between(1, 2);
    const bool llama = flag();
    m.family = llama ? model::Family::kLlama : model::Family::kGpt2;
    m.norm = llama ? model::NormKind::kRmsNorm : model::NormKind::kLayerNorm;
    m.activation = llama ? model::Activation::kSilu : model::Activation::kGeluTanh;
    m.gated_mlp = llama;
    m.position = llama ? model::PositionKind::kRotary : model::PositionKind::kLearned;
    m.qkv_bias = flag();
    m.projection_bias = m.mlp_bias = !llama;
    m.tied_embeddings = flag();
    if (mixture_) add_experts(m);
    return m;
  }

  /// Eight experts, so that every ep up to 8 divides.
  void add_experts(model::ModelSpec& m) {
    m.experts = 8;
    m.experts_per_token = between(1, 3);
    m.shared_ffn = flag() ? 0 : 8 * between(1, 3);
    m.capacity_factor = flag() ? 1.25 : 2.0;
    m.mlp_bias = false;
  }

  LayerStrategy strategy(std::int64_t devices, bool vocabulary) {
    LayerStrategy s;
    s.tp = static_cast<int>(power_of_two(devices));
    s.cp = static_cast<int>(power_of_two(devices / s.tp));
    s.dp = static_cast<int>(devices / s.tp / s.cp);
    if (flag() || s.cp > 4)
      s.context = ContextKind::kUlysses;  // a ring has 2 cp chunks of 8 tokens
    s.strided = flag() && flag();
    s.zero = static_cast<int>(between(0, 3));
    if (s.zero >= 2 && flag()) s.grad_reduce = GradReduce::kMicroBatch;
    if (flag() && flag()) s.grad_reduce = GradReduce::kEnd;
    if (s.zero > 0 && flag()) s.shard = static_cast<int>(power_of_two(s.replicas()));
    if (vocabulary) return s;
    s.sequence_parallel = s.tp > 1 && flag();
    s.recompute = static_cast<Recompute>(between(0, 3));
    if (mixture_ && flag()) s.ep = static_cast<int>(power_of_two(s.replicas()));
    if (mixture_ && s.sequence_parallel && flag()) {
      s.folded = true;
      s.ep = static_cast<int>(power_of_two(std::min(s.ranks(), 8)));
    }
    if (s.ep > 1 || s.folded) {
      s.shard = 0;
      s.strided = false;
    }
    if (s.zero == 3 && !mixture_) {
      s.operators = static_cast<ShardedOperators>(between(0, 2));
      s.slices = static_cast<int>(power_of_two(4));
      while (32 / s.tp % s.slices != 0 || ffn_ / s.tp % s.slices != 0) s.slices /= 2;
      if (s.recompute == Recompute::kOperator) s.slices = 1;
    }
    if (s.sequence_parallel && s.slices == 1 && (s.cp == 1 || s.context == ContextKind::kUlysses) &&
        flag()) {
      s.tensor_pieces = static_cast<int>(power_of_two(4));
      while (s.tensor_pieces > 1 && 8 % (s.tp * s.cp * s.tensor_pieces) != 0) s.tensor_pieces /= 2;
    }
    return s;
  }

  std::vector<Stage> stages(std::int64_t layers, std::int64_t pp, std::int64_t devices) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(pp), 1);
    // one stage gets all that is to spare
    const std::int64_t heavy = flag() ? between(0, pp - 1) : -1;
    for (std::int64_t spare = layers - pp; spare > 0; --spare)
      ++counts[static_cast<std::size_t>(heavy >= 0 ? heavy : between(0, pp - 1))];
    std::vector<Stage> stages;
    const LayerStrategy usual = strategy(devices, false);
    for (std::int64_t left : counts) {
      Stage stage;
      while (left > 0) {
        const std::int64_t n = between(1, left);
        stage.runs.push_back({static_cast<int>(n), flag() ? usual : strategy(devices, false)});
        left -= n;
      }
      stages.push_back(stage);
    }
    return stages;
  }

  bool mixture_;
  std::int64_t ffn_ = 0;
};

inline RandomPlan random_plan(std::uint64_t seed, std::int64_t max_devices_per_stage = 8) {
  return PlanDraw(seed).draw(max_devices_per_stage);
}

/// The same for mixtures of experts, with expert parallelism.
inline RandomPlan random_expert_plan(std::uint64_t seed, std::int64_t max_devices_per_stage = 8) {
  return PlanDraw(seed, true).draw(max_devices_per_stage);
}

/// The same for an encoder with norms after the residuals (BERT).
inline RandomPlan random_encoder_plan(std::uint64_t seed, std::int64_t max_devices_per_stage = 8) {
  RandomPlan r = random_plan(seed, max_devices_per_stage);
  model::ModelSpec& m = r.model;
  m.family = model::Family::kBert;
  m.post_norm = m.embedding_norm = m.pooler = m.projection_bias = m.mlp_bias = m.qkv_bias = true;
  m.causal = m.gated_mlp = false;
  m.norm = model::NormKind::kLayerNorm;
  m.activation = model::Activation::kGelu;
  m.position = model::PositionKind::kLearned;
  m.type_vocab = 2;
  r.plan.model_fingerprint = m.fingerprint();
  return r;
}

/// The same with the activations of about half the runs on the host.
inline RandomPlan with_offload(RandomPlan r, std::uint64_t seed) {
  base::Rng rng(seed);
  for (Stage& stage : r.plan.stages) {
    for (LayerRun& run : stage.runs) {
      run.strategy.states = static_cast<States>(rng.below(2));
      if (rng.below(2) == 0) continue;
      run.strategy.recompute = Recompute::kOffload;
      run.strategy.slices = 1;
    }
  }
  r.plan.vocabulary.states = static_cast<States>(rng.below(2));
  return r;
}

/// The same with low-rank adapters on some products, all else frozen.
inline RandomPlan random_adapter_plan(std::uint64_t seed, std::int64_t max_devices_per_stage = 8) {
  RandomPlan r = random_plan(seed, max_devices_per_stage);
  const std::uint64_t some = 1 + seed % 15;
  r.model.adapter = {1 + static_cast<std::int64_t>(seed % 5), (some & 1) != 0, (some & 2) != 0,
                     (some & 4) != 0, (some & 8) != 0};
  for (Stage& stage : r.plan.stages) {
    for (LayerRun& run : stage.runs) {
      if (run.strategy.recompute == Recompute::kOperator)
        run.strategy.recompute = Recompute::kSelective;
    }
  }
  r.plan.adapter = r.model.adapter;
  r.plan.model_fingerprint = r.model.fingerprint();
  return r;
}

}  // namespace orrery::plan

#pragma once
/// Random valid plans of models with blocks of several kinds: T5, Swin, ViT, and mixtures of
/// experts behind dense blocks. As random_plan.h otherwise.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "plan/program/plan.h"
#include "tests/property/plan/random_plan.h"

namespace orrery::plan {

class KindsDraw : Draw {
 public:
  explicit KindsDraw(std::uint64_t seed) : Draw(seed) {}

  RandomPlan draw(std::int64_t max_devices_per_stage = 8) {
    RandomPlan r;
    const std::int64_t devices = power_of_two(max_devices_per_stage);
    model_ = model();
    const std::int64_t pp = between(1, std::min<std::int64_t>(4, model_.layers));
    Plan& p = r.plan;
    p.model = model_.name;
    p.model_fingerprint = model_.fingerprint();
    p.cluster = "random";
    p.precision = flag() ? model::Precision::kFloat32 : model::Precision::kBFloat16;
    p.sequence = model_.max_positions;
    p.micro_batches = between(1, 5);
    p.global_batch = p.micro_batches * devices * between(1, 2);
    p.schedule = flag() ? Schedule::k1F1B : Schedule::kGPipe;
    if (!model_.encoder_decoder() && flag()) p.schedule = Schedule::kZeroBubbleH1;
    p.prefetch_depth = static_cast<int>(between(0, 2));
    p.vocabulary = strategy(devices, -1);
    p.stages = stages(pp, devices);
    r.model = model_;
    return r;
  }

 private:
  /// Eight heads, and sizes that every tp up to 8 divides.
  model::ModelSpec model() {
    model::ModelSpec m;
    m.name = "random";
    m.hidden = 32;
    m.heads = m.kv_heads = 8;
    m.head_dim = 4;
    m.ffn = 8 * between(2, 6);
    m.vocab = between(17, 60);
    m.max_positions = 64;
    switch (between(0, 3)) {
      case 0: t5(m); break;
      case 1: swin(m); break;
      case 2: vit(m); break;
      default: mixture(m); break;
    }
    if (m.runs.empty()) return m;
    m.layers = 0;
    for (const model::BlockRun& run : m.runs) m.layers += run.count;
    return m.of_kind(0);
  }
  static model::BlockShape shape_of(const model::ModelSpec& m) {
    return {.hidden = m.hidden,
            .heads = m.heads,
            .kv_heads = m.kv_heads,
            .head_dim = m.head_dim,
            .ffn = m.ffn,
            .causal = m.causal};
  }
  void t5(model::ModelSpec& m) {
    m.family = model::Family::kT5;
    m.norm = model::NormKind::kRmsNorm;
    m.activation = model::Activation::kRelu;
    m.gated_mlp = flag();
    m.qkv_bias = m.projection_bias = m.mlp_bias = false;
    m.position = model::PositionKind::kRelative;
    m.relative_buckets = 4;
    m.tied_embeddings = flag();
    model::BlockShape s = shape_of(m);
    s.causal = false;
    m.runs.push_back({"encoder", between(1, 3), s});
    s.causal = s.cross_attention = true;
    s.entry = model::BlockEntry::kEncoderEnd;
    m.runs.push_back({"decoder 1", 1, s});
    s.entry = model::BlockEntry::kNone;
    m.runs.push_back({"decoder", between(1, 3), s});
  }
  void image(model::ModelSpec& m) {
    m.patch_features = 12;
    m.tied_embeddings = m.causal = false;
  }
  void swin(model::ModelSpec& m) {
    image(m);
    m.family = model::Family::kSwin;
    m.position = model::PositionKind::kRelative;
    m.patch_norm = true;
    for (std::int64_t i = 0; i < 3; ++i) {
      model::BlockShape s = shape_of(m);
      s.hidden = 32 << i;
      s.head_dim = 4 << i;
      s.ffn = 32 << i;
      s.token_share = std::int64_t{1} << (2 * i);
      s.window = i < 2 ? 16 : 4;
      if (i > 0) {
        s.entry = model::BlockEntry::kPatchMerging;
        m.runs.push_back({fmt::format("stage {} merge", i + 1), 1, s});
        s.entry = model::BlockEntry::kNone;
      }
      m.runs.push_back({fmt::format("stage {}", i + 1), between(1, 2), s});
    }
  }
  void vit(model::ModelSpec& m) {
    image(m);
    m.family = model::Family::kViT;
    m.class_token = true;
    m.layers = between(4, 6);
  }
  void mixture(model::ModelSpec& m) {
    m.family = model::Family::kDeepSeek;
    m.norm = model::NormKind::kRmsNorm;
    m.activation = model::Activation::kSilu;
    m.gated_mlp = true;
    m.qkv_bias = m.projection_bias = m.mlp_bias = false;
    m.position = model::PositionKind::kRotary;
    m.tied_embeddings = false;
    m.shared_gate = false;
    m.routing.of_inputs = flag();
    model::BlockShape s = shape_of(m);
    m.runs.push_back({"dense", between(1, 2), s});
    s.experts = 8;
    s.experts_per_token = between(1, 3);
    s.shared_ffn = flag() ? 0 : 16;
    s.ffn = 16;
    m.runs.push_back({"experts", between(2, 4), s});
  }

  /// `layer` < 0: of the vocabulary.
  LayerStrategy strategy(std::int64_t devices, std::int64_t layer) {
    LayerStrategy s;
    s.tp = static_cast<int>(power_of_two(devices));
    if (model_.family == model::Family::kDeepSeek)
      s.cp = static_cast<int>(power_of_two(devices / s.tp));
    s.dp = static_cast<int>(devices / s.tp / s.cp);
    s.strided = flag() && flag();
    s.zero = static_cast<int>(between(0, 3));
    if (s.zero >= 2 && flag()) s.grad_reduce = GradReduce::kMicroBatch;
    if (flag() && flag()) s.grad_reduce = GradReduce::kEnd;
    if (s.zero > 0 && flag()) s.shard = static_cast<int>(power_of_two(s.replicas()));
    if (layer < 0) return s;
    const model::ModelSpec kind = model_.of_kind(model_.kind_of(layer));
    s.sequence_parallel =
        s.tp > 1 && flag() && model_.max_positions / kind.token_share % (s.tp * s.cp) == 0;
    while (s.sequence_parallel && s.cp == 1 && s.tensor_pieces < 4 && flag() &&
           model_.max_positions / kind.token_share / s.tp / s.cp % (2 * s.tensor_pieces) == 0)
      s.tensor_pieces *= 2;
    s.recompute = static_cast<Recompute>(between(0, 2));
    if (kind.experts > 0 && flag()) s.ep = static_cast<int>(power_of_two(s.replicas()));
    if (s.ep > 1) {
      s.shard = 0;
      s.strided = false;
    }
    return s;
  }

  std::vector<Stage> stages(std::int64_t pp, std::int64_t devices) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(pp), 1);
    for (std::int64_t spare = model_.layers - pp; spare > 0; --spare)
      ++counts[static_cast<std::size_t>(between(0, pp - 1))];
    std::vector<Stage> stages;
    std::int64_t layer = 0;
    for (const std::int64_t count : counts) {
      Stage stage;
      for (std::int64_t i = 0; i < count; ++i, ++layer) {
        // Neighbours of one kind often agree, so that runs are there, and segments of one layout.
        const bool repeat =
            layer > 0 && i > 0 && model_.kind_of(layer) == model_.kind_of(layer - 1) && flag();
        stage.runs.push_back({1, repeat ? stage.runs.back().strategy : strategy(devices, layer)});
      }
      stages.push_back(std::move(stage));
    }
    return stages;
  }

  model::ModelSpec model_;
};

inline RandomPlan random_kinds_plan(std::uint64_t seed, std::int64_t max_devices_per_stage = 8) {
  return KindsDraw(seed).draw(max_devices_per_stage);
}

}  // namespace orrery::plan

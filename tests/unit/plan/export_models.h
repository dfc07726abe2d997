#pragma once
/// A small model, and plans of it for exporters.
#include "plan/program/plan.h"

namespace orrery::plan {

inline model::ModelSpec export_model(std::int64_t layers = 8) {
  model::ModelSpec m;
  m.name = "small";
  m.family = model::Family::kLlama;
  m.layers = layers;
  m.hidden = 64;
  m.heads = m.kv_heads = 8;
  m.head_dim = 8;
  m.ffn = 256;
  m.vocab = 128;
  m.max_positions = 128;
  m.tied_embeddings = false;
  return m;
}

/// Stages of these sizes with one strategy for all, one sequence a data-parallel rank.
inline Plan export_plan_of(const model::ModelSpec& m, const std::vector<int>& sizes,
                           const LayerStrategy& layer, std::int64_t micro_batches = 4) {
  Plan p;
  p.model = m.name;
  p.model_fingerprint = m.fingerprint();
  p.cluster = "dgx-a100";
  p.sequence = 128;
  p.micro_batches = micro_batches;
  p.global_batch = micro_batches * layer.dp;
  p.vocabulary = {.tp = layer.tp,
                  .dp = layer.dp,
                  .zero = layer.zero,
                  .grad_reduce = layer.grad_reduce,
                  .cp = layer.cp,
                  .context = layer.context,
                  .shard = layer.shard};
  for (const int size : sizes) p.stages.push_back({{{size, layer}}});
  return p;
}

/// The `grep` of a file: its lines that begin with `--`, joined.
inline std::string options_of(const std::string& text) {
  std::string options;
  for (std::size_t at = 0; (at = text.find("\n  --", at)) != text.npos; ++at) {
    const std::size_t begin = at + 3, end = text.find('\n', begin);
    options += (options.empty() ? "" : " ") + text.substr(begin, end - begin);
  }
  return options;
}

}  // namespace orrery::plan

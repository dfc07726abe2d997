#pragma once
/// Small models, plans and hand-made Programs.

#include <string>
#include <utility>
#include <vector>

#include "plan/lowering/lower.h"

namespace orrery::plan {

/// GPT-2's shape with four layers, or Llama's (`llama`).
inline model::ModelSpec small_model(bool llama = false) {
  model::ModelSpec m;
  m.name = llama ? "small-llama" : "small-gpt2";
  m.family = llama ? model::Family::kLlama : model::Family::kGpt2;
  m.layers = 4;
  m.hidden = 32;
  m.heads = m.kv_heads = 8;
  m.head_dim = 4;
  m.ffn = 64;
  m.vocab = 50;
  m.max_positions = 16;
  if (llama) {
    m.norm = model::NormKind::kRmsNorm;
    m.activation = model::Activation::kSilu;
    m.position = model::PositionKind::kRotary;
    m.gated_mlp = true;
    m.qkv_bias = m.projection_bias = m.mlp_bias = m.tied_embeddings = false;
  }
  return m;
}

inline Plan small_plan(const model::ModelSpec& model, UniformOptions options) {
  if (options.global_batch == 1) options.global_batch = 8;
  auto plan = uniform_plan(model, "test", 1, options);
  ORRERY_CHECK(plan.has_value(), "{}", base::to_string(plan.error()));
  return *plan;
}

inline Program small_program(const model::ModelSpec& model, const UniformOptions& options) {
  auto program = lower(small_plan(model, options), model);
  ORRERY_CHECK(program.has_value(), "{}", base::to_string(program.error()));
  return *std::move(program);
}

/// Two stages of one rank each that run the given lists once.
inline Program two_ranks(Program program, std::vector<Op> first, std::vector<Op> second) {
  program.world_size = 2;
  program.devices_per_stage = 1;
  for (std::vector<Op>* ops : {&first, &second}) {
    const int stage = static_cast<int>(program.classes.size());
    RankClass c{.stage = stage,
                .first_rank = stage,
                .count = 1,
                .first_layer = 0,
                .end_layer = 1,
                .persistent = {},
                .body = {}};
    Node call;
    call.call = program.templates.push_back({"rank", std::move(*ops)});
    c.body = {call};
    for (const BufferId b : program.buffers.ids()) {
      if (program.buffers[b].persistent) c.persistent.push_back({b, 0});
    }
    program.classes.push_back(std::move(c));
  }
  return program;
}

}  // namespace orrery::plan

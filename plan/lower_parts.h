#pragma once
#include <vector>

#include "plan/builder.h"
#include "plan/liveness.h"

namespace orrery::plan {

/// Operations of one layer, forward and backward, with frees placed, and the parameter units it uses.
struct LayerPair {
  std::vector<Op> forward, backward;
  std::vector<UnitUse> units;
  std::vector<Op> weight = {};   // see split_backward
};

/// Takes the weight gradients of the plain products (qkv, projection, MLP) out of `backward`: each BG becomes a B, which stays, and a G in
/// `weight`. What a G reads (the product's input and the gradient of its output) lives until the last G that reads it. Norms, biases and
/// tables keep their BG: they give nothing to fill a bubble with.
void split_backward(Builder& b, LayerPair& pair);

LayerPair block_pair(Builder& b, const LayerStrategy& strategy);
/// The parameter units of a block.
std::vector<UnitUse> block_units(Builder& b, const LayerStrategy& strategy);
std::vector<Parameter> block_parameters(const model::ModelSpec& model, int tp);

/// What stands between the QKV product and the output projection of a block, forward (qkv -> o) and backward (do -> dqkv), without frees.
struct AttentionPart {
  std::vector<Op> forward, backward;
};
struct AttentionEnds {
  BufferRef qkv, o, d_o, dqkv;   // [b, s/cp, features/tp]
};
AttentionPart attention_part(Builder& b, const LayerStrategy& strategy, const AttentionEnds& ends);
/// Operations that selective recomputation runs again, and of which nothing else is kept: the attention core, in a ring with the travel of keys.
bool is_attention_core(const Program& program, const Op& op);

/// Token (and position) embedding; output in the vocabulary layout. Called with layer 0.
LayerPair embedding_pair(Builder& b, const LayerStrategy& vocabulary);
/// Final norm, logits, vocabulary-parallel loss and their backward, all in `forward`. Called with layer = number of blocks.
LayerPair head_pair(Builder& b, const LayerStrategy& vocabulary);
/// The head reads the embedding's own table (tied, and both in one stage).
bool shares_table(const Builder& b);

/// Change of layout of the residual stream at a block boundary. Same layout: no operations.
LayerPair reshard_pair(Builder& b, const Layout& from, const Layout& to);

/// Adds the templates of one layer to the Program under construction.
struct LayerSet {
  TemplateId forward, backward, weight, gather_forward, gather_backward, zero_gradient, sync, update;
  bool reduces_per_micro_batch = false;
  std::vector<BufferId> persistent;
};
LayerSet add_templates(Builder& b, const std::string& name, LayerPair pair);

/// Leading parameters that every tensor rank holds whole.
std::int64_t replicated_elements(const ParameterUnit& unit);

}  // namespace orrery::plan

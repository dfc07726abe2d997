#pragma once
/// Small models of the families whose blocks or objectives are not those of a decoder: four blocks
/// of width 64, sequences of 32 tokens, no two sizes alike where that can be.
#include "model/spec.h"

namespace orrery::tests {

/// 31 patches of 4 x 4 in three colours and a class token.
inline model::ModelSpec small_vit() {
  model::ModelSpec m;
  m.name = "small vit";
  m.family = model::Family::kViT;
  m.layers = 4;
  m.hidden = 64;
  m.heads = m.kv_heads = 4;
  m.head_dim = 16;
  m.ffn = 96;
  m.vocab = 10;
  m.max_positions = 32;
  m.patch_features = 48;
  m.class_token = true;
  m.causal = m.tied_embeddings = false;
  m.activation = model::Activation::kGelu;
  m.norm_epsilon = 1e-12;
  return m;
}

}  // namespace orrery::tests

#include "model/active_parameters.h"

namespace orrery::model {

std::int64_t active_parameters(const ModelSpec& model) {
  std::int64_t idle = 0;
  for (int k = 0; k < model.kinds(); ++k) {
    const ModelSpec block = model.of_kind(k);
    if (block.experts > 0)
      idle += model.blocks_of(k) * (block.experts - block.experts_per_token) *
              block.expert_width() * (block.mlp_in_features() + block.ffn);
  }
  return model.parameters() - idle;
}

}  // namespace orrery::model

#pragma once

namespace orrery::executor {

struct AdamW {
  double learning_rate = 3e-4, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
};

}  // namespace orrery::executor

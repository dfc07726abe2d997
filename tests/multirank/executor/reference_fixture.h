#pragma once
/// What one process trains against the same model written with LibTorch's own operations, in fp64
/// and with its autograd.
#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "base/check.h"
#include "model/spec.h"

namespace orrery::executor::testing {

constexpr std::int64_t kSequences = 3, kStep = 6;  // whose gradients are looked at
constexpr std::uint64_t kSeed = 5;

/// Tensors by name ("blocks.2.norm1.weight"), as they stand on the one rank.
class Named {
 public:
  std::map<std::string, at::Tensor> all;
  const at::Tensor& at(const std::string& name) const {
    const auto found = all.find(name);
    ORRERY_CHECK(found != all.end(), "no parameter '{}'", name);
    return found->second;
  }
};

/// One model's loss of a batch, from its parameters.
using Loss = at::Tensor(const model::ModelSpec&, const Named&);

/// A step of the interpreter behind some others, and the same by `loss`. Gradients of queries and
/// keys are differences of nearly equal numbers where attention is nearly even (and a bias of keys,
/// which moves all scores of a query alike, has none): what is below a hundredth of the whole
/// gradient is held against that.
void expect_reference(const model::ModelSpec& m, Loss* loss);

at::Tensor layer_norm(const model::ModelSpec& m, const Named& p, const std::string& name,
                      const at::Tensor& x);
at::Tensor rms_norm(const model::ModelSpec& m, const Named& p, const std::string& name,
                    const at::Tensor& x);
/// [b, s, h] as [b, n, s, d].
at::Tensor heads(const model::ModelSpec& m, const at::Tensor& x);
/// With its bias.
at::Tensor product(const Named& p, const std::string& name, const at::Tensor& x);

}  // namespace orrery::executor::testing

#pragma once
/// Between our names and LibTorch's. The narrow headers keep a file of this room near five seconds
/// of compile time.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include "base/check.h"
#include "base/numbers.h"
#include "model/dtype.h"

namespace orrery::executor {

inline at::ScalarType scalar_type(model::DType t) {
  switch (t) {
    case model::DType::kFloat32: return at::kFloat;
    case model::DType::kBFloat16: return at::kBFloat16;
    case model::DType::kInt64: return at::kLong;
    default: break;  // quantised: nothing trains in it
  }
  ORRERY_CHECK(false, "dtype {}", as_int(t));
}

inline model::DType dtype_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return model::DType::kFloat32;
  if (tensor.scalar_type() == at::kBFloat16) return model::DType::kBFloat16;
  ORRERY_CHECK(tensor.scalar_type() == at::kLong, "a dtype that no Program has");
  return model::DType::kInt64;
}

/// Of a tensor of this shape.
inline std::int64_t elements_of(at::IntArrayRef shape) { return c10::multiply_integers(shape); }

/// Uninitialised dense tensor.
inline at::Tensor empty(at::IntArrayRef shape, model::DType t, const at::Device& device) {
  return at::empty(shape, at::TensorOptions().dtype(scalar_type(t)).device(device));
}

}  // namespace orrery::executor

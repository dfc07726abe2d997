#pragma once
/// Between our names and LibTorch's. The narrow headers keep a file of this room near five seconds
/// of compile time.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"
#include "model/dtype.h"

namespace orrery::executor {

/// Codes of operands of products, with their scales: kept as bytes.
inline bool is_quantised(model::DType t) { return t > model::DType::kInt64; }

inline at::ScalarType scalar_type(model::DType t) {
  switch (t) {
    case model::DType::kFloat32: return at::kFloat;
    case model::DType::kBFloat16: return at::kBFloat16;
    case model::DType::kInt64: return at::kLong;
    case model::DType::kFloat8:
    case model::DType::kFloat8Blocks:
    case model::DType::kFloat4Blocks: return at::kByte;
  }
  ORRERY_CHECK(false, "dtype {}", as_int(t));
}

inline model::DType dtype_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return model::DType::kFloat32;
  if (tensor.scalar_type() == at::kBFloat16) return model::DType::kBFloat16;
  if (tensor.scalar_type() == at::kByte) return model::DType::kFloat8;  // bytes of any quantised
  ORRERY_CHECK(tensor.scalar_type() == at::kLong, "a dtype that no Program has");
  return model::DType::kInt64;
}

/// Of a tensor of this shape.
inline std::int64_t elements_of(at::IntArrayRef shape) { return c10::multiply_integers(shape); }

/// Shape of the tensor of a declared one: where quantised, a row is its bytes, codes then scales.
inline std::vector<std::int64_t> stored_shape(at::IntArrayRef shape, model::DType t) {
  std::vector<std::int64_t> stored = shape.vec();
  if (is_quantised(t)) stored.back() = model::bytes_of(t, stored.back());
  return stored;
}

/// Uninitialised dense tensor.
inline at::Tensor empty(at::IntArrayRef shape, model::DType t, const at::Device& device) {
  return at::empty(stored_shape(shape, t),
                   at::TensorOptions().dtype(scalar_type(t)).device(device));
}

/// The same in the host's memory, where copies from and to `device` run beside what it computes.
inline at::Tensor empty_on_host(at::IntArrayRef shape, model::DType t, const at::Device& device) {
  return at::empty(
      stored_shape(shape, t),
      at::TensorOptions().dtype(scalar_type(t)).device(at::kCPU).pinned_memory(device.is_cuda()));
}

}  // namespace orrery::executor

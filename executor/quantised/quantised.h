#pragma once
/// \file
/// Operands of products below bf16 on the CPU: codes and scales as the recipe has them, which are
/// decoded and multiplied in fp32.
///
/// A matrix [R, C] is coded by rows, along the C numbers that a product sums over: each row holds
/// its codes and behind them its scales, a byte or four for `block` columns. x is about
/// code * scale of its block * scale of the tensor. With M the largest code's number and m the
/// largest |x| under a scale:
///
///   fp8-delayed, fp8-current   tensor: c = M / m in fp32 (1 where m is 0), code(x c), scale 1 / c
///   fp8-block, mxfp8           block: 2^e with the smallest e that has m / 2^e <= M = 448
///   nvfp4                      tensor: c = 448 * 6 / m, scale 1 / c;  block: b = E4M3(m / 6 * c),
///                              code(x * (c / b))
///
/// Codes round to nearest, ties to even, and saturate at M: 448 in E4M3, 57344 in E5M2, 6 in E2M1.
/// E5M2 codes the incoming gradients of recipes with a scale for the tensor. Worked example: mxfp8
/// of a block whose largest number is 500: 500 / 2 <= 448, so its scale is 2 (byte 128) and 500 is
/// coded as E4M3(250) = 256, that is 512.
///
/// Sources: OCP 8-bit Floating Point 1.0 and Microscaling Formats 1.0 (codes; scales of blocks are
/// rounded up as in arXiv 2506.08027, not down, so that nothing saturates); Transformer Engine's
/// recipes (tensors; blocks of 1 x 128 and 128 x 128 with powers of two); arXiv 2509.25149 (nvfp4).
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/numbers.h"
#include "model/dtype.h"
#include "model/segment.h"

namespace orrery::executor {

enum class Code : std::uint8_t { kE4M3, kE5M2, kE2M1 };
float largest_of(Code code);
/// The code of the nearest number, of two the even one; beyond the largest, the largest.
std::uint8_t encode(Code code, float x);
float decode(Code code, std::uint8_t byte);

/// Of a product y = x W': x, W, dy.
enum class ProductOperand : std::uint8_t { kInput, kWeight, kGradient };

struct Coding {
  Code code = Code::kE4M3;
  bool of_tensor = false;        // one scale for all of it
  std::int64_t block = 0;        // columns with a scale; 0: none
  std::int64_t rows = 1;         // rows that share a block's scale, each with a copy
  std::int64_t scale_bytes = 0;  // of a block: 1 or 4
  /// What a tensor's largest number is coded as before its block is.
  [[nodiscard]] float reach() const;
  [[nodiscard]] std::int64_t code_bytes(std::int64_t columns) const {
    return code == Code::kE2M1 ? ceil_div(columns, std::int64_t{2}) : columns;
  }
  [[nodiscard]] std::int64_t row_bytes(std::int64_t columns) const {
    return code_bytes(columns) + (block == 0 ? 0 : ceil_div(columns, block) * scale_bytes);
  }
};
/// @pre a format.
Coding coding_of(model::Format format, ProductOperand operand);

/// max |x|, fp32 or bf16.
float largest_magnitude(const at::Tensor& x);
/// Codes x [R, C], fp32 or bf16 of any strides, into bytes [R, row_bytes(C)]; `largest` is that of
/// the tensor (used where it has a scale). Returns the tensor's scale, or 1.
float quantise(const Coding& coding, const at::Tensor& x, float largest, const at::Tensor& bytes);
/// Into x [R, C] fp32, dense.
void dequantise(const Coding& coding, const at::Tensor& bytes, float tensor_scale,
                const at::Tensor& x);

/// The copies of a weight W [out, in] that are kept: W by rows for y, W' for dx.
struct WeightCopies {
  at::Tensor rows, columns;  // bytes, parts of the Program's buffer
  float scale = 1;           // of the tensor
  bool made = false;         // of the parameters as they are
};

/// What products of quantised operands have beside their operands.
struct Quantisation {
  // scales of whole tensors: of the operand that comes quantised, and of the one that is written
  float read_scale = 1, written_scale = 1;
  WeightCopies* copies = nullptr;  // none: the weights are quantised for each use
  // the maximum that an operand's scale is taken from, by its own on this rank
  std::function<float(ProductOperand, float)> largest = [](ProductOperand, float own) {
    return own;
  };
  /// fp32 numbers of an emulated product, which a device that has it keeps in registers: not the
  /// Program's bytes, and not counted. Valid until the next call with the same place.
  at::Tensor floats(std::size_t place, at::IntArrayRef shape);

 private:
  std::array<std::vector<float>, 3> scratch_;
};

}  // namespace orrery::executor

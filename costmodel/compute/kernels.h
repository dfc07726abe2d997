#pragma once
/// \file
/// Kernels that an eager framework issues for a phase of a segment: counts of Megatron-LM's calls
/// (arXiv 1909.08053's code, fused bias, dropout and residual; fused AdamW over lists of tensors;
/// vocabulary-parallel loss in plain operations).
///
///   streams        1 to 8
///   AdamW          1 of a layer: a launch takes 320 pieces of 65,536 elements, of many tensors
///                  (apex, csrc/multi_tensor_apply.cuh), for the norm, the scale and the step
///   attention      2 forward, 4 backward, 1 more where positions are rotary; written out 6 and 8
///                  (products, softmax, copies that change the layout), 1 more with dropout
///   scans          Mamba-2 7 forward (convolution, sums of steps, states, their sums, products of
///                  keys, scan, norm), 22 backward; the delta rule 18 (6 of them gates) and 22
///   a product      g for each of its matrices, g products: 1 for F, B and G, 2 for BG, 1 more for
///                  the gradient of a bias
///   a bias of      weighted by the gate and added by expert: 2 of each and 2 forward, 5 of each
///   experts'       and 2 for gradients (TEGroupedMLP._apply_bias of Megatron-Core)
///   outputs
///   clamps of a    two and their join 3 forward; 7 backward (two masks and their product, a choice
///   gated          by each mask, a join)
///   activation
///   its operands   q for each of its matrices and each operand that is quantised: of F the input,
///                  of backward the incoming gradient. q by format: delayed 1, current 3 (maximum,
///                  scale, cast), blocks of fp8 1, blocks of 32 2 (cast, layout of the scales),
///                  fp4 3 (maximum, cast, layout)
///
/// Experts are as many matrices: Transformer Engine's GroupedLinear issues a product for each
/// (nvte_multi_stream_cublas_gemm) and splits what it quantises by expert
/// (transformer_engine/pytorch/module/grouped_linear.py).
/// Example: tests/unit/costmodel/kernels_test.cc. A profile of Qwen3-30B in bf16 with eight experts
/// on a rank (Megatron-Bridge, perf-moe-comm-overlap card) has 151 a layer, forward and backward;
/// these counts add up to about 120.
#include "model/segment.h"
#include "model/surface.h"

namespace orrery::costmodel {

/// 0 for a phase without work.
int issued_kernels(const model::SegmentShape& shape, model::Phase phase,
                   const model::Framework& framework = {});

}  // namespace orrery::costmodel

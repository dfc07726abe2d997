#pragma once
/// The kernels behind run_segment, one function per segment and direction; operands as in
/// model/segment.h.
#include "executor/segments/segments.h"

namespace orrery::executor::kernels {

using model::Phase;
using model::SegmentShape;

inline bool has_input_gradient(Phase phase) { return phase == Phase::kB || phase == Phase::kBG; }
inline bool has_weight_gradient(Phase phase) { return phase == Phase::kG || phase == Phase::kBG; }

/// [.., features] as a matrix [rows, features]; a view. @pre the tensor is contiguous.
inline at::Tensor rows_of(const at::Tensor& tensor) { return tensor.view({-1, tensor.size(-1)}); }

void embedding(const SegmentShape&, Phase, Operands&, const SegmentContext&);
void position_add(const SegmentShape&, Phase, Operands&, const SegmentContext&);
void norm(const SegmentShape&, Phase, Operands&);
void linear(const SegmentShape&, Phase, Operands&);
void residual(const SegmentShape&, Phase, Operands&);
void attention(const SegmentShape&, Phase, Operands&, SegmentContext&);
void attention_split(const SegmentShape&, Phase, Operands&, SegmentContext&);
void attention_block(const SegmentShape&, Phase, Operands&, const SegmentContext&);
void attention_merge(const SegmentShape&, Operands&);
void activation(const SegmentShape&, Phase, Operands&);
void loss_max(const SegmentShape&, Operands&, const SegmentContext&);
void loss_sum(const SegmentShape&, Operands&, const SegmentContext&);
void loss(const SegmentShape&, Phase, Operands&, const SegmentContext&);
void slice(const SegmentShape&, Operands&, const SegmentContext&);
void zero_gradient(Operands&);
void accumulate(Operands&);
void adamw(const SegmentShape&, Operands&, const SegmentContext&);

}  // namespace orrery::executor::kernels

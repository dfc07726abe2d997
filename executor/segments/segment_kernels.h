#pragma once
/// The kernels behind run_segment, one function per segment and direction; operands as in
/// model/segment.h.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "executor/device/device_kernels.h"
#include "executor/segments/segments.h"

namespace orrery::executor::kernels {

using model::Phase;
using model::SegmentShape;

inline bool has_input_gradient(Phase phase) { return phase == Phase::kB || phase == Phase::kBG; }
inline bool has_weight_gradient(Phase phase) { return phase == Phase::kG || phase == Phase::kBG; }

/// [.., features] as a matrix [rows, features]; a view. @pre the tensor is contiguous.
inline at::Tensor rows_of(const at::Tensor& tensor) { return tensor.view({-1, tensor.size(-1)}); }

/// For the kernels of our own: the current queue of the tensor's device, its numbers, and the end
/// of a launch, which LibTorch's exception reports.
inline device::Queue queue_of(const at::Tensor& t) {
  return c10::impl::VirtualGuardImpl(t.device().type()).getStream(t.device()).native_handle();
}
inline device::Numbers numbers_of(const at::Tensor& t) {
  return {t.mutable_data_ptr(), t.scalar_type() == at::kBFloat16};
}
inline void launched(const char* fault) { TORCH_CHECK(fault == nullptr, fault); }

/// Room for sums over blocks of a launch; `partial` lives as long as the room is needed.
device::Arrivals arrivals_of(SegmentContext& context, const at::Tensor& partial);
at::Tensor partials(std::int64_t numbers, const at::Tensor& like);
/// Where the sums of so many columns go.
float* bias_gradient_of(const Joining& next, std::int64_t columns);
void normed_sum_on_device(Operands& sum, const SegmentShape& norm, Operands& of_norm);

/// gradient += sum_t d; on a device in fp32 whatever d is of.
void add_bias_gradient(at::Tensor& gradient, const at::Tensor& d);

using Kernel = void(const SegmentShape&, Phase, Operands&, SegmentContext&);
Kernel embedding, position_add, norm, linear, residual, activation;
Kernel adapter_in, adapter_out;
Kernel head_norm, latent_attention;
Kernel scan;  // executor/scans
Kernel attention, attention_split, attention_block, attention_merge;
Kernel bias, norm_sums, norm_apply, scores, softmax, values;
Kernel loss_max, loss_sum, loss;
Kernel router, dispatch, expert_product, combine;
Kernel pool;
Kernel slice, zero_gradient, accumulate, adamw;

/// gradient += factor d^T x: [out, in], [rows, out], [rows, in].
void add_product_gradient(const SegmentShape& s, at::Tensor gradient, const at::Tensor& d,
                          const at::Tensor& x, double factor);

/// Products of shapes with a format, on the CPU.
Kernel quantised_linear;
/// Forward of a norm or an activation whose first result is written quantised.
void quantised_result(const SegmentShape& s, Kernel* kernel, Operands& o, SegmentContext& context);

}  // namespace orrery::executor::kernels

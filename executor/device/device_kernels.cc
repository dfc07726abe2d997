#include "executor/device/device_kernels.h"

#include "base/check.h"

#ifndef ORRERY_HAS_CUDA
namespace orrery::executor::device {
namespace {

[[noreturn]] void none() { ORRERY_CHECK(false, "no CUDA in this build"); }

}  // namespace

const char* loss_max(Queue, const Logits&, float*) { none(); }
const char* loss_sum(Queue, const Logits&, const float*, const std::int64_t*, float*) { none(); }
const char* loss_gradient(Queue, const Logits&, const float*, const float*, const std::int64_t*,
                          float) {
  none();
}
const char* norm(Queue, const NormRows&, const Numbers&, double) { none(); }
const char* norm_of_sum(Queue, const NormRows&, const Addends&, const Numbers&, double) { none(); }
std::int64_t norm_partials(const NormRows&, const NormGradients&) { none(); }
const char* norm_backward(Queue, const NormRows&, const Numbers&, const Numbers&, const Numbers&,
                          const NormGradients&, const Arrivals&) {
  none();
}
const char* add_column_sums(Queue, const Numbers&, std::int64_t, std::int64_t, float*) { none(); }
const char* add_with_bias(Queue, const Numbers&, const Numbers&, const Numbers&, const Numbers&,
                          std::int64_t, std::int64_t) {
  none();
}
const char* adamw(Queue, const AdamWUnit*, int, const AdamWStep&) { none(); }
const char* look_up(Queue, const Lookup&, const Numbers&, const Numbers&) { none(); }
const char* add_looked_up(Queue, const Lookup&, const Numbers&, float*) { none(); }
const char* activation(Queue, const Activated&, const Numbers&) { none(); }
const char* activation_backward(Queue, const Activated&, const Numbers&, const Numbers&,
                                const Numbers&) {
  none();
}
const char* activation_backward_with_sums(Queue, const Activated&, const Numbers&, const Numbers&,
                                          const Numbers&, float*, const Arrivals&) {
  none();
}
std::int64_t activation_partials(const Activated&) { none(); }
const char* pack_heads(Queue, const HeadsToPack&, const Numbers&, float*, const Arrivals&) {
  none();
}
std::int64_t pack_partials(const HeadsToPack&, bool) { none(); }
const char* rotate(Queue, const Heads&, const Heads&, const float*, const float*, std::int64_t,
                   std::int64_t, std::int64_t, std::int64_t, float) {
  none();
}

}  // namespace orrery::executor::device
#endif

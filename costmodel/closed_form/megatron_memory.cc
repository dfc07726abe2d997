#include "costmodel/closed_form/megatron_memory.h"

#include "base/check.h"

namespace orrery::costmodel {
namespace {

constexpr double kStateBytes = 18;

double number(std::int64_t n) { return static_cast<double>(n); }

}  // namespace

base::Bytes megatron_activation_bytes(const MegatronSizes& z, bool sequence_parallel,
                                      plan::Recompute recompute) {
  ORRERY_CHECK(z.sequence > 0 && z.micro_batch > 0 && z.hidden > 0 && z.heads > 0 && z.layers > 0 &&
               z.tp > 0 && z.pp > 0 && z.virtual_stages > 0);
  const double t = number(z.tp),
               sbh = number(z.sequence) * number(z.micro_batch) * number(z.hidden);
  const double scores = recompute == plan::Recompute::kNone
                            ? 5 * number(z.heads) * number(z.sequence) / number(z.hidden)
                            : 0;
  double layer = sequence_parallel ? sbh * (34 + scores) / t : sbh * (10 + 24 / t + scores / t);
  if (recompute == plan::Recompute::kFull) layer = 2 * sbh;
  const double chunks =
      z.virtual_stages > 1 ? 1 + (number(z.pp) - 1) / (number(z.pp) * number(z.virtual_stages)) : 1;
  return base::Bytes(layer * number(z.layers) * chunks);
}

base::Bytes megatron_state_bytes(const MegatronSizes& z) {
  ORRERY_CHECK(z.tp > 0 && z.pp > 0);
  const double h = number(z.hidden);
  return base::Bytes(kStateBytes * 12 * h * h * number(z.layers) / number(z.tp * z.pp));
}

}  // namespace orrery::costmodel

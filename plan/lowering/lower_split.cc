#include <algorithm>

#include "base/check.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

namespace {

bool is_block_product(SegmentKind kind) {
  return kind == kQkv || kind == kProjection || kind == kMlpIn || kind == kMlpOut ||
         kind == kExpertIn || kind == kExpertOut;
}

/// The last of `ops` that reads `r`; null when none does.
Op* last_reader(Ops& ops, const BufferRef& r) {
  const auto found =
      std::find_if(ops.rbegin(), ops.rend(), [&](const Op& op) { return contains(op.reads, r); });
  return found == ops.rend() ? nullptr : &*found;
}

}  // namespace

bool is_product(SegmentKind kind) {
  return is_block_product(kind) || kind == kLatentProduct || kind == kLogits;
}

void split_backward(Builder& b, LayerPair& pair) {
  for (Op& op : pair.backward) {
    for (const BufferRef& r : op.updates)
      ORRERY_CHECK(last_reader(pair.weight, r) == nullptr,
                   "'{}' changes what a weight gradient is to read", op.name);
    const bool apart = op.phase == kG;
    if (op.kind != OpKind::kCompute || !(apart || op.phase == kBG) ||
        !is_block_product(b.program().segments[op.segment].kind))
      continue;
    if (apart) {
      pair.weight.push_back(op);
      continue;
    }
    Op weight = op;
    weight.phase = kG;
    weight.weights.reset();
    weight.writes.clear();
    weight.updates.clear();
    weight.frees.clear();
    weight.acquire.reset();
    weight.release.reset();
    pair.weight.push_back(std::move(weight));
    op.phase = kB;
    op.gradients.reset();
    op.reads.resize(1);  // the gradient of its output; the input is for the weights only
  }
  std::erase_if(pair.backward, [&](const Op& op) {
    return op.kind == OpKind::kCompute && op.phase == kG &&
           is_block_product(b.program().segments[op.segment].kind);
  });
  for (Op& op : pair.backward)
    std::erase_if(op.frees, [&](const BufferRef& r) {
      Op* reader = last_reader(pair.weight, r);
      if (reader != nullptr) reader->frees.push_back(r);
      return reader != nullptr;
    });
}

}  // namespace orrery::plan

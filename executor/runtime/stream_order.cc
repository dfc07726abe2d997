#include "executor/runtime/stream_order.h"

namespace orrery::executor {

StreamOrder::StreamOrder(const plan::Program& program, const plan::RankClass& rank_class)
    : refs_(program),
      expansion_(plan::expand(program, rank_class, refs_)),
      awaited_(expansion_.ops.size(), false) {
  for (const std::uint32_t op : expansion_.dependencies) awaited_[op] = true;
}

}  // namespace orrery::executor

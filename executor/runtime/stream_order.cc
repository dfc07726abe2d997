#include "executor/runtime/stream_order.h"

namespace orrery::executor {

StreamOrder::StreamOrder(const plan::Program& program, const plan::RankClass& rank_class)
    : refs_(program),
      expansion_(plan::expand(program, rank_class, refs_)),
      awaited_(expansion_.ops.size(), false) {
  for (const std::uint32_t op : expansion_.dependencies) awaited_[op] = true;
  find_frees();
  find_makers(program, rank_class);
}

/// Instances of one buffer may be made by several streams: computed here, received there.
void StreamOrder::find_makers(const plan::Program& program, const plan::RankClass& rank_class) {
  const plan::InstanceMap instances(program, rank_class, refs_);
  std::vector<plan::Stream> maker(instances.size(), plan::Stream::kCompute);
  for (const plan::OpInstance& o : expansion_.ops) {
    const auto at = [&](const plan::BufferRef& ref) {
      return instances.at(ref, o.layer, o.micro_batch);
    };
    for (const plan::BufferRef& made : o.op->writes)
      if (refs_.follows(made.buffer)) maker[at(made)] = o.op->stream;
    for (const plan::StreamRefs::Ref& ref : refs_.of(o))
      if (ref.access == plan::Access::kFree)
        by_another_.push_back(maker[at(ref.buffer)] != o.op->stream);
  }
}

void StreamOrder::find_frees() {
  free_begin_.assign(expansion_.ops.size(), 0);
  std::size_t users = 0;
  for (std::size_t i = expansion_.frees.size(); i-- > 0;) free_begin_[expansion_.frees[i].op] = i;
  for (const plan::Expansion::Free& free : expansion_.frees) {
    user_begin_.push_back(users);
    for (std::uint32_t k = 0; k < free.users; ++k)
      awaited_[expansion_.free_users[users + k]] = true;
    users += free.users;
    awaited_[free.op] = true;
  }
}

}  // namespace orrery::executor

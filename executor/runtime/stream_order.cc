#include "executor/runtime/stream_order.h"

namespace orrery::executor {

StreamOrder::StreamOrder(const plan::Program& program, const plan::RankClass& rank_class)
    : refs_(program),
      expansion_(plan::expand(program, rank_class, refs_)),
      awaited_(expansion_.ops.size(), false) {
  for (const std::uint32_t op : expansion_.dependencies) awaited_[op] = true;
  find_makers(program);
  find_frees();
}

void StreamOrder::find_makers(const plan::Program& program) {
  maker_.assign(program.buffers.size(), plan::Stream::kCompute);
  for (const plan::Template& t : program.templates)
    for (const plan::Op& op : t.ops)
      for (const plan::BufferRef& made : op.writes) maker_[made.buffer.raw()] = op.stream;
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

#include "sim/step/lifetimes.h"

namespace orrery::sim {

Lifetimes lifetimes(const plan::Program& program, const plan::RankClass& rank_class,
                    const plan::Expansion& expansion) {
  Lifetimes life;
  for (const auto& p : rank_class.persistent)
    life.persistent_bytes += program.buffers[p.buffer].device_bytes();
  // A counting sort of (operation, free) by operation.
  life.hold_begin.assign(expansion.ops.size() + 1, 0);
  if (expansion.frees.empty()) return life;
  for (const plan::Expansion::Free& f : expansion.frees) {
    ++life.hold_begin[f.op + 1];
    life.frees.push_back({f.bytes, f.users + 1});
  }
  for (const std::uint32_t user : expansion.free_users) ++life.hold_begin[user + 1];
  for (std::size_t i = 1; i < life.hold_begin.size(); ++i)
    life.hold_begin[i] += life.hold_begin[i - 1];
  life.holds.resize(life.hold_begin.back());
  std::vector<std::uint32_t> at(life.hold_begin.begin(), life.hold_begin.end() - 1);
  std::size_t user = 0;
  for (std::uint32_t number = 0; number < expansion.frees.size(); ++number) {
    const plan::Expansion::Free& f = expansion.frees[number];
    life.holds[at[f.op]++] = number;
    for (const std::size_t end = user + f.users; user < end; ++user)
      life.holds[at[expansion.free_users[user]]++] = number;
  }
  return life;
}

}  // namespace orrery::sim

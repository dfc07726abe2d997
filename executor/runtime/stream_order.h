#pragma once
/// What a step's operations wait for on other streams, for transports that issue and go on
/// (transport/streams.h): the dependencies of the expansion, as the simulator has them.
#include <cstdint>
#include <span>
#include <vector>

#include "plan/program/expand.h"
#include "plan/program/stream_refs.h"

namespace orrery::executor {

class StreamOrder {
 public:
  StreamOrder(const plan::Program& program, const plan::RankClass& rank_class);

  /// Operations of other streams, in issue order, that operation `op` waits for.
  [[nodiscard]] std::span<const std::uint32_t> before(std::size_t op) const {
    return expansion_.dependencies_of(op);
  }
  /// Whether one of another stream waits for it, or memory that others use.
  [[nodiscard]] bool awaited(std::size_t op) const { return awaited_[op]; }
  [[nodiscard]] const plan::Op& op(std::size_t op) const { return *expansion_.ops[op].op; }

  /// A buffer of several streams that the operation frees.
  struct Free {
    plan::BufferRef buffer;
    std::int64_t bytes = 0;
    std::span<const std::uint32_t> users;  // the last on other streams, which may end after it
    bool by_another = false;               // stream than the one that made it
  };
  template <class Visit>  // void(const Free&)
  void each_free(std::size_t op, Visit&& visit) const {
    std::size_t at = free_begin_[op];
    for (const plan::StreamRefs::Ref& ref : refs_.of(expansion_.ops[op])) {
      if (ref.access != plan::Access::kFree) continue;
      const plan::Expansion::Free& free = expansion_.frees[at];
      visit(Free{ref.buffer,
                 free.bytes,
                 {expansion_.free_users.data() + user_begin_[at], free.users},
                 by_another_[at]});
      ++at;
    }
  }

 private:
  void find_frees();
  void find_makers(const plan::Program& program, const plan::RankClass& rank_class);
  plan::StreamRefs refs_;
  plan::Expansion expansion_;
  std::vector<bool> awaited_;
  std::vector<std::size_t> free_begin_;  // [operation] into the expansion's frees
  std::vector<std::size_t> user_begin_;  // [free] into the expansion's users
  std::vector<bool> by_another_;         // [free]
};

}  // namespace orrery::executor

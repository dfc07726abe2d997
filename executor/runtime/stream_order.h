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
  /// Whether one of another stream waits for it.
  [[nodiscard]] bool awaited(std::size_t op) const { return awaited_[op]; }
  /// Visits the buffers of the operation that other streams touch as well, but for those it frees.
  template <class Visit>  // void(const plan::BufferRef&)
  void each_shared(std::size_t op, Visit&& visit) const {
    for (const plan::StreamRefs::Ref& ref : refs_.of(expansion_.ops[op]))
      if (ref.access != plan::Access::kFree) visit(ref.buffer);
  }

 private:
  plan::StreamRefs refs_;
  plan::Expansion expansion_;
  std::vector<bool> awaited_;
};

}  // namespace orrery::executor

#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "plan/program/program.h"

namespace orrery::plan {

/// One operation of the unrolled Program of a rank class.
struct OpInstance {
  const Op* op = nullptr;
  std::int32_t layer = 0;
  std::int32_t micro_batch = 0;
  TemplateId source;  // template and index: a predicted and a measured span match by these
  std::uint32_t index = 0;
};

/// Dense number of a buffer instance inside one expansion.
using InstanceIndex = std::uint32_t;

struct InstanceKey {
  BufferId buffer;
  std::int32_t layer = -1;  // -1: not in the scope
  std::int32_t micro_batch = -1;
  auto operator<=>(const InstanceKey&) const = default;
};

class StreamRefs;

/// Dense numbering of the buffer instances that one class can touch: no hashing in loops.
class InstanceMap {
 public:
  InstanceMap(const Program& program, const RankClass& rank_class);
  /// Of those that `refs` follows only; nobody may ask for the others.
  InstanceMap(const Program& program, const RankClass& rank_class, const StreamRefs& refs);
  [[nodiscard]] InstanceIndex at(const BufferRef& ref, std::int64_t layer,
                                 std::int64_t micro_batch) const {
    const Slot& s = slots_[ref.buffer.raw()];
    return static_cast<InstanceIndex>(
        s.base +
        layer_slots_[as_index((layer + ref.layer_offset - first_layer_) * s.layers)] *
            s.layer_stride +
        micro_batch * s.micro_batch_stride);
  }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::int64_t base = 0, layer_stride = 0, micro_batch_stride = 0;
    std::int64_t layers = 0;  // 1: one for each layer; 0: any, for the stride is 0
  };
  template <class Numbered>  // bool(BufferId)
  void number(const Program& program, const RankClass& rank_class, const Numbered& numbered);
  std::vector<Slot> slots_;
  // from first_layer_ on; boundaries of a chunk count as layers of it
  std::vector<std::int64_t> layer_slots_;
  std::int64_t first_layer_ = 0;
  std::size_t size_ = 0;
};

/// Key of `ref` seen from a call with (layer, micro_batch).
InstanceKey key_of(const Program& program, const BufferRef& ref, std::int64_t layer,
                   std::int64_t micro_batch);

/// Walks a class's step in issue order without storing it: the templates that it calls, or every
/// operation of them.
template <class Visit>  // void(TemplateId, std::int32_t layer, std::int32_t micro_batch)
void for_each_call(const RankClass& rank_class, Visit&& visit);
template <class Visit>  // void(const OpInstance&)
void for_each_op(const Program& program, const RankClass& rank_class, Visit&& visit);

/// A step of one rank class, unrolled, with explicit dependencies (CSR, indices into ops, all
/// smaller than the dependant). A dependency on an operation of the same stream that FIFO order
/// already gives is left out, and so is one that an earlier operation of the same turn
/// (stream_refs.h) has.
struct Expansion {
  /// Of a buffer that several streams touch.
  struct Free {
    std::uint32_t op = 0;
    // how many of the next of free_users are its own: the last on other streams, which may end
    // after op
    std::uint32_t users = 0;
    std::int64_t bytes = 0;
  };
  std::vector<OpInstance> ops;
  std::vector<std::uint32_t> dependency_begin;  // ops.size() + 1
  std::vector<std::uint32_t> dependencies;
  std::vector<Free> frees;                // in issue order
  std::vector<std::uint32_t> free_users;  // operations
  [[nodiscard]] std::span<const std::uint32_t> dependencies_of(std::size_t op) const {
    return {dependencies.data() + dependency_begin[op],
            dependency_begin[op + 1] - dependency_begin[op]};
  }
};
/// `refs`: what streams share (stream_refs.h), the same for every class.
Expansion expand(const Program& program, const RankClass& rank_class, const StreamRefs& refs);

/// How many operations a class's step has, without walking it.
std::int64_t op_count(const Program& program, const RankClass& rank_class);

/// Unrolled operations only, for the checker and its mutation tests.
std::vector<OpInstance> unroll(const Program& program, const RankClass& rank_class);

// ---- implementation of the template ----
namespace detail {
template <class Visit>
void walk(const std::vector<Node>& nodes, std::int64_t layer, std::int64_t micro_batch,
          Visit& visit) {
  for (const Node& n : nodes) {
    if (n.is_loop) {
      for (std::int64_t i = n.begin; n.step > 0 ? i < n.end : i > n.end; i += n.step) {
        if (n.axis == Axis::kLayer)
          walk(n.body, i, micro_batch, visit);
        else
          walk(n.body, layer, i, visit);
      }
      continue;
    }
    visit(n.call, static_cast<std::int32_t>(n.layer + (n.layer_from_loop ? layer : 0)),
          static_cast<std::int32_t>(n.micro_batch + (n.micro_batch_from_loop ? micro_batch : 0)));
  }
}
}  // namespace detail
template <class Visit>
void for_each_call(const RankClass& rank_class, Visit&& visit) {
  detail::walk(rank_class.body, 0, 0, visit);
}
template <class Visit>
void for_each_op(const Program& program, const RankClass& rank_class, Visit&& visit) {
  for_each_call(rank_class, [&](TemplateId call, std::int32_t layer, std::int32_t micro_batch) {
    const Template& t = program.templates[call];
    for (std::uint32_t k = 0; k < t.ops.size(); ++k)
      visit(OpInstance{&t.ops[k], layer, micro_batch, call, k});
  });
}

}  // namespace orrery::plan

#include "sim/lifetimes.h"

#include <cstddef>
#include <utility>

namespace orrery::sim {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};

/// Walks the step in issue order and keeps, per instance, who used it.
class Walk {
 public:
  Walk(const plan::Program& program, const plan::RankClass& rank_class, std::span<const plan::OpInstance> ops)
      : ops_(ops), instances_(program, rank_class), last_use_(instances_.size(), kNone) {
    bytes_.reserve(program.buffers.size());
    for (const plan::BufferDecl& buffer : program.buffers) bytes_.push_back(buffer.bytes());
    life_.alloc_bytes.assign(ops.size(), 0);
    life_.free_bytes.assign(ops.size(), 0);
    life_.hold_begin.assign(ops.size() + 1, 0);
  }
  Lifetimes run() {
    for (std::uint32_t i = 0; i < ops_.size(); ++i) visit(i);
    sort_holds();
    return std::move(life_);
  }

 private:
  struct Use {
    std::uint32_t op = 0;
    std::uint32_t before = kNone;  // earlier use of the instance
    bool modifies = false;
  };
  [[nodiscard]] plan::InstanceIndex instance(const plan::BufferRef& ref, std::uint32_t i) const {
    return instances_.at(ref, ops_[i].layer, ops_[i].micro_batch);
  }
  void use(const plan::BufferRef& ref, std::uint32_t i, bool modifies) {
    std::uint32_t& last = last_use_[instance(ref, i)];
    uses_.push_back({i, last, modifies});
    last = static_cast<std::uint32_t>(uses_.size() - 1);
  }
  void visit(std::uint32_t i) {
    const plan::Op& op = *ops_[i].op;
    for (const plan::BufferRef& ref : op.writes) {
      life_.alloc_bytes[i] += bytes_[ref.buffer.raw()];
      last_use_[instance(ref, i)] = kNone;  // a new life
      use(ref, i, true);
    }
    for (const plan::BufferRef& ref : op.reads) use(ref, i, false);
    for (const plan::BufferRef& ref : op.updates) use(ref, i, true);
    if (op.weights) use(*op.weights, i, false);
    if (op.gradients) use(*op.gradients, i, true);
    for (const plan::BufferRef& ref : op.frees) free(ref, i);
  }
  void free(const plan::BufferRef& ref, std::uint32_t i) {
    unsigned seen = 1U << static_cast<unsigned>(ops_[i].op->stream);  // streams whose last user is known to end in time
    std::uint32_t& last = last_use_[instance(ref, i)];
    std::uint32_t waits_for = 0;
    const auto number = static_cast<std::uint32_t>(life_.deferred.size());
    for (std::uint32_t u = last; u != kNone; u = uses_[u].before) {
      const unsigned stream = 1U << static_cast<unsigned>(ops_[uses_[u].op].op->stream);
      if ((seen & stream) != 0) continue;
      if (uses_[u].modifies && u != last) continue;  // a later user waited for it
      seen |= stream;
      pairs_.push_back({uses_[u].op, number});
      ++waits_for;
    }
    last = kNone;
    if (waits_for == 0) {
      life_.free_bytes[i] += bytes_[ref.buffer.raw()];
      return;
    }
    pairs_.push_back({i, number});
    life_.deferred.push_back({bytes_[ref.buffer.raw()], waits_for + 1});
  }
  /// Counting sort of (operation, deferred free) by operation.
  void sort_holds() {
    for (const Hold& h : pairs_) ++life_.hold_begin[h.op + 1];
    for (std::size_t i = 1; i < life_.hold_begin.size(); ++i) life_.hold_begin[i] += life_.hold_begin[i - 1];
    life_.holds.resize(pairs_.size());
    std::vector<std::uint32_t> at(life_.hold_begin.begin(), life_.hold_begin.end() - 1);
    for (const Hold& h : pairs_) life_.holds[at[h.op]++] = h.deferred;
  }

  struct Hold {
    std::uint32_t op = 0;
    std::uint32_t deferred = 0;
  };
  std::span<const plan::OpInstance> ops_;
  plan::InstanceMap instances_;
  std::vector<std::int64_t> bytes_;      // [buffer]
  std::vector<std::uint32_t> last_use_;  // [instance] into uses_
  std::vector<Use> uses_;
  std::vector<Hold> pairs_;
  Lifetimes life_;
};

}  // namespace

Lifetimes lifetimes(const plan::Program& program, const plan::RankClass& rank_class, std::span<const plan::OpInstance> ops) {
  Lifetimes life = Walk(program, rank_class, ops).run();
  for (const auto& p : rank_class.persistent) life.persistent_bytes += program.buffers[p.buffer].bytes();
  return life;
}

}  // namespace orrery::sim

#include "sim/lifetimes.h"

#include <cstddef>
#include <utility>

namespace orrery::sim {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};

/// Walks the step in issue order and keeps, per instance that several streams use, who used it.
class Walk {
 public:
  Walk(const plan::Program& program, const plan::RankClass& rank_class, std::span<const plan::OpInstance> ops, const plan::StreamRefs& refs)
      : program_(program), ops_(ops), refs_(refs), instances_(program, rank_class), last_use_(instances_.size(), kNone) {
    life_.alloc_bytes.reserve(ops.size());
    life_.free_bytes.reserve(ops.size());
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
  void visit(std::uint32_t i) {
    const plan::OpInstance& op = ops_[i];
    life_.alloc_bytes.push_back(refs_.written_bytes(op));
    life_.free_bytes.push_back(refs_.freed_bytes(op));
    for (const plan::StreamRefs::Ref& ref : refs_.of(op)) {
      std::uint32_t& last = last_use_[instances_.at(ref.buffer, op.layer, op.micro_batch)];
      if (ref.access == plan::Access::kFree) {
        free(program_.buffers[ref.buffer.buffer].bytes(), last, i);
        continue;
      }
      if (ref.access == plan::Access::kWrite) last = kNone;  // a new life
      uses_.push_back({i, last, ref.access != plan::Access::kRead});
      last = static_cast<std::uint32_t>(uses_.size() - 1);
    }
  }
  void free(std::int64_t bytes, std::uint32_t& last, std::uint32_t i) {
    unsigned seen = 1U << static_cast<unsigned>(ops_[i].op->stream);  // streams whose last user is known to end in time
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
      life_.free_bytes[i] += bytes;
      return;
    }
    pairs_.push_back({i, number});
    life_.deferred.push_back({bytes, waits_for + 1});
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
  const plan::Program& program_;
  std::span<const plan::OpInstance> ops_;
  const plan::StreamRefs& refs_;
  plan::InstanceMap instances_;
  std::vector<std::uint32_t> last_use_;  // [instance] into uses_
  std::vector<Use> uses_;
  std::vector<Hold> pairs_;
  Lifetimes life_;
};

}  // namespace

Lifetimes lifetimes(const plan::Program& program, const plan::RankClass& rank_class, std::span<const plan::OpInstance> ops, const plan::StreamRefs& refs) {
  Lifetimes life = Walk(program, rank_class, ops, refs).run();
  for (const auto& p : rank_class.persistent) life.persistent_bytes += program.buffers[p.buffer].bytes();
  return life;
}

}  // namespace orrery::sim

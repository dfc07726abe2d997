#include "plan/program/expand.h"

#include <algorithm>
#include <cstdlib>

#include "base/numbers.h"
#include "plan/program/stream_refs.h"

namespace orrery::plan {

InstanceKey key_of(const Program& program, const BufferRef& ref, std::int64_t layer,
                   std::int64_t micro_batch) {
  const Scope scope = program.buffers[ref.buffer].scope;
  InstanceKey k{ref.buffer};
  if (scope == Scope::kLayer || scope == Scope::kLayerMicroBatch)
    k.layer = static_cast<std::int32_t>(layer + ref.layer_offset);
  if (scope == Scope::kMicroBatch || scope == Scope::kLayerMicroBatch)
    k.micro_batch = static_cast<std::int32_t>(micro_batch);
  return k;
}

InstanceMap::InstanceMap(const Program& program, const RankClass& rank_class) {
  number(program, rank_class, [](BufferId) { return true; });
}

InstanceMap::InstanceMap(const Program& program, const RankClass& rank_class,
                         const StreamRefs& refs) {
  number(program, rank_class, [&](BufferId buffer) { return refs.follows(buffer); });
}

template <class Numbered>
void InstanceMap::number(const Program& program, const RankClass& rank_class,
                         const Numbered& numbered) {
  first_layer_ = rank_class.first_layer;
  std::vector<LayerRange> ranges = rank_class.chunks;
  if (ranges.empty()) ranges.push_back({rank_class.first_layer, rank_class.end_layer});
  layer_slots_.assign(as_index(rank_class.end_layer - rank_class.first_layer + 1), 0);
  std::int64_t layers = 0;
  for (const LayerRange& range : ranges)
    for (std::int64_t l = range.first; l <= range.end; ++l)
      layer_slots_[as_index(l - first_layer_)] = layers++;
  const std::int64_t m = program.micro_batches;
  std::int64_t next = 0;
  slots_.resize(program.buffers.size());
  for (std::uint32_t i = 0; i < program.buffers.size(); ++i) {
    if (!numbered(BufferId(i))) continue;
    const Scope scope = program.buffers[BufferId(i)].scope;
    Slot& s = slots_[i];
    s.base = next;
    s.layers = scope == Scope::kLayer || scope == Scope::kLayerMicroBatch ? 1 : 0;
    s.micro_batch_stride = scope == Scope::kMicroBatch || scope == Scope::kLayerMicroBatch ? 1 : 0;
    const std::int64_t of_a_layer = s.micro_batch_stride == 1 ? m : 1;
    s.layer_stride = s.layers * of_a_layer;
    next += (s.layers == 1 ? layers : 1) * of_a_layer;
  }
  size_ = as_index(next);
}

namespace {

std::int64_t op_count(const Program& program, const std::vector<Node>& nodes) {
  std::int64_t count = 0;
  for (const Node& n : nodes) {
    if (!n.is_loop) {
      count += static_cast<std::int64_t>(program.templates[n.call].ops.size());
      continue;
    }
    const std::int64_t span = n.step > 0 ? n.end - n.begin : n.begin - n.end,
                       step = std::abs(n.step);
    count += (std::max<std::int64_t>(span, 0) + step - 1) / step * op_count(program, n.body);
  }
  return count;
}

}  // namespace

std::int64_t op_count(const Program& program, const RankClass& rank_class) {
  return op_count(program, rank_class.body);
}

std::vector<OpInstance> unroll(const Program& program, const RankClass& rank_class) {
  std::vector<OpInstance> ops;
  ops.reserve(as_index(op_count(program, rank_class)));
  for_each_op(program, rank_class, [&](const OpInstance& op) { ops.push_back(op); });
  return ops;
}

namespace {

constexpr std::uint32_t kNone = ~0U;

/// Who touched an instance last: its writer, and a list of the latest reader on every stream since.
/// Few instances have more than one: the list keeps the table, which has an entry for each of a
/// step's instances, small.
struct LastAccess {
  std::uint32_t writer = kNone;
  std::uint32_t readers = kNone;  // into Readers
  Stream writer_stream = Stream::kCompute;
};

class Readers {
 public:
  void add(LastAccess& a, std::uint32_t op, Stream stream) {
    for (std::uint32_t r = a.readers; r != kNone; r = list_[r].next) {
      if (list_[r].stream != stream) continue;
      list_[r].op = op;
      return;
    }
    list_.push_back({op, a.readers, stream});
    a.readers = as_u32(list_.size() - 1);
  }
  template <class Visit>  // void(std::uint32_t op)
  void each_not_of(Stream stream, const LastAccess& a, Visit&& visit) const {
    for (std::uint32_t r = a.readers; r != kNone; r = list_[r].next) {
      if (list_[r].stream != stream) visit(list_[r].op);
    }
  }

 private:
  struct Reader {
    std::uint32_t op = kNone;
    std::uint32_t next = kNone;
    Stream stream = Stream::kCompute;
  };
  std::vector<Reader> list_;
};

/// Read after write, write after read, write after write, pools. Issue order is topological, so one
/// sweep finds them all.
class Sweep {
 public:
  Sweep(const Program& program, const RankClass& rank_class, const StreamRefs& refs)
      : program_(program),
        rank_class_(rank_class),
        refs_(refs),
        instances_(program, rank_class, refs),
        last_(instances_.size()),
        releases_(program.pools.size()),
        acquired_(program.pools.size(), 0) {
    const std::size_t ops = as_index(plan::op_count(program, rank_class));
    e_.ops.reserve(ops);
    e_.dependency_begin.reserve(ops + 1);
  }

  Expansion run() {
    e_.dependency_begin.push_back(0);
    std::uint32_t at = 0;
    for_each_call(rank_class_, [&](TemplateId call, std::int32_t layer, std::int32_t micro_batch) {
      std::uint32_t k = 0;
      for (const Op& op : program_.templates[call].ops) {
        e_.ops.push_back({&op, layer, micro_batch, call, k++});
        add(at++, e_.ops.back());
      }
    });
    return std::move(e_);
  }

 private:
  static bool written_elsewhere(const LastAccess& last, Stream stream) {
    return last.writer != kNone && last.writer_stream != stream;
  }

  void access(std::uint32_t i, Stream stream, LastAccess& last, const StreamRefs::Ref& r) {
    if (r.looks && written_elsewhere(last, stream)) found_.push_back(last.writer);
    if (r.access == Access::kRead) {
      if (r.leaves) readers_.add(last, i, stream);
      return;
    }
    if (r.looks) {
      readers_.each_not_of(stream, last, [&](std::uint32_t reader) { found_.push_back(reader); });
      last.readers = kNone;
    }
    if (!r.leaves) return;
    last.writer = i;
    last.writer_stream = stream;
  }
  void add(std::uint32_t i, const OpInstance& o) {
    found_.clear();
    const Stream stream = o.op->stream;
    for (const StreamRefs::Ref& r : refs_.of(o)) {
      LastAccess& last = last_[instances_.at(r.buffer, o.layer, o.micro_batch)];
      if (r.access == Access::kFree)
        free(i, stream, last, r.bytes);
      else
        access(i, stream, last, r);
    }
    if (o.op->acquire) acquire(i, *o.op->acquire);
    if (o.op->release) releases_[o.op->release->raw()].push_back(i);
    keep_found();
  }
  /// Readers waited for the writer, so it counts only where there are none.
  void free(std::uint32_t i, Stream stream, const LastAccess& last, std::int64_t bytes) {
    const std::size_t before = e_.free_users.size();
    if (last.readers == kNone && written_elsewhere(last, stream))
      e_.free_users.push_back(last.writer);
    readers_.each_not_of(stream, last,
                         [&](std::uint32_t reader) { e_.free_users.push_back(reader); });
    e_.frees.push_back({i, as_u32(e_.free_users.size() - before), bytes});
  }
  void acquire(std::uint32_t i, PoolId pool) {
    const std::size_t p = pool.raw(), k = acquired_[p]++,
                      capacity = as_index(program_.pools[pool].capacity);
    if (k < capacity || k - capacity >= releases_[p].size()) return;
    const std::uint32_t before = releases_[p][k - capacity];
    if (e_.ops[before].op->stream != e_.ops[i].op->stream) found_.push_back(before);
  }
  void keep_found() {
    if (found_.size() > 1) {
      std::ranges::sort(found_);
      found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
    }
    for (const std::uint32_t before : found_) e_.dependencies.push_back(before);
    e_.dependency_begin.push_back(as_u32(e_.dependencies.size()));
  }

  const Program& program_;
  const RankClass& rank_class_;
  const StreamRefs& refs_;
  InstanceMap instances_;
  std::vector<LastAccess> last_;  // [instance]
  Expansion e_;
  Readers readers_;
  std::vector<std::vector<std::uint32_t>> releases_;  // [pool]
  std::vector<std::uint32_t> acquired_;               // [pool]
  std::vector<std::uint32_t> found_;                  // what the operation at hand waits for
};

}  // namespace

Expansion expand(const Program& program, const RankClass& rank_class, const StreamRefs& refs) {
  return Sweep(program, rank_class, refs).run();
}

}  // namespace orrery::plan

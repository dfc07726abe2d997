#include "plan/expand.h"

#include <algorithm>
#include <cstdlib>

#include "plan/stream_refs.h"

namespace orrery::plan {

InstanceKey key_of(const Program& program, const BufferRef& ref, std::int64_t layer, std::int64_t micro_batch) {
  const Scope scope = program.buffers[ref.buffer].scope;
  InstanceKey k{ref.buffer};
  if (scope == Scope::kLayer || scope == Scope::kLayerMicroBatch) k.layer = static_cast<std::int32_t>(layer + ref.layer_offset);
  if (scope == Scope::kMicroBatch || scope == Scope::kLayerMicroBatch) k.micro_batch = static_cast<std::int32_t>(micro_batch);
  return k;
}

InstanceMap::InstanceMap(const Program& program, const RankClass& rank_class) : first_layer_(rank_class.first_layer) {
  std::vector<LayerRange> ranges = rank_class.chunks;
  if (ranges.empty()) ranges.push_back({rank_class.first_layer, rank_class.end_layer});
  layer_slots_.assign(static_cast<std::size_t>(rank_class.end_layer - rank_class.first_layer + 1), 0);
  std::int64_t layers = 0;
  for (const LayerRange& range : ranges)
    for (std::int64_t l = range.first; l <= range.end; ++l) layer_slots_[static_cast<std::size_t>(l - first_layer_)] = layers++;
  const std::int64_t m = program.micro_batches;
  std::int64_t next = 0;
  slots_.reserve(program.buffers.size());
  for (std::uint32_t i = 0; i < program.buffers.size(); ++i) {
    const Scope scope = program.buffers[BufferId(i)].scope;
    Slot s;
    s.base = next;
    s.layers = scope == Scope::kLayer || scope == Scope::kLayerMicroBatch;
    s.micro_batches = scope == Scope::kMicroBatch || scope == Scope::kLayerMicroBatch;
    s.layer_stride = s.micro_batches ? m : 1;
    next += (s.layers ? layers : 1) * (s.micro_batches ? m : 1);
    slots_.push_back(s);
  }
  size_ = static_cast<std::size_t>(next);
}

namespace {

std::int64_t op_count(const Program& program, const std::vector<Node>& nodes) {
  std::int64_t count = 0;
  for (const Node& n : nodes) {
    if (!n.is_loop) {
      count += static_cast<std::int64_t>(program.templates[n.call].ops.size());
      continue;
    }
    const std::int64_t span = n.step > 0 ? n.end - n.begin : n.begin - n.end, step = std::abs(n.step);
    count += (std::max<std::int64_t>(span, 0) + step - 1) / step * op_count(program, n.body);
  }
  return count;
}

}  // namespace

std::int64_t op_count(const Program& program, const RankClass& rank_class) { return op_count(program, rank_class.body); }

std::vector<OpInstance> unroll(const Program& program, const RankClass& rank_class) {
  std::vector<OpInstance> ops;
  ops.reserve(static_cast<std::size_t>(op_count(program, rank_class)));
  for_each_op(program, rank_class, [&](const OpInstance& op) { ops.push_back(op); });
  return ops;
}

namespace {

constexpr std::uint32_t kNone = ~0U;

/// Who touched an instance last: its writer, and a list of the latest reader on every stream since. Few instances have more than one: the list
/// keeps the table, which has an entry for each of a step's instances, small.
struct LastAccess {
  std::uint32_t writer = kNone;
  std::uint32_t readers = kNone;  // into Readers
};

struct Reader {
  std::uint32_t op = kNone;
  std::uint32_t next = kNone;
};

class Readers {
 public:
  explicit Readers(const std::vector<OpInstance>& ops) : ops_(ops) {}
  void add(LastAccess& a, std::uint32_t op) {
    for (std::uint32_t r = a.readers; r != kNone; r = list_[r].next) {
      if (ops_[list_[r].op].op->stream != ops_[op].op->stream) continue;
      list_[r].op = op;
      return;
    }
    list_.push_back({op, a.readers});
    a.readers = static_cast<std::uint32_t>(list_.size() - 1);
  }
  template <class Visit>  // void(std::uint32_t op)
  void take(LastAccess& a, Visit&& visit) {
    for (std::uint32_t r = a.readers; r != kNone; r = list_[r].next) visit(list_[r].op);
    a.readers = kNone;
  }

 private:
  const std::vector<OpInstance>& ops_;
  std::vector<Reader> list_;
};

}  // namespace

Expansion expand(const Program& program, const RankClass& rank_class) { return expand(program, rank_class, StreamRefs(program)); }

/// Read after write, write after read, write after write, pools. Issue order is topological, so one sweep finds them all.
Expansion expand(const Program& program, const RankClass& rank_class, const StreamRefs& refs) {
  Expansion e;
  e.ops = unroll(program, rank_class);
  const InstanceMap map(program, rank_class);
  std::vector<LastAccess> last(map.size());
  Readers readers(e.ops);
  std::vector<std::vector<std::uint32_t>> releases(program.pools.size());
  std::vector<std::uint32_t> acquired(program.pools.size(), 0), found;
  e.dependency_begin.reserve(e.ops.size() + 1);
  e.dependency_begin.push_back(0);
  for (std::uint32_t i = 0; i < e.ops.size(); ++i) {
    const OpInstance& o = e.ops[i];
    const Op& op = *o.op;
    found.clear();
    const auto add = [&](std::uint32_t on) {
      if (on != kNone && e.ops[on].op->stream != op.stream) found.push_back(on);
    };
    for (const StreamRefs::Ref& r : refs.of(o)) {
      if (r.access == Access::kFree) break;  // frees come last
      LastAccess& a = last[map.at(r.buffer, o.layer, o.micro_batch)];
      add(a.writer);
      if (r.access == Access::kRead) {
        readers.add(a, i);
        continue;
      }
      readers.take(a, [&](std::uint32_t reader) {
        if (reader != i) add(reader);
      });
      a.writer = i;
    }
    if (op.acquire) {
      const std::size_t p = op.acquire->raw(), k = acquired[p]++, capacity = static_cast<std::size_t>(program.pools[*op.acquire].capacity);
      if (k >= capacity && k - capacity < releases[p].size()) add(releases[p][k - capacity]);
    }
    if (op.release) releases[op.release->raw()].push_back(i);
    if (found.size() > 1) {
      std::sort(found.begin(), found.end());
      found.erase(std::unique(found.begin(), found.end()), found.end());
    }
    e.dependencies.insert(e.dependencies.end(), found.begin(), found.end());
    e.dependency_begin.push_back(static_cast<std::uint32_t>(e.dependencies.size()));
  }
  return e;
}

}  // namespace orrery::plan

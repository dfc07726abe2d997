/// The dependencies that expand() keeps, with the order of streams, imply all that reads, updates,
/// writes and frees ask for.
#include "plan/program/expand.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "plan/lowering/lower.h"
#include "plan/program/stream_refs.h"
#include "tests/property/plan/random_plan.h"

namespace orrery::plan {
namespace {

/// [stream] one more than the latest operation that has ended before another starts.
using Known = std::array<std::uint32_t, kStreams>;

std::size_t stream_of(const Expansion& e, std::uint32_t op) {
  return static_cast<std::size_t>(e.ops[op].op->stream);
}

void learn(Known& known, const Expansion& e, const std::vector<Known>& before, std::uint32_t op) {
  for (std::size_t s = 0; s < known.size(); ++s) known[s] = std::max(known[s], before[op][s]);
  known[stream_of(e, op)] = std::max(known[stream_of(e, op)], op + 1);
}

/// What each operation knows to have ended when it starts, by the kept dependencies and the order
/// of its stream.
std::vector<Known> known_before(const Expansion& e) {
  std::vector<Known> before(e.ops.size());
  std::array<std::uint32_t, kStreams> last{};  // operation + 1 of the stream
  for (std::uint32_t i = 0; i < e.ops.size(); ++i) {
    std::uint32_t& previous = last[stream_of(e, i)];
    if (previous > 0) learn(before[i], e, before, previous - 1);
    for (const std::uint32_t on : e.dependencies_of(i)) {
      RC_ASSERT(on < i && stream_of(e, on) != stream_of(e, i));
      learn(before[i], e, before, on);
    }
    previous = i + 1;
  }
  return before;
}

/// Everybody who touched an instance since it was written last.
struct Touched {
  std::uint32_t writer = ~0U;
  std::vector<std::uint32_t> readers;
};

RC_GTEST_PROP(Expand, KeptDependenciesImplyAll, (std::uint64_t seed)) {
  const auto [model, plan] = random_plan(seed, 4);
  const Program program = lower(plan, model).value();
  const StreamRefs refs(program);
  for (const RankClass& k : program.classes) {
    const Expansion e = expand(program, k, StreamRefs(program));
    const std::vector<Known> before = known_before(e);
    std::map<InstanceKey, Touched> instances;
    std::size_t frees = 0, users = 0;
    for (std::uint32_t i = 0; i < e.ops.size(); ++i) {
      const OpInstance& o = e.ops[i];
      const auto instance = [&](const BufferRef& r) -> Touched& {
        return instances[key_of(program, r, o.layer, o.micro_batch)];
      };
      const auto ended = [&](const Known& known, std::uint32_t op) {
        return op == ~0U || stream_of(e, op) == stream_of(e, i) || op < known[stream_of(e, op)];
      };
      const auto read = [&](const BufferRef& r) {
        RC_ASSERT(ended(before[i], instance(r).writer));
        instance(r).readers.push_back(i);
      };
      const auto change = [&](const BufferRef& r) {
        Touched& t = instance(r);
        RC_ASSERT(ended(before[i], t.writer));
        for (const std::uint32_t reader : t.readers) RC_ASSERT(ended(before[i], reader));
        t = {i, {}};
      };
      for (const BufferRef& r : o.op->reads) read(r);
      if (o.op->weights) read(*o.op->weights);
      for (const BufferRef& r : o.op->updates) change(r);
      if (o.op->gradients) change(*o.op->gradients);
      for (const BufferRef& r : o.op->writes) change(r);
      for (const BufferRef& r : o.op->frees) {
        Known known = before[i];
        if (refs.follows(r.buffer)) {
          RC_ASSERT(frees < e.frees.size() && e.frees[frees].op == i &&
                    e.frees[frees].bytes == program.buffers[r.buffer].bytes());
          for (const std::size_t end = users + e.frees[frees++].users; users < end; ++users)
            learn(known, e, before, e.free_users[users]);
        }
        RC_ASSERT(ended(known, instance(r).writer));
        for (const std::uint32_t reader : instance(r).readers) RC_ASSERT(ended(known, reader));
      }
    }
    RC_ASSERT(frees == e.frees.size() && users == e.free_users.size());
  }
}

}  // namespace
}  // namespace orrery::plan

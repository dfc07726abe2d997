#include "plan/memory.h"

#include <algorithm>

#include "base/check.h"
#include "model/segment.h"

namespace orrery::plan {

namespace {

std::int64_t transient_bytes(const Program& program, const Op& op) {
  return op.kind == OpKind::kCompute ? model::work(program.segments[op.segment], op.phase).transient_bytes : 0;
}

/// Running account of one rank in issue order. A step has thousands of operations of a few templates: sizes are looked up once.
struct Account {
  explicit Account(const Program& program) {
    for (const BufferDecl& d : program.buffers) buffers.push_back({d.bytes(), static_cast<std::size_t>(d.category)});
    for (const Template& t : program.templates) {
      first_transient.push_back(transients.size());
      for (const Op& op : t.ops) transients.push_back(transient_bytes(program, op));
    }
  }
  struct Size {
    std::int64_t bytes = 0;
    std::size_t category = 0;
  };
  std::vector<Size> buffers;
  std::vector<std::int64_t> transients;      // [template's first + operation]
  std::vector<std::size_t> first_transient;  // [template]
  std::array<std::int64_t, kBufferCategories> alive{};
  std::int64_t total = 0;

  void add(BufferId id) {
    alive[buffers[id.raw()].category] += buffers[id.raw()].bytes;
    total += buffers[id.raw()].bytes;
  }
  void remove(BufferId id) {
    alive[buffers[id.raw()].category] -= buffers[id.raw()].bytes;
    total -= buffers[id.raw()].bytes;
  }
};

}  // namespace

StaticMemory static_memory(const Program& program, const RankClass& rank_class) {
  StaticMemory m;
  Account account(program);
  for (const auto& p : rank_class.persistent) account.add(p.buffer);
  m.persistent_bytes = account.total;
  const auto peak = [&](std::int64_t transient, std::int64_t at) {
    if (account.total + transient <= m.peak_bytes) return;
    m.peak_bytes = account.total + transient;
    m.at_peak = account.alive;
    m.at_peak[static_cast<std::size_t>(BufferCategory::kActivation)] += transient;
    m.peak_op = at;
  };
  peak(0, -1);
  std::array<std::vector<BufferId>, kStreams> in_flight;   // freed by a send that may still be under way
  std::int64_t index = 0;
  for_each_op(program, rank_class, [&](const OpInstance& o) {
    const Op& op = *o.op;
    auto& waiting = in_flight[static_cast<std::size_t>(op.stream)];
    for (BufferId id : waiting) account.remove(id);
    waiting.clear();
    for (const BufferRef& w : op.writes) account.add(w.buffer);
    peak(account.transients[account.first_transient[o.source.raw()] + o.index], index++);
    for (const BufferRef& f : op.frees) {
      if (op.kind == OpKind::kExchange) waiting.push_back(f.buffer);
      else account.remove(f.buffer);
    }
  });
  return m;
}

TemplateMemory template_memory(const Program& program, TemplateId id) {
  TemplateMemory m;
  for (const Op& op : program.templates[id].ops) {
    for (const BufferRef& w : op.writes) m.delta_bytes += program.buffers[w.buffer].bytes();
    m.peak_bytes = std::max(m.peak_bytes, m.delta_bytes + transient_bytes(program, op));
    for (const BufferRef& f : op.frees) m.delta_bytes -= program.buffers[f.buffer].bytes();
  }
  return m;
}

}  // namespace orrery::plan

#include "plan/memory.h"

#include <algorithm>

#include "base/check.h"
#include "model/segment.h"

namespace orrery::plan {

namespace {

std::int64_t transient_bytes(const Program& program, const Op& op) {
  return op.kind == OpKind::kCompute ? model::work(program.segments[op.segment], op.phase).transient_bytes : 0;
}

/// Running account of one rank in issue order.
struct Account {
  std::array<std::int64_t, kBufferCategories> alive{};
  std::int64_t total = 0;

  void add(const BufferDecl& d, std::int64_t sign) {
    alive[static_cast<std::size_t>(d.category)] += sign * d.bytes();
    total += sign * d.bytes();
  }
};

}  // namespace

StaticMemory static_memory(const Program& program, const RankClass& rank_class) {
  StaticMemory m;
  Account account;
  for (const auto& p : rank_class.persistent) account.add(program.buffers[p.buffer], +1);
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
    for (BufferId id : waiting) account.add(program.buffers[id], -1);
    waiting.clear();
    for (const BufferRef& w : op.writes) account.add(program.buffers[w.buffer], +1);
    peak(transient_bytes(program, op), index++);
    for (const BufferRef& f : op.frees) {
      if (op.kind == OpKind::kExchange) waiting.push_back(f.buffer);
      else account.add(program.buffers[f.buffer], -1);
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

#include "sim/step/fused_program.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/numbers.h"

namespace orrery::sim {
namespace {

using plan::BufferRef;
using plan::Op;

struct Touch {
  BufferRef buffer;
  bool changes = false;
};

/// Reads, then changes.
std::vector<Touch> touches(const Op& op) {
  std::vector<Touch> all;
  for (const BufferRef& r : op.reads) all.push_back({r});
  if (op.weights) all.push_back({*op.weights});
  for (const BufferRef& r : op.updates) all.push_back({r, true});
  if (op.gradients) all.push_back({*op.gradients, true});
  for (const BufferRef& r : op.writes) all.push_back({r, true});
  return all;
}

/// Whether the operation may be in a run.
bool inner(const Op& op) {
  return op.kind == plan::OpKind::kCompute && op.stream == plan::Stream::kCompute && !op.acquire &&
         !op.release;
}

class Fusion {
 public:
  explicit Fusion(const plan::Program& program) {
    f_.program = program;
    f_.whole = &program;
    f_.first_run = as_u32(f_.program.segments.size());
    std::vector<unsigned> by(f_.program.buffers.size(), 0);  // 1: inner, 2: others
    for (const plan::Template& t : f_.program.templates)
      for (const Op& op : t.ops)
        for (const Touch& x : touches(op)) by[x.buffer.buffer.raw()] |= inner(op) ? 1U : 2U;
    for (const unsigned b : by) shared_.push_back(b == 3);
  }

  FusedProgram run() {
    for (const plan::TemplateId id : f_.program.templates.ids()) fuse_template(id);
    return std::move(f_);
  }

 private:
  static constexpr std::size_t kNever = ~std::size_t{0};
  /// Accesses of a stretch to one instance.
  struct Turn {
    BufferRef buffer;
    std::size_t last = 0, last_change = kNever;
  };

  void fuse_template(plan::TemplateId id) {
    std::vector<Op> ops = std::move(f_.program.templates[id].ops), fused;
    for (std::size_t i = 0; i < ops.size();) {
      std::size_t end = i;
      while (end < ops.size() && inner(ops[end])) ++end;
      if (end == i)
        fused.push_back(std::move(ops[i++]));
      else
        split(std::span(ops).subspan(i, end - i), fused);
      i = std::max(i, end);
    }
    for (Op& op : fused) op.frees.clear();
    f_.program.templates[id].ops = std::move(fused);
  }

  /// Into runs.
  void split(std::span<Op> ops, std::vector<Op>& fused) {
    std::vector<bool> looks(ops.size(), false), leaves(ops.size(), false);
    std::vector<Turn> turns;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      for (const Touch& x : touches(ops[i])) {
        if (!shared_[x.buffer.buffer.raw()]) continue;
        auto turn = std::ranges::find(turns, x.buffer, &Turn::buffer);
        if (turn == turns.end()) {
          turns.push_back({x.buffer});
          turn = turns.end() - 1;
          looks[i] = true;
        }
        turn->last = i;
        if (!x.changes) continue;
        if (turn->last_change == kNever) looks[i] = true;
        turn->last_change = i;
      }
    }
    for (const Turn& turn : turns) {
      leaves[turn.last] = true;
      if (turn.last_change != kNever) leaves[turn.last_change] = true;
    }
    std::size_t first = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (i + 1 < ops.size() && !leaves[i] && !looks[i + 1]) continue;
      add_run(ops.subspan(first, i + 1 - first), fused);
      first = i + 1;
    }
  }

  void add_run(std::span<Op> ops, std::vector<Op>& fused) {
    Op run;
    run.name = ops.front().name;
    run.phase = ops.front().phase;
    run.recomputed = ops.front().recomputed;
    run.segment = f_.program.segments.push_back({});
    std::vector<Touch> all;
    for (const Op& op : ops) {
      for (const Touch& x : touches(op)) {
        if (!shared_[x.buffer.buffer.raw()]) continue;
        const auto known = std::ranges::find(all, x.buffer, &Touch::buffer);
        if (known == all.end())
          all.push_back(x);
        else
          known->changes = known->changes || x.changes;
      }
    }
    for (const Touch& x : all) (x.changes ? run.updates : run.reads).push_back(x.buffer);
    f_.runs.emplace_back(std::make_move_iterator(ops.begin()), std::make_move_iterator(ops.end()));
    fused.push_back(std::move(run));
  }

  FusedProgram f_;
  std::vector<bool> shared_;  // [buffer] touched by operations in runs and by others
};

}  // namespace

FusedProgram fuse(const plan::Program& program) { return Fusion(program).run(); }

FusedProgram without_frees(const plan::Program& program) {
  FusedProgram f{.program = program, .runs = {}, .whole = &program};
  for (plan::Template& t : f.program.templates)
    for (Op& op : t.ops) op.frees.clear();
  f.first_run = as_u32(f.program.segments.size());
  return f;
}

}  // namespace orrery::sim

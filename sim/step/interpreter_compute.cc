/// Chains of operations that compute (interpreter.h).

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/numbers.h"
#include "base/sim_time.h"
#include "sim/step/interpreter.h"

namespace orrery::sim {
namespace {

// operations at most: where a chain slows down, all of them are looked at
constexpr int kChain = 64;

}  // namespace

std::int64_t Interpreter::jittered_ps(std::uint32_t c, std::uint32_t op, std::int64_t price) {
  std::vector<std::int64_t>& drawn = classes_[c].jittered_ps;
  if (drawn.empty()) drawn.resize(classes_[c].prepared->op_count(), 0);
  if (drawn[op] == 0)
    drawn[op] = kernel::scaled_ps(
        price, options_.jitter.ppm(options_.rank.empty() ? c : options_.rank[c], op));
  return drawn[op];
}

void Interpreter::start_compute(std::uint32_t c, std::uint32_t op) {
  const PricedOp& p = classes_[c].prepared->price(op);
  account(c);
  begin(c, op, now_);
  Class& k = classes_[c];
  ++k.active[index(Activity::kCompute)];
  ++k.running[index(p.part)];
  make_chain(c, op);
  if (!slows_) {
    run_from(now_, k, k.compute[p.stream], compute_ps(c, op));
    return schedule(c, p.stream);
  }
  k.compute[p.stream].fresh = true;
  touch(c);
}

/// `op` and the operations after it that are sure to follow without a gap, as far as nobody has to
/// be recorded of one.
void Interpreter::make_chain(std::uint32_t c, std::uint32_t op) {
  Class& k = classes_[c];
  const PreparedClass& prepared = *k.prepared;
  const PricedOp& first = prepared.price(op);
  Running& r = k.compute[first.stream];
  r.op = r.last = op;
  k.computing |= 1U << first.stream;
  if (!options_.chains || !options_.overlaps || compute_ps(c, op) == 0) return;
  std::uint32_t waited_for = kNone;  // of the stream, the first
  for (const Lane& lane : k.lanes) {
    if (lane.waiting_for >= op && lane.waiting_for < waited_for &&
        prepared.price(lane.waiting_for).stream == first.stream)
      waited_for = lane.waiting_for;
  }
  for (int length = 1; length < kChain && r.last != waited_for; ++length) {
    const std::uint32_t next = prepared.next[r.last];
    if (next == kNone) break;
    const PricedOp& p = prepared.price(next);
    if (p.kind != plan::OpKind::kCompute || p.part != first.part || compute_ps(c, next) == 0) break;
    const auto waits_for = prepared.expansion.dependencies_of(next);
    if (!std::ranges::all_of(waits_for, [&](std::uint32_t before) { return k.ended[before] != 0; }))
      break;
    r.last = next;
  }
  if (r.last != op) k.chained |= 1U << first.stream;
}

/// Somebody waits for `op`: if a chain that runs has it, it ends there.
void Interpreter::cut_chain(std::uint32_t c, std::uint32_t op) {
  Class& k = classes_[c];
  const std::uint32_t stream = k.prepared->price(op).stream;
  Running& r = k.compute[stream];
  if ((k.chained >> stream & 1U) == 0 || op < r.op || op >= r.last) return;
  r.last = op;
  if (r.op == op) k.chained &= ~(1U << stream);
  if (!r.fresh) schedule(c, stream);
}

/// Ends and begins what the class's chains have ended and begun until now, in the order of time: at
/// each instant what ends, then what begins.
void Interpreter::catch_up(std::uint32_t c) {
  Class& k = classes_[c];
  const auto each = [&](unsigned streams, auto&& visit) {
    for (; streams != 0; streams &= streams - 1) visit(as_u32(std::countr_zero(streams)));
  };
  const auto due = [&](std::int64_t at_ps) {
    unsigned streams = 0;
    each(k.chained,
         [&](std::uint32_t s) { streams |= k.compute[s].end_ps == at_ps ? 1U << s : 0; });
    return streams;
  };
  for (;;) {
    std::int64_t at_ps = now_;
    each(k.chained, [&](std::uint32_t s) { at_ps = std::min(at_ps, k.compute[s].end_ps); });
    const unsigned streams = due(at_ps);
    // what follows begins with all that begins now
    if (at_ps == now_) return each(streams, [&](std::uint32_t s) { end_compute(c, s); });
    each(streams, [&](std::uint32_t s) { close(c, k.compute[s].op, at_ps); });
    each(streams, [&](std::uint32_t s) { go_on(c, s); });
  }
}

/// The chain's next operation begins.
void Interpreter::go_on(std::uint32_t c, std::uint32_t stream) {
  Class& k = classes_[c];
  Running& r = k.compute[stream];
  r.op = k.lanes[stream].head = k.prepared->next[r.op];
  begin(c, r.op, r.end_ps);
  run_from(r.end_ps, k, r, compute_ps(c, r.op));
  if (r.op == r.last) k.chained &= ~(1U << stream);
}

/// The operation runs at the present speed.
void Interpreter::run_from(std::int64_t start_ps, const Class& k, Running& r,
                           std::int64_t alone_ps) const {
  r.start_ps = start_ps;
  r.alone_ps = alone_ps;
  r.changed = false;
  r.end_ps = start_ps + present_ps(k, alone_ps);
}

/// The class has just become contended, or no longer is.
void Interpreter::change_speed(const Class& k, Running& r) {
  const std::int64_t before = k.contended ? options_.slowdown_ppm : kMillion,
                     after = k.contended ? kMillion : options_.slowdown_ppm;
  if (!r.changed) {
    r.progress = kernel::RemainingWork(
        r.start_ps, static_cast<kernel::Int128>(r.alone_ps) * options_.slowdown_ppm);
    r.progress.set_speed(r.start_ps, before);
    r.changed = true;
  }
  r.progress.set_speed(now_, after);
  r.end_ps = r.progress.end_ps();
}

void Interpreter::schedule(std::uint32_t c, std::uint32_t stream) {
  const Class& k = classes_[c];
  Running& r = classes_[c].compute[stream];
  std::int64_t end_ps = r.end_ps;
  for (std::uint32_t op = r.op; op != r.last;) {  // each rounded up by itself
    op = k.prepared->next[op];
    end_ps += present_ps(k, compute_ps(c, op));
  }
  r.ticket = queue_.push(base::SimTime::from_ps(end_ps), kernel::Phase::kRelease, kComputeEnds,
                         c * plan::kStreams + stream);
}

/// The chain ends with the operation under way.
void Interpreter::end_compute(std::uint32_t c, std::uint32_t stream) {
  Class& k = classes_[c];
  Running& r = k.compute[stream];
  const std::uint32_t op = r.op;
  ORRERY_CHECK(op != kNone, "a chain of class {} ends twice", c);
  r.op = kNone;
  r.ticket = 0;
  k.computing &= ~(1U << stream);
  k.chained &= ~(1U << stream);
  --k.active[index(Activity::kCompute)];
  --k.running[index(k.prepared->price(op).part)];
  touch(c);
  finish(c, op);
}

void Interpreter::settle_class(std::uint32_t c) {
  Class& k = classes_[c];
  k.touched = false;
  const bool contended = k.active[index(Activity::kCompute)] > 0 && !k.flows.empty();
  const bool flipped = contended != k.contended;
  k.contended = contended;
  for (unsigned left = k.computing; left != 0; left &= left - 1) {
    const auto s = as_u32(std::countr_zero(left));
    Running& r = k.compute[s];
    if (!r.fresh && !flipped) continue;
    if (r.fresh)
      run_from(now_, k, r, compute_ps(c, r.op));
    else
      change_speed(k, r);
    r.fresh = false;
    schedule(c, s);
  }
}

}  // namespace orrery::sim

/// Chains of operations that compute (interpreter.h).

#include <algorithm>

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
  occupy(k, p);
  make_chain(c, op);
  if (!slows_) {
    run_from(now_, k, k.compute[p.stream], compute_ps(c, op, p));
    return schedule(c, p.stream);
  }
  k.fresh |= 1U << p.stream;
  touch(c);
}

void Interpreter::start_copy(std::uint32_t c, std::uint32_t op) {
  Class& k = classes_[c];
  const PricedOp& p = k.prepared->price(op);
  account(c);
  begin(c, op, now_);
  occupy(k, p);
  Running& r = k.compute[p.stream];
  r.op = r.last = op;
  r.ticket = queue_.push(base::SimTime::from_ps(now_ + p.compute_ps), kernel::Phase::kRelease,
                         kComputeEnds, c * plan::kStreams + p.stream);
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
  if (!options_.chains || !options_.overlaps || compute_ps(c, op, first) == 0) return;
  std::uint32_t waited_for = kNone;  // of the stream, the first
  each_bit(k.waiting, [&](std::uint32_t l) {
    const std::uint32_t other = k.lanes[l].waiting_for;
    if (other >= op && other < waited_for && prepared.price(other).stream == first.stream)
      waited_for = other;
  });
  for (int length = 1; length < kChain && r.last != waited_for; ++length) {
    const std::uint32_t next = prepared.next[r.last];
    if (next == kNone) break;
    const PricedOp& p = prepared.price(next);
    if (p.kind != plan::OpKind::kCompute || (options_.accounts && p.part != first.part) ||
        compute_ps(c, next, p) == 0)
      break;
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
  if ((k.fresh >> stream & 1U) == 0) schedule(c, stream);
}

/// Ends and begins what the class's chains have ended and begun until now, in the order of time: at
/// each instant what ends, then what begins.
void Interpreter::catch_up(std::uint32_t c) {
  Class& k = classes_[c];
  const auto due = [&](std::int64_t at_ps) {
    unsigned streams = 0;
    each_bit(k.chained,
             [&](std::uint32_t s) { streams |= k.compute[s].end_ps == at_ps ? 1U << s : 0; });
    return streams;
  };
  for (;;) {
    std::int64_t at_ps = now_;
    each_bit(k.chained, [&](std::uint32_t s) { at_ps = std::min(at_ps, k.compute[s].end_ps); });
    const unsigned streams = due(at_ps);
    // what follows begins with all that begins now
    if (at_ps == now_) return each_bit(streams, [&](std::uint32_t s) { end_compute(c, s); });
    each_bit(streams, [&](std::uint32_t s) { close(c, k.compute[s].op, at_ps); });
    each_bit(streams, [&](std::uint32_t s) { go_on(c, s); });
  }
}

/// The chain's next operation begins.
void Interpreter::go_on(std::uint32_t c, std::uint32_t stream) {
  Class& k = classes_[c];
  Running& r = k.compute[stream];
  r.op = k.lanes[stream].head = k.prepared->next[r.op];
  begin(c, r.op, r.end_ps);
  run_from(r.end_ps, k, r, compute_ps(c, r.op, k.prepared->price(r.op)));
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
    end_ps += present_ps(k, compute_ps(c, op, k.prepared->price(op)));
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
  vacate(k, k.prepared->price(op));
  touch(c);
  finish(c, op);
}

/// Speeds of what the class computes. True: it is contended now and was not, or the other way
/// round.
bool Interpreter::settle_class(std::uint32_t c) {
  Class& k = classes_[c];
  k.touched = false;
  const bool contended = k.active[index(Activity::kCompute)] > 0 && !k.flows.empty();
  const bool flipped = contended != k.contended;
  k.contended = contended;
  each_bit(flipped ? k.computing : k.fresh, [&](std::uint32_t s) {
    Running& r = k.compute[s];
    if ((k.fresh >> s & 1U) != 0)
      run_from(now_, k, r, compute_ps(c, r.op, k.prepared->price(r.op)));
    else
      change_speed(k, r);
    schedule(c, s);
  });
  k.fresh = 0;
  return flipped;
}

}  // namespace orrery::sim

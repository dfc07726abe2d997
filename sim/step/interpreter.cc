#include "sim/step/interpreter.h"

#include <algorithm>

#include "base/check.h"
#include "base/numbers.h"
#include "base/sim_time.h"

namespace orrery::sim {

Interpreter::Interpreter(const PreparedStep& step, FlowNetwork& network, kernel::EventQueue& queue,
                         InterpreterOptions options)
    : step_(step),
      network_(network),
      queue_(queue),
      options_(std::move(options)),
      slows_(options_.overlaps && options_.slowdown_ppm > kMillion) {
  classes_.resize(step.classes.size());
  outcome_.classes.resize(step.classes.size());
  channels_.resize(step.channels.size());
  arrivals_.resize(step.crossings.size());
  left_to_end_.resize(options_.jobs.size());
  outcome_.steps_end_ps.resize(options_.jobs.size());
  jobs_behind_ = options_.jobs.size();
  for (std::uint32_t job = 0; job < options_.jobs.size(); ++job) {
    const auto [first, end] = classes_of(job);
    for (std::uint32_t c = first; c < end; ++c) {
      classes_[c].prepared = &step.classes[c];
      classes_[c].job = job;
      classes_[c].accounted_ps = options_.jobs[job].start_ps;
      classes_[c].recorded = options_.accounts;
      ClassOutcome& out = outcome_.classes[c];
      out.start_ps.assign(step.classes[c].op_count(), -1);
      if (!options_.accounts) continue;
      out.end_ps.assign(step.classes[c].op_count(), -1);
      out.peak_bytes = step.classes[c].lifetimes.persistent_bytes;
    }
  }
}

std::pair<std::uint32_t, std::uint32_t> Interpreter::classes_of(std::uint32_t job) const {
  const auto end =
      job + 1 < options_.jobs.size() ? options_.jobs[job + 1].first_class : as_u32(classes_.size());
  return {options_.jobs[job].first_class, end};
}

base::Result<Outcome> Interpreter::run() {
  for (std::uint32_t job = 0; job < options_.jobs.size(); ++job) {
    if (const std::int64_t at = options_.jobs[job].start_ps; at > 0)
      queue_.push(base::SimTime::from_ps(at), kernel::Phase::kStart, kJobStarts, job);
    else
      start_step(job);
  }
  start_ready();
  settle();
  while (jobs_behind_ > 0 && operations_ <= options_.max_operations && !queue_.empty()) {
    do {
      const kernel::Event event = queue_.pop();
      now_ = event.at.ps();
      if (now_ > options_.cutoff_ps) {
        outcome_.cut_off = true;
        return std::move(outcome_);
      }
      if (now_ > kLongestPs) {
        return base::fail(
            base::make_error(base::ErrorCode::kOutOfRange, "a step of more than 53 days")
                .with_hint("a smaller batch, or more devices"));
      }
      handle(event);
      ++outcome_.events;
    } while (queue_.more_now());
    start_ready();
    settle();
  }
  if (operations_ > options_.max_operations) {
    return base::fail(base::make_error(base::ErrorCode::kUnsupported,
                                       "more than {} operations until all jobs have done {} steps",
                                       options_.max_operations, options_.steps)
                          .with_hint("the steps of one job are too short beside those of another"));
  }
  if (jobs_behind_ > 0) return base::fail(stuck());
  return std::move(outcome_);
}

void Interpreter::reset(std::uint32_t c) {
  Class& k = classes_[c];
  const std::uint32_t n = k.prepared->op_count();
  k.last_posted.fill(kNone);
  k.begun.assign(n, false);
  k.ended.assign(n, 0);
  k.alive_bytes = k.prepared->lifetimes.persistent_bytes;
  k.free_waits.clear();
  for (const Lifetimes::Free& f : k.prepared->lifetimes.frees) k.free_waits.push_back(f.waits_for);
}

void Interpreter::start_step(std::uint32_t job) {
  const auto [first, end] = classes_of(job);
  left_to_end_[job] = 0;
  for (std::uint32_t c = first; c < end; ++c) {
    Class& k = classes_[c];
    reset(c);
    remember_memory(c, now_);
    left_to_end_[job] += k.prepared->op_count();
    const std::uint32_t lanes = options_.overlaps ? plan::kStreams : 1;
    for (std::uint32_t l = 0; l < lanes; ++l) {
      k.lanes[l].head =
          options_.overlaps ? k.prepared->first[l] : (k.prepared->op_count() > 0 ? 0 : kNone);
      if (k.lanes[l].head != kNone) offer(c, l);
    }
  }
  operations_ += static_cast<std::int64_t>(left_to_end_[job]);
  if (left_to_end_[job] == 0) --jobs_behind_;
}

void Interpreter::end_step(std::uint32_t job) {
  const auto [first, end] = classes_of(job);
  std::vector<std::int64_t>& ends = outcome_.steps_end_ps[job];
  ends.push_back(now_);
  if (ends.size() == 1) {
    for (std::uint32_t c = first; c < end; ++c) {
      account(c);
      classes_[c].recorded = false;
    }
    if (job == 0) {
      outcome_.step_ps = now_;
      if (options_.accounts) outcome_.sent_bytes = network_.sent_bytes(now_);
    }
  }
  if (ends.size() == as_index(options_.steps)) --jobs_behind_;
  if (jobs_behind_ > 0) start_step(job);
}

void Interpreter::offer(std::uint32_t c, std::uint32_t lane) {
  Class& k = classes_[c];
  Lane& l = k.lanes[lane];
  l.cursor = k.prepared->expansion.dependency_begin[l.head];
  l.waiting_for = kNone;
  k.waiting &= ~(1U << lane);
  l.started = false;
  ready_.emplace_back(c, lane);
}

void Interpreter::start_ready() {
  while (!ready_.empty()) {
    const auto [c, lane] = ready_.back();
    ready_.pop_back();
    try_lane(c, lane);
  }
}

bool Interpreter::blocked(const Class& k, Lane& lane) const {
  const plan::Expansion& x = k.prepared->expansion;
  for (const std::uint32_t end = x.dependency_begin[lane.head + 1]; lane.cursor < end;
       ++lane.cursor) {
    if (k.ended[x.dependencies[lane.cursor]] != 0) continue;
    lane.waiting_for = x.dependencies[lane.cursor];
    return true;
  }
  if (options_.overlaps) return false;
  const std::uint32_t before = k.last_posted[k.prepared->price(lane.head).stream];
  if (before == kNone || k.ended[before] != 0) return false;
  lane.waiting_for = before;
  return true;
}

void Interpreter::try_lane(std::uint32_t c, std::uint32_t lane) {
  Class& k = classes_[c];
  Lane& l = k.lanes[lane];
  l.waiting_for = kNone;
  k.waiting &= ~(1U << lane);
  if (l.head == kNone || l.started) return;
  if (blocked(k, l)) {
    k.waiting |= 1U << lane;
    return cut_chain(c, l.waiting_for);
  }
  l.started = true;
  const std::uint32_t op = l.head;
  const PricedOp& p = k.prepared->price(op);
  if (!options_.overlaps && p.send_only) {
    k.last_posted[p.stream] = op;
    post(c, op);
    next_head(c, lane);
    return;
  }
  post(c, op);
}

void Interpreter::next_head(std::uint32_t c, std::uint32_t lane) {
  Class& k = classes_[c];
  Lane& l = k.lanes[lane];
  if (options_.overlaps)
    l.head = k.prepared->next[l.head];
  else
    l.head = l.head + 1 < k.prepared->op_count() ? l.head + 1 : kNone;
  l.started = false;
  if (l.head != kNone) offer(c, lane);
}

void Interpreter::post(std::uint32_t c, std::uint32_t op) {
  const PricedOp& p = classes_[c].prepared->price(op);
  switch (p.kind) {
    case plan::OpKind::kCompute: start_compute(c, op); return;
    case plan::OpKind::kCopy: start_copy(c, op); return;
    case plan::OpKind::kCollective:
      classes_[c].flows_left[p.stream] = 1;
      if (p.crossing != kNone) return arrive(c, op, p.crossing);
      parties_.assign(1, Party{c, op});
      return start_flow(p.transfer);
    case plan::OpKind::kExchange:
      classes_[c].flows_left[p.stream] = p.legs;
      ORRERY_CHECK(p.legs > 0, "an exchange without legs");
      for (std::uint32_t i = 0; i < p.legs; ++i) post_leg(c, op, step_.legs[p.first_leg + i]);
      return;
  }
}

void Interpreter::post_leg(std::uint32_t c, std::uint32_t op, const PricedLeg& leg) {
  Waiting& w = channels_[leg.channel];
  if (w.first == w.posted.size()) {
    w.posted.clear();
    w.first = 0;
    w.sends = leg.send;
  }
  if (w.sends == leg.send) {
    w.posted.emplace_back(Party{c, op}, leg.transfer);
    return;
  }
  const auto [peer, transfer] = w.posted[w.first++];
  parties_.assign({Party{c, op}, peer});
  start_flow(leg.send ? leg.transfer : transfer);
}

void Interpreter::arrive(std::uint32_t c, std::uint32_t op, std::uint32_t crossing) {
  std::vector<Party>& here = arrivals_[crossing];
  here.push_back(Party{c, op});
  if (here.size() < step_.crossings[crossing].classes.size()) return;
  parties_.assign(here.begin(), here.end());
  here.clear();
  start_flow(step_.crossings[crossing].transfer);
}

void Interpreter::begin(std::uint32_t c, std::uint32_t op, std::int64_t at_ps) {
  Class& k = classes_[c];
  const PricedOp& p = k.prepared->price(op);
  if (p.legs > 1) {
    if (k.begun[op]) return;  // another leg of the same exchange has begun
    k.begun[op] = true;
  }
  ClassOutcome& out = outcome_.classes[c];
  if (!options_.accounts) out.start_ps[op] = at_ps;
  if (!k.recorded) return;
  out.start_ps[op] = at_ps;
  k.alive_bytes += p.written_bytes + p.transient_bytes;
  out.peak_bytes = std::max(out.peak_bytes, k.alive_bytes);
  remember_memory(c, at_ps);
}

void Interpreter::start_flow(FlowNetwork::TransferIndex transfer) {
  const FlowNetwork::FlowIndex flow = network_.start(now_, transfer);
  if (flow >= flow_parties_.size()) flow_parties_.resize(flow + 1);
  flow_parties_[flow].assign(parties_.begin(), parties_.end());
  for (const Party& party : parties_) {
    account(party.rank_class);
    begin(party.rank_class, party.op, now_);
    Class& k = classes_[party.rank_class];
    const PricedOp& p = k.prepared->price(party.op);
    occupy(k, p);
    if (options_.overlaps && p.holds_nobody) {
      k.ended[party.op] = 2;
      wake(party.rank_class, party.op);
    }
    if (!slows_) continue;
    k.flows.push_back(flow);
    touch(party.rank_class);
  }
  if (slows_) fresh_flows_.push_back(flow);
}

/// Who waits for the operation is looked at again.
void Interpreter::wake(std::uint32_t c, std::uint32_t op) {
  const Class& k = classes_[c];
  each_bit(k.waiting, [&](std::uint32_t l) {
    if (k.lanes[l].waiting_for == op) ready_.emplace_back(c, l);
  });
}

void Interpreter::handle(const kernel::Event& event) {
  if (event.kind == kJobStarts) return start_step(event.target);
  if (event.kind == kFlowEvent) {
    if (network_.on_event(event)) flow_ended(event.target);
    return;
  }
  const std::uint32_t c = event.target / plan::kStreams, stream = event.target % plan::kStreams;
  if (classes_[c].compute[stream].ticket != event.order) return;
  account(c);
  end_compute(c, stream);
}

void Interpreter::flow_ended(FlowNetwork::FlowIndex flow) {
  for (const Party& party : flow_parties_[flow]) {
    account(party.rank_class);
    Class& k = classes_[party.rank_class];
    const PricedOp& p = k.prepared->price(party.op);
    vacate(k, p);
    if (slows_) k.flows.erase(std::ranges::find(k.flows, flow));
    touch(party.rank_class);
    if (--k.flows_left[p.stream] == 0) finish(party.rank_class, party.op);
  }
}

void Interpreter::finish(std::uint32_t c, std::uint32_t op) {
  Class& k = classes_[c];
  close(c, op, now_);
  // the lane that the operation holds, if it was not left behind, and those that wait for it
  const std::uint32_t own = options_.overlaps ? k.prepared->price(op).stream : 0;
  each_bit(k.waiting | 1U << own, [&](std::uint32_t l) {
    const Lane& lane = k.lanes[l];
    if (lane.started && lane.head == op)
      next_head(c, l);
    else if (lane.waiting_for == op)
      ready_.emplace_back(c, l);
  });
  if (left_to_end_[k.job] == 0) end_step(k.job);
}

/// Takes the operation off what is left to end.
void Interpreter::close(std::uint32_t c, std::uint32_t op, std::int64_t at_ps) {
  Class& k = classes_[c];
  k.ended[op] = 1;
  if (k.recorded) record_end(c, op, at_ps);
  --left_to_end_[k.job];
}

/// What is recorded of an operation that ends.
void Interpreter::record_end(std::uint32_t c, std::uint32_t op, std::int64_t at_ps) {
  Class& k = classes_[c];
  ClassOutcome& out = outcome_.classes[c];
  const PricedOp& p = k.prepared->price(op);
  out.end_ps[op] = at_ps;
  const std::int64_t elapsed = at_ps - out.start_ps[op];
  if (p.recomputed) out.recompute_ps += elapsed;
  if (p.optimizer) out.optimizer_ps += elapsed;
  const Lifetimes& life = k.prepared->lifetimes;
  k.alive_bytes -= p.transient_bytes + p.freed_bytes;
  for (const std::uint32_t f : life.holds_of(op)) {
    if (--k.free_waits[f] == 0) k.alive_bytes -= life.frees[f].bytes;
  }
  remember_memory(c, at_ps);
}

void Interpreter::settle() {
  if (!touched_.empty()) settle_speeds();
  network_.settle(now_);
}

/// Of classes that something happened to, and of flows that began or whose class has flipped.
void Interpreter::settle_speeds() {
  bool flipped = false;
  for (const std::uint32_t c : touched_) flipped |= settle_class(c);
  if (flipped) {
    for (const std::uint32_t c : touched_)
      for (const FlowNetwork::FlowIndex flow : classes_[c].flows) settle_flow(flow);
  } else {
    for (const FlowNetwork::FlowIndex flow : fresh_flows_) settle_flow(flow);
  }
  touched_.clear();
  fresh_flows_.clear();
}

void Interpreter::settle_flow(FlowNetwork::FlowIndex flow) {
  bool slowed = false;
  for (const Party& p : flow_parties_[flow]) slowed = slowed || classes_[p.rank_class].contended;
  network_.set_slowed(flow, slowed);
}

void Interpreter::pass(std::uint32_t c) {
  Class& k = classes_[c];
  if (k.recorded) record_passed(c, now_ - k.accounted_ps);
  k.accounted_ps = now_;
  if (k.chained != 0) catch_up(c);
}

void Interpreter::record_passed(std::uint32_t c, std::int64_t passed) {
  const Class& k = classes_[c];
  ClassOutcome& out = outcome_.classes[c];
  std::size_t part = 0;
  while (part < index(TimePart::kBubble) && k.running[part] == 0) ++part;
  out.parts[part] += passed;
  if (k.active[index(Activity::kCompute)] > 0) {
    out.busy_compute_ps += passed;
    return;
  }
  for (const Activity a : {Activity::kTensor, Activity::kData, Activity::kPipeline}) {
    if (k.active[index(a)] == 0) continue;
    out.exposed_ps[index(a)] += passed;
    return;
  }
  out.idle_ps += passed;
}

void Interpreter::sample_memory(std::uint32_t c, std::int64_t at_ps) {
  auto& samples = outcome_.classes[c].memory;
  const std::int64_t bytes = classes_[c].alive_bytes;
  if (!samples.empty() && samples.back().first == at_ps)
    samples.back().second = bytes;
  else if (samples.empty() || samples.back().second != bytes)
    samples.emplace_back(at_ps, bytes);
}

}  // namespace orrery::sim

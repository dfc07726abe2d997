#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/sim_time.h"
#include "sim/kernel/max_min.h"
#include "sim/kernel/remaining_work.h"
#include "sim/kernel/timers.h"
#include "sim/network/flow_system.h"

namespace orrery::sim {
namespace {

using kernel::Int128;

/// ceil(a / b) for a >= 0, b > 0; most fit 64 bits, where a division costs a tenth.
std::int64_t ceil_divide(Int128 a, std::int64_t b) {
  if (a >> 63 == 0) {
    const auto small = static_cast<std::uint64_t>(a), by = static_cast<std::uint64_t>(b);
    return static_cast<std::int64_t>((small + by - 1) / by);
  }
  const Int128 quotient = (a + b - 1) / b;
  ORRERY_CHECK(quotient >> 62 == 0, "simulated time out of range");
  return static_cast<std::int64_t>(quotient);
}

class Run {
 public:
  explicit Run(const FlowSystem& system)
      : system_(system), timers_(static_cast<std::uint32_t>(system.lanes.size())) {
    const auto lanes = static_cast<std::uint32_t>(system.lanes.size());
    for (const std::int64_t c : system.capacities) shares_.add_constraint(c);
    std::vector<kernel::Consumption> uses;
    for (std::uint32_t i = 0; i < lanes; ++i) {
      uses.clear();
      for (const FlowSystem::Load& load : system.loads[i])
        uses.push_back({kernel::ConstraintId(load.constraint), load.flows});
      shares_.add_variable(system.lanes[i].rate, uses);
    }
    states_.resize(lanes);
    for (std::uint32_t i = 0; i < lanes; ++i) {
      states_[i].next_wait = system.waits.begin[i];
      states_[i].shares = !system.loads[i].empty();
    }
    successors();
    outcome_.lanes.resize(lanes);
  }

  base::Result<SystemOutcome> run() {
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      if (system_.lanes[i].endless)
        enter_wire(i);
      else {
        ++unfinished_;
        candidates_.push_back(i);
      }
    }
    for (;;) {
      change_links();
      start_candidates();
      if (unfinished_ == 0) break;
      share();
      if (!advance()) return base::fail(stuck());
      while (!timers_.empty() && timers_.first_at() == now_) due(timers_.pop());
    }
    for (std::uint32_t i = 0; i < states_.size(); ++i) close(i);
    outcome_.end_ps = last_end_ps_;
    return std::move(outcome_);
  }

 private:
  enum class Leg : std::uint8_t { kIdle, kLatency, kWire };
  struct State {
    Int128 left = 0;  // byte·ps/s, at since_ps
    std::int64_t since_ps = 0;
    std::int64_t rate = 0;        // bytes per second since then
    std::int64_t known_rate = 0;  // a whole instance at this rate
    std::int64_t known_ps = 0;    // takes so long
    std::uint32_t ended = 0;
    // into waits.entries: what the next instance has not been seen to have
    std::uint32_t next_wait = 0;
    Leg leg = Leg::kIdle;
    bool shares = false;  // loads a constraint
    bool fresh = false;   // entered the wire in this instant
    bool touched = false;
  };

  void successors() {
    const auto lanes = static_cast<std::uint32_t>(states_.size());
    successors_.begin.assign(lanes + 1, 0);
    for (const FlowSystem::Wait& w : system_.waits.entries) ++successors_.begin[w.before + 1];
    for (std::uint32_t i = 0; i < lanes; ++i) successors_.begin[i + 1] += successors_.begin[i];
    std::vector<std::uint32_t> next(successors_.begin.begin(), successors_.begin.end() - 1);
    successors_.entries.resize(system_.waits.entries.size());
    for (std::uint32_t i = 0; i < lanes; ++i) {
      for (const FlowSystem::Wait& w : system_.waits[i]) successors_.entries[next[w.before]++] = i;
    }
  }

  void change_links() {
    for (; next_change_ < system_.changes.size() && system_.changes[next_change_].at_ps <= now_;
         ++next_change_) {
      const FlowSystem::Change& c = system_.changes[next_change_];
      shares_.set_capacity(kernel::ConstraintId(c.constraint), c.capacity);
      resolve_ = true;
    }
  }

  void start_candidates() {
    while (!candidates_.empty()) {
      const std::uint32_t lane = candidates_.back();
      candidates_.pop_back();
      if (ready(lane)) start(lane);
    }
  }

  bool ready(std::uint32_t lane) {
    State& s = states_[lane];
    if (s.leg != Leg::kIdle || s.ended == system_.lanes[lane].repeats) return false;
    for (const std::uint32_t end = system_.waits.begin[lane + 1]; s.next_wait < end;
         ++s.next_wait) {
      const FlowSystem::Wait& w = system_.waits.entries[s.next_wait];
      const std::int64_t instance =
          std::min<std::int64_t>(s.ended - w.distance, system_.lanes[w.before].repeats - 1);
      if (instance >= static_cast<std::int64_t>(states_[w.before].ended)) return false;
    }
    return true;
  }

  void start(std::uint32_t lane) {
    State& s = states_[lane];
    s.next_wait = system_.waits.begin[lane];
    if (system_.lanes[lane].latency_ps == 0) return enter_wire(lane);
    s.leg = Leg::kLatency;
    timers_.set(lane, now_ + system_.lanes[lane].latency_ps);
  }

  void enter_wire(std::uint32_t lane) {
    const FlowSystem::Lane& l = system_.lanes[lane];
    if (l.bytes == 0 && !l.endless) return end(lane);
    State& s = states_[lane];
    s.leg = Leg::kWire;
    s.fresh = true;
    s.left = static_cast<Int128>(l.bytes) * base::kPicosecondsPerSecond;
    s.since_ps = now_;
    touch(lane);
  }

  void due(std::uint32_t lane) {
    State& s = states_[lane];
    if (s.leg == Leg::kLatency) {
      ++outcome_.events;
      return enter_wire(lane);
    }
    pass(s);
    if (s.left <= 0) {
      ++outcome_.events;
      return end(lane);
    }
    // It was slowed down since the timer was set; at rate 0 it waits for set_rate().
    if (s.rate > 0) timers_.set(lane, now_ + ceil_divide(s.left, s.rate));
  }

  void end(std::uint32_t lane) {
    State& s = states_[lane];
    if (s.leg == Leg::kWire) touch(lane);
    s.leg = Leg::kIdle;
    ++s.ended;
    if (s.ended == system_.lanes[lane].repeats) {
      --unfinished_;
      last_end_ps_ = outcome_.lanes[lane].end_ps = now_;
    } else {
      candidates_.push_back(lane);
    }
    for (const std::uint32_t after : successors_[lane]) {
      if (states_[after].leg == Leg::kIdle) candidates_.push_back(after);
    }
  }

  void touch(std::uint32_t lane) {
    if (states_[lane].touched) return;
    states_[lane].touched = true;
    touched_.push_back(lane);
  }

  /// Work done until now counts at the old rate.
  void pass(State& s) const {
    s.left -= static_cast<Int128>(s.rate) * (now_ - s.since_ps);
    s.since_ps = now_;
  }

  /// Applies the changes of this instant: who is on the wire, at what rate, until when.
  void share() {
    for (const std::uint32_t lane : touched_) {
      const State& s = states_[lane];
      if (!s.shares) continue;
      const kernel::VariableId variable(lane);
      const bool wanted = s.leg == Leg::kWire;
      if (wanted == shares_.active(variable)) continue;
      if (wanted)
        shares_.activate(variable);
      else
        shares_.deactivate(variable);
      resolve_ = true;
    }
    if (resolve_) {
      resolve_ = false;
      for (const kernel::VariableId v : shares_.solve()) set_rate(v.raw(), shares_.rate(v));
    }
    for (const std::uint32_t lane : touched_) {
      State& s = states_[lane];
      s.touched = false;
      if (s.leg != Leg::kWire || !s.fresh) continue;
      s.fresh = false;
      s.rate = s.shares ? shares_.rate(kernel::VariableId(lane)) : system_.lanes[lane].rate;
      if (!system_.lanes[lane].endless && s.rate > 0)
        timers_.set(lane, now_ + whole_instance_ps(lane));
    }
    touched_.clear();
  }

  std::int64_t whole_instance_ps(std::uint32_t lane) {
    State& s = states_[lane];
    if (s.known_rate != s.rate) {
      s.known_rate = s.rate;
      s.known_ps = ceil_divide(s.left, s.rate);
    }
    return s.known_ps;
  }

  void set_rate(std::uint32_t lane, std::int64_t rate) {
    State& s = states_[lane];
    if (s.fresh) return;  // share() does it
    pass(s);
    if (system_.lanes[lane].endless) {
      s.rate = rate;
      return;
    }
    const bool slower = rate <= s.rate;
    s.rate = rate;
    if (slower && timers_.is_set(lane)) return;  // its timer comes early, and is set anew then
    if (rate == 0) return;
    const std::int64_t end_ps = now_ + ceil_divide(s.left, rate);
    if (!timers_.is_set(lane) || end_ps < timers_.at(lane)) timers_.set(lane, end_ps);
  }

  /// To the next instant in which something happens.
  bool advance() {
    const bool changes = next_change_ < system_.changes.size();
    if (timers_.empty() && !changes) return false;
    now_ = timers_.empty() ? system_.changes[next_change_].at_ps : timers_.first_at();
    if (changes) now_ = std::min(now_, system_.changes[next_change_].at_ps);
    return true;
  }

  void close(std::uint32_t lane) {
    const FlowSystem::Lane& l = system_.lanes[lane];
    LaneOutcome& out = outcome_.lanes[lane];
    if (!l.endless) {
      out.bytes = l.bytes * l.repeats;
      return;
    }
    State& s = states_[lane];
    now_ = last_end_ps_;
    pass(s);
    out.end_ps = last_end_ps_;
    out.bytes = static_cast<std::int64_t>(-s.left / base::kPicosecondsPerSecond);
  }

  [[nodiscard]] base::Diagnostic stuck() const;

  const FlowSystem& system_;
  kernel::MaxMin shares_;
  kernel::Timers timers_;
  std::vector<State> states_;
  Runs<std::uint32_t> successors_;
  std::vector<std::uint32_t> candidates_;
  std::vector<std::uint32_t> touched_;
  std::size_t next_change_ = 0;
  std::uint64_t unfinished_ = 0;
  std::int64_t now_ = 0;
  std::int64_t last_end_ps_ = 0;
  bool resolve_ = false;
  SystemOutcome outcome_;
};

base::Diagnostic Run::stuck() const {
  std::size_t waiting = 0, stopped = 0;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    if (system_.lanes[i].endless || states_[i].ended == system_.lanes[i].repeats) continue;
    ++(states_[i].leg == Leg::kWire ? stopped : waiting);
  }
  base::Diagnostic d =
      base::make_error(base::ErrorCode::kInconsistent, "{} transfers never end", waiting + stopped);
  if (stopped > 0)
    d.notes.push_back(fmt::format("{} of them cross a link without capacity", stopped));
  if (waiting > 0)
    d.notes.push_back(fmt::format("{} of them wait for others that never end", waiting));
  return d;
}

}  // namespace

base::Result<SystemOutcome> run_system(const FlowSystem& system) { return Run(system).run(); }

}  // namespace orrery::sim

#pragma once
/// \file
/// Runs a prepared step on the virtual clock: the rules of plan/program/program.h, one rank for
/// each class.
///
/// With overlap (a GPU): every stream of a class is a lane of its own. While a class computes and
/// communicates at once, both sides progress slowdown_ppm / 10^6 times slower; a transfer between
/// classes is slow while any of them computes.
///
/// Without (a CPU, one thread per rank): the class is one lane, its operations run in issue order.
/// Compute, collectives and receives hold the lane until they end; a send is posted and left
/// behind, and holds only the next operation of its stream.
///
/// Chains. With overlap, operations that compute one after another on a stream, each for some time
/// and of one TimePart, with all they wait for over and nobody waiting for one of them but the
/// last, are a *chain*: one event, at the end of the last. A class that something else happens to
/// first catches up with what its chains have ended and begun until then, each at its own time;
/// where a chain slows down, only its end moves; an operation that somebody comes to wait for ends
/// the chain. Whatever begins or ends in a class does so after it has caught up, so of what happens
/// in one instant of a class all ends are before all beginnings, as below. So times, accounts and
/// memory are those of operations that run one by one (a property test), and there are fewer
/// events.
///
/// Each instant: (1) everything that ends now ends, (2) everything that can start starts, (3) one
/// settle() of shares and speeds. What starts in (2) does not depend on the order in which lanes
/// are looked at, so the times are a function of the Program and the prices alone.
///
/// An operation that holds nobody (PricedOp) is over for all that wait for it once it has begun;
/// the next of its stream waits for its end.
///
/// Accounts. Every picosecond of a class until the end of the step is one of: computing; else
/// exposed communication, in the order tensor, data, pipeline; else idle. Waiting for a peer is
/// idle: a communication operation starts when it meets its peers. The finer account, by TimePart,
/// follows the order of that enumeration.
///
/// Jobs. Classes may belong to several jobs, which meet on links alone. A job repeats its step, the
/// next from the end of the last operation of the one before, until every job has done `steps`.
/// What classes did is recorded of the first step of each job; the step time and the bytes sent are
/// those when the first step of the first job ends.
///
/// Memory follows sim/step/lifetimes.h; what an operation writes is allocated when it starts.
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "sim/kernel/event_queue.h"
#include "sim/kernel/remaining_work.h"
#include "sim/network/flow_network.h"
#include "sim/step/jitter.h"
#include "sim/step/prepared_step.h"

namespace orrery::sim {

struct JobClasses {
  std::uint32_t first_class = 0;  // the others up to those of the next job
  std::int64_t start_ps = 0;      // of its first step
};

struct InterpreterOptions {
  bool overlaps = true;
  std::int64_t slowdown_ppm = 1'000'000;
  bool memory_samples = false;
  Jitter jitter = {};
  std::vector<std::uint32_t> rank = {};  // [class] whose jitter it has; empty: its place
  std::vector<JobClasses> jobs = {{}};   // the first starts at 0
  int steps = 1;
  bool chains = true;  // false: an event for every operation
  // false: of classes only when operations start, of the step only its time
  bool accounts = true;
  std::int64_t max_operations = std::numeric_limits<std::int64_t>::max();  // of all steps
  // where the clock passes it, run() ends
  std::int64_t cutoff_ps = std::numeric_limits<std::int64_t>::max();
};

/// What one class did.
struct ClassOutcome {
  std::vector<std::int64_t> start_ps, end_ps;  // [op]
  std::int64_t busy_compute_ps = 0, idle_ps = 0;
  std::array<std::int64_t, kActivities> exposed_ps{};  // by Activity; kCompute stays 0
  [[nodiscard]] std::int64_t all_exposed_ps() const {
    return std::accumulate(exposed_ps.begin(), exposed_ps.end(), std::int64_t{0});
  }
  std::array<std::int64_t, kTimeParts> parts{};  // by TimePart
  std::int64_t recompute_ps = 0, optimizer_ps = 0;
  std::int64_t peak_bytes = 0;                                // of the Program's buffers
  std::vector<std::pair<std::int64_t, std::int64_t>> memory;  // (ps, bytes), when asked
};
struct Outcome {
  std::int64_t step_ps = 0;
  bool cut_off = false;  // the step takes longer than cutoff_ps; nothing else is known of it
  std::uint64_t events = 0;
  std::vector<ClassOutcome> classes;
  std::vector<std::vector<std::int64_t>> sent_bytes;    // FlowNetwork::sent_bytes() until then
  std::vector<std::vector<std::int64_t>> steps_end_ps;  // [job] of every step that ended
};

class Interpreter {
 public:
  /// Of a step: half of what picoseconds count to, so that no end overflows.
  static constexpr std::int64_t kLongestPs = std::int64_t{1} << 62;
  /// kinds of events
  static constexpr std::uint32_t kComputeEnds = 0;
  static constexpr std::uint32_t kFlowEvent = 1;
  static constexpr std::uint32_t kJobStarts = 2;

  /// `step`, `network` and `queue` must outlive the interpreter; the network's event kind is
  /// kFlowEvent.
  Interpreter(const PreparedStep& step, FlowNetwork& network, kernel::EventQueue& queue,
              InterpreterOptions options);

  /// Call once. Errors: kInconsistent when nothing can progress, one note for each operation that
  /// waits; kUnsupported beyond max_operations.
  base::Result<Outcome> run();

 private:
  static constexpr std::int64_t kMillion = 1'000'000;
  static std::size_t index(Activity a) { return as_index(a); }
  static std::size_t index(TimePart p) { return as_index(p); }

  /// A place where operations run one after another.
  struct Lane {
    std::uint32_t head = kNone;         // next to start, or started and holding the lane
    std::uint32_t cursor = 0;           // dependency of head looked at
    std::uint32_t waiting_for = kNone;  // operation that must end first
    bool started = false;
  };
  /// A chain that computes.
  struct Running {
    std::uint32_t op = kNone;    // under way when the class was caught up with last
    std::uint32_t last = kNone;  // of the chain
    std::int64_t end_ps = 0;     // of op, at the present speed, unless the chain is fresh
    std::int64_t start_ps = 0, alone_ps = 0;  // of op
    bool changed = false;                     // op has changed its speed:
    kernel::RemainingWork progress;           // then of op
    std::uint64_t ticket = 0;                 // of the event of its end
  };
  struct Class {
    const PreparedClass* prepared = nullptr;
    std::array<Lane, plan::kStreams> lanes;
    std::array<Running, plan::kStreams> compute;  // by stream
    unsigned computing = 0;                       // streams with a chain, bits
    // those whose chain has operations after the one under way
    unsigned chained = 0;
    // those whose chain began at this instant; settle() says how fast it runs
    unsigned fresh = 0;
    unsigned waiting = 0;  // lanes that wait for an operation, bits
    // by stream: without overlap, a send left behind
    std::array<std::uint32_t, plan::kStreams> last_posted{};
    // by stream, of its running communication
    std::array<std::uint32_t, plan::kStreams> flows_left{};
    std::vector<FlowNetwork::FlowIndex> flows;
    std::uint32_t job = 0;
    bool recorded = true;             // in the first step of its job
    std::vector<bool> begun;          // [op] exchanges of several legs
    std::vector<std::uint8_t> ended;  // [op] 1: yes, 2: no, but nobody waits for it
    std::array<std::uint32_t, kActivities> active{};
    // operations, by TimePart; kBubble stays 0
    std::array<std::uint32_t, kTimeParts> running{};
    bool contended = false;
    bool touched = false;
    std::int64_t accounted_ps = 0;
    std::int64_t alive_bytes = 0;
    std::vector<std::uint32_t> free_waits;  // [free] operations that have not ended
    std::vector<std::int64_t> jittered_ps;  // [op] where there is jitter, once drawn; 0: not yet
  };
  struct Party {
    std::uint32_t rank_class = 0;
    std::uint32_t op = 0;
  };
  struct Waiting {  // posted legs or arrivals that have not met yet
    bool sends = false;
    std::size_t first = 0;
    std::vector<std::pair<Party, FlowNetwork::TransferIndex>> posted;
  };

  void start_step(std::uint32_t job);
  void end_step(std::uint32_t job);
  void reset(std::uint32_t c);
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> classes_of(std::uint32_t job) const;
  void start_ready();
  void offer(std::uint32_t c, std::uint32_t lane);
  template <class Visit>  // void(std::uint32_t): lanes or streams, ascending
  static void each_bit(unsigned bits, Visit&& visit) {
    for (; bits != 0; bits &= bits - 1) visit(as_u32(std::countr_zero(bits)));
  }
  void try_lane(std::uint32_t c, std::uint32_t lane);
  void next_head(std::uint32_t c, std::uint32_t lane);
  [[nodiscard]] bool blocked(const Class& k, Lane& lane) const;
  void make_chain(std::uint32_t c, std::uint32_t op);
  void cut_chain(std::uint32_t c, std::uint32_t op);
  void catch_up(std::uint32_t c);
  void go_on(std::uint32_t c, std::uint32_t stream);
  void run_from(std::int64_t start_ps, const Class& k, Running& r, std::int64_t alone_ps) const;
  void change_speed(const Class& k, Running& r);
  void schedule(std::uint32_t c, std::uint32_t stream);
  void end_compute(std::uint32_t c, std::uint32_t stream);
  void post(std::uint32_t c, std::uint32_t op);
  void post_leg(std::uint32_t c, std::uint32_t op, const PricedLeg& leg);
  void arrive(std::uint32_t c, std::uint32_t op, std::uint32_t crossing);
  void start_compute(std::uint32_t c, std::uint32_t op);
  /// Neither slows what computes or talks nor is slowed.
  void start_copy(std::uint32_t c, std::uint32_t op);
  /// Alone, of an operation priced `p`.
  [[nodiscard]] std::int64_t compute_ps(std::uint32_t c, std::uint32_t op, const PricedOp& p) {
    return options_.jitter.sigma_ppm == 0 ? p.compute_ps : jittered_ps(c, op, p.compute_ps);
  }
  [[nodiscard]] std::int64_t jittered_ps(std::uint32_t c, std::uint32_t op, std::int64_t price);
  // at the present speed
  [[nodiscard]] std::int64_t present_ps(const Class& k, std::int64_t alone_ps) const {
    return k.contended ? kernel::scaled_ps(alone_ps, options_.slowdown_ppm) : alone_ps;
  }
  void start_flow(FlowNetwork::TransferIndex transfer);  // of parties_
  void begin(std::uint32_t c, std::uint32_t op, std::int64_t at_ps);
  void finish(std::uint32_t c, std::uint32_t op);
  void close(std::uint32_t c, std::uint32_t op, std::int64_t at_ps);
  void record_end(std::uint32_t c, std::uint32_t op, std::int64_t at_ps);
  void wake(std::uint32_t c, std::uint32_t op);
  void occupy(Class& k, const PricedOp& p) const {
    ++k.active[index(p.activity)];
    if (options_.accounts) ++k.running[index(p.part)];
  }
  void vacate(Class& k, const PricedOp& p) const {
    --k.active[index(p.activity)];
    if (options_.accounts) --k.running[index(p.part)];
  }
  void handle(const kernel::Event& event);
  void flow_ended(FlowNetwork::FlowIndex flow);
  void settle();
  void settle_speeds();
  bool settle_class(std::uint32_t c);
  void settle_flow(FlowNetwork::FlowIndex flow);
  void touch(std::uint32_t c) {
    if (!slows_ || classes_[c].touched) return;
    classes_[c].touched = true;
    touched_.push_back(c);
  }
  /// Time that has passed for the class since the last call, in which nothing but chains went on.
  void account(std::uint32_t c) {
    if (classes_[c].accounted_ps != now_) pass(c);
  }
  void pass(std::uint32_t c);
  void record_passed(std::uint32_t c, std::int64_t passed);
  void remember_memory(std::uint32_t c, std::int64_t at_ps) {
    if (options_.memory_samples && classes_[c].recorded) sample_memory(c, at_ps);
  }
  void sample_memory(std::uint32_t c, std::int64_t at_ps);
  [[nodiscard]] base::Diagnostic stuck() const;
  [[nodiscard]] std::string describe(std::uint32_t c, std::uint32_t op) const;

  const PreparedStep& step_;
  FlowNetwork& network_;
  kernel::EventQueue& queue_;
  InterpreterOptions options_;
  bool slows_;
  std::int64_t now_ = 0;
  std::vector<std::size_t> left_to_end_;  // [job] operations of its step
  std::size_t jobs_behind_ = 0;           // that have not done all steps
  std::int64_t operations_ = 0;           // of all steps begun
  std::vector<Class> classes_;
  std::vector<Waiting> channels_;
  std::vector<std::vector<Party>> arrivals_;      // [crossing]
  std::vector<std::vector<Party>> flow_parties_;  // [flow]
  std::vector<Party> parties_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ready_;  // (class, lane)
  std::vector<std::uint32_t> touched_;                          // classes
  std::vector<FlowNetwork::FlowIndex> fresh_flows_;             // where compute slows
  Outcome outcome_;
};

}  // namespace orrery::sim

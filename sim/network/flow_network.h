#pragma once
/// \file
/// Transfers on a virtual clock: who shares a link with whom, and when each ends.
///
/// A transfer first spends its latency, then sends wire_bytes W at rate r(t), the max-min fair
/// share of the links it loads (kernel/max_min.h), in whole bytes per second; never more than its
/// rate alone. In units of byte·ps/s·ppm
///
///     work = W * 10^12 * k
///     speed = r * k  undisturbed,   r * 10^6  beside compute       [per ps]
///
/// where k = slowdown in ppm, k >= 10^6: all integers, so that nothing is lost when shares change
/// (kernel/remaining_work.h), and a transfer that runs alone ends after latency + ceil(W * 10^12 /
/// r) ps: exactly costmodel::Transfer::duration_ps(). Latency is work too: it counts k a
/// picosecond, and passes at k or 10^6.
///
/// Which links become constraints. Transfers are registered with a *lane*: two of one lane never
/// run at once (a stream is FIFO). A link that only one lane loads cannot be shared, and the rate
/// alone respects it already, so it is left out. Links loaded alike (the same flows of the same
/// transfers) are one constraint with the smallest capacity. Both are exact.
///
/// Background traffic is a flow without an end that runs from the first instant, on a lane of its
/// own.
///
/// Eras. Links may change at given instants. Between two of them, in an *era*, every transfer has
/// one price and one set of links, constraints are those of that era, and all of the above holds.
/// At the end of an era what is on the wire goes on over the links and at the rate cap of the next
/// with the work it has left: nothing is lost or sent twice, and a change at the first instant is
/// the same as none. What is in its latency ends it as it began.
///
/// Foresight. A transfer that starts when nothing else sends or is foreseen on its constraints has
/// one event, at the end that it would have alone. Should anything come in between (another on one
/// of them, a slowdown), it is put where it then is, in its latency or on the wire, and goes on as
/// all others do: the same times (a property test), mostly in half the events and without a solve.
/// There is no foresight where links change. Asked to, it looks past slowdowns: a foreseen transfer
/// that is slowed, or no longer so, has its end moved and stays foreseen.
///
/// One solve per instant: start() and on_event() note what changed, settle() shares out anew and
/// (re)schedules ends.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "costmodel/collectives/transfer.h"
#include "sim/kernel/event_queue.h"
#include "sim/kernel/max_min.h"
#include "sim/kernel/remaining_work.h"
#include "sim/network/background.h"
#include "topologies/topology.h"

namespace orrery::sim {

/// What flows that have `links` for themselves send at: at most `cap` (0: none), at least 1 byte/s.
std::int64_t rate_alone(std::int64_t cap, std::span<const costmodel::LinkLoad> links,
                        const topologies::Topology& topology);

class FlowNetwork {
 public:
  using TransferIndex = std::uint32_t;
  using FlowIndex = std::uint32_t;

  /// `topology` and `queue` must outlive the network; its events have kind `event_kind`.
  /// @pre slowdown_ppm >= 1'000'000.
  FlowNetwork(const topologies::Topology& topology, std::int64_t slowdown_ppm,
              kernel::EventQueue& queue, std::uint32_t event_kind);

  /// A network in the state of `frozen`, on another queue. @pre nothing was started there.
  FlowNetwork(const FlowNetwork& frozen, kernel::EventQueue& queue);

  /// Registers a transfer that may be started, once at a time. @pre before freeze().
  TransferIndex add(costmodel::Transfer transfer, std::uint32_t lane);
  /// @pre before freeze(); at least 1 byte/s over at least one link.
  void add_background(const BackgroundFlow& flow);
  /// A new era: from `at_ps` on, transfers and background flows are these, by their indices.
  /// `topology` must outlive the network.
  /// @pre before freeze(), after every add; at_ps > 0 and later than that of the last call; the
  /// same bytes as before.
  void change(std::int64_t at_ps, const topologies::Topology& topology,
              std::vector<costmodel::Transfer> transfers,
              const std::vector<BackgroundFlow>& background);
  /// Finds out which links are shared. Call once, before start().
  void freeze();
  /// An event for every leg of every transfer, as if there were no foresight. @pre after freeze(),
  /// before start().
  void step_by_step() { foresees_ = false; }
  /// A slowdown does not end foresight: the same times, by fewer events. @pre before start().
  void foresee_slowed() { foresees_slowed_ = true; }

  /// Starts a transfer now; its end is scheduled by settle(). Indices of ended flows are used
  /// again. @pre it is not running.
  FlowIndex start(std::int64_t now_ps, TransferIndex transfer);
  /// Whether the flow runs beside compute from now on.
  void set_slowed(FlowIndex flow, bool slowed);
  /// Takes an event of this network. True: its target, a flow, has ended.
  [[nodiscard]] bool on_event(const kernel::Event& event);
  /// Applies all changes of this instant.
  void settle(std::int64_t now_ps);

  [[nodiscard]] const costmodel::Transfer& transfer(TransferIndex transfer,
                                                    std::size_t era = 0) const {
    return eras_[era].transfers[transfer];
  }
  /// Those of background flows are among them.
  [[nodiscard]] std::size_t transfers() const { return registered_.size(); }
  /// [era][transfer] bytes that every flow of a transfer has sent until `now_ps`, of all its runs,
  /// rounded down. Of the present era and those before.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> sent_bytes(std::int64_t now_ps) const;
  /// Bytes that the link could have carried until then.
  [[nodiscard]] double room_bytes(topologies::LinkId link, std::int64_t until_ps) const;
  /// Bytes per second now, the time of the queue; 0 in latency.
  [[nodiscard]] std::int64_t rate(FlowIndex flow) const;

 private:
  FlowNetwork(const FlowNetwork&) = default;
  enum class Leg : std::uint8_t { kFree, kLatency, kWire, kForeseen };
  struct Registered {
    std::uint32_t lane = 0;
    FlowIndex flow = 0;  // while running; of background its index in endless_
    bool running = false;
    bool endless = false;
  };
  struct Flow {
    TransferIndex transfer = 0;
    Leg leg = Leg::kFree;
    bool slowed = false;
    bool dirty = false;
    // While foreseen: slowed when settled last; speed has changed on the way, and `progress` is
    // that of its latency or of the wire.
    bool beside = false, varied = false, on_wire = false;
    kernel::RemainingWork progress;
    std::int64_t started_ps = 0;
    kernel::Int128 left = 0;   // of its bytes, when it entered the wire or the era
    std::uint64_t ticket = 0;  // of the valid event
  };
  struct Endless {
    TransferIndex transfer = 0;
    std::int64_t rate = 0, since_ps = 0;
  };
  /// A transfer on links where nobody else is.
  struct Alone {
    std::int64_t rate = 0;
    std::array<std::int64_t, 2> latency_ps{}, wire_ps{};  // [slowed]
  };
  struct Era {
    std::int64_t from_ps = 0;
    const topologies::Topology* topology = nullptr;
    std::vector<costmodel::Transfer> transfers;
    kernel::MaxMin shares = {};
    std::vector<kernel::VariableId> variables = {};  // [transfer] invalid: shares nothing
    std::vector<TransferIndex> by_variable = {};
    // [transfer] work done in this era by flows that ended or left it
    std::vector<kernel::Int128> sent = {};
    std::size_t constraints = 0;
  };
  struct Load {  // of one link, by one transfer
    std::uint32_t link = 0, transfer = 0;
    std::int64_t flows = 0;
    auto operator<=>(const Load&) const = default;
  };
  static constexpr std::uint32_t kNextEra = ~std::uint32_t{0};  // target of an event
  static constexpr FlowIndex kNoFlow = ~FlowIndex{0};

  /// Ordered by link, then transfer: a counting sort where most links are loaded.
  [[nodiscard]] static std::vector<Load> loads_by_link(const Era& era);
  [[nodiscard]] Era& era() { return eras_[era_]; }
  [[nodiscard]] const Era& era() const { return eras_[era_]; }
  [[nodiscard]] static costmodel::Transfer endless_transfer(const BackgroundFlow& flow,
                                                            const topologies::Topology& topology);
  void freeze(Era& era);
  void schedule_next_era();
  void enter_next_era(std::int64_t now_ps);
  void mark(FlowIndex flow);
  void share_out(std::int64_t now_ps);
  [[nodiscard]] bool foresee(FlowIndex flow);
  void follow(std::int64_t now_ps, FlowIndex flow);
  void change_speed(std::int64_t now_ps, FlowIndex flow);
  [[nodiscard]] std::int64_t wire_from_ps(const Flow& f) const;
  [[nodiscard]] std::int64_t foreseen_end_ps(const Flow& f) const;
  [[nodiscard]] kernel::Int128 foreseen_work(std::int64_t now_ps, const Flow& f) const;
  void meet(std::int64_t now_ps, FlowIndex flow);
  void forget(FlowIndex flow);
  [[nodiscard]] kernel::Int128 wire_work(TransferIndex transfer) const;
  void enter_wire(std::int64_t since_ps, FlowIndex flow);
  void end(FlowIndex flow);

  /// Work that passes in a picosecond, for a byte per second.
  [[nodiscard]] kernel::Int128 unit(bool slowed) const {
    return slowed ? kernel::Int128(kMillion) : slowdown_ppm_;
  }

  static constexpr std::int64_t kMillion = 1'000'000;
  kernel::Int128 slowdown_ppm_;
  kernel::EventQueue* queue_;
  std::uint32_t event_kind_;
  std::vector<Era> eras_;
  std::size_t era_ = 0;
  std::vector<Registered> registered_;
  std::vector<Flow> flows_;
  std::vector<Endless> endless_;
  std::vector<FlowIndex> free_;
  std::vector<FlowIndex> dirty_;
  bool shares_changed_ = false;
  // Foresight, where there is one era.
  bool foresees_ = false, foresees_slowed_ = false;
  bool slowdown_unforeseen_ = false;              // a foreseen flow is slowed
  std::vector<std::vector<std::uint32_t>> uses_;  // [transfer] its constraints
  // [constraint] flow that is foreseen to be alone there, kNoFlow: none
  std::vector<FlowIndex> foreseen_;
  std::vector<Alone> alone_;  // [transfer]
};

}  // namespace orrery::sim

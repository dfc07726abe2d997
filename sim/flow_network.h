#pragma once
/// \file
/// Transfers on a virtual clock: who shares a link with whom, and when each ends.
///
/// A transfer first spends its latency, then sends wire_bytes W at rate r(t), the max-min fair share of the links it loads
/// (kernel/max_min.h), in whole bytes per second; never more than its rate alone. In units of byte·ps/s·ppm
///
///     work = W * 10^12 * k            speed = r * k  undisturbed,   r * 10^6  beside compute       [per ps]
///
/// where k = slowdown in ppm, k >= 10^6: all integers, so that nothing is lost when shares change (kernel/progress.h), and a transfer that
/// runs alone ends after latency + ceil(W * 10^12 / r) ps: exactly costmodel::Transfer::duration_ps(). Latency is work too: it
/// counts k a picosecond, and passes at k or 10^6.
///
/// Which links become constraints. Transfers are registered with a *lane*: two of one lane never run at once (a stream is FIFO). A
/// link that only one lane loads cannot be shared, and the rate alone respects it already, so it is left out. Links loaded alike (the
/// same flows of the same transfers) are one constraint with the smallest capacity. Both are exact.
///
/// Background traffic is a flow without an end that runs from the first instant, on a lane of its own.
///
/// One solve per instant: start() and on_event() note what changed, settle() shares out anew and (re)schedules ends.
#include <cstdint>
#include <vector>

#include "costmodel/transfer.h"
#include "sim/background.h"
#include "sim/kernel/event_queue.h"
#include "sim/kernel/max_min.h"
#include "sim/kernel/progress.h"
#include "topologies/topology.h"

namespace orrery::sim {

class FlowNetwork {
 public:
  using TransferIndex = std::uint32_t;
  using FlowIndex = std::uint32_t;

  /// `topology` and `queue` must outlive the network; its events have kind `event_kind`.
  /// @pre slowdown_ppm >= 1'000'000.
  FlowNetwork(const topologies::Topology& topology, std::int64_t slowdown_ppm, kernel::EventQueue& queue, std::uint32_t event_kind);

  /// A network in the state of `frozen`, on another queue. @pre nothing was started there.
  FlowNetwork(const FlowNetwork& frozen, kernel::EventQueue& queue);

  /// Registers a transfer that may be started, once at a time. @pre before freeze().
  TransferIndex add(costmodel::Transfer transfer, std::uint32_t lane);
  /// @pre before freeze(); at least 1 byte/s over at least one link.
  void add_background(const BackgroundFlow& flow);
  /// Finds out which links are shared. Call once, before start().
  void freeze();

  /// Starts a transfer now; its end is scheduled by settle(). Indices of ended flows are used again. @pre it is not running.
  FlowIndex start(std::int64_t now_ps, TransferIndex transfer);
  /// Whether the flow runs beside compute from now on.
  void set_slowed(FlowIndex flow, bool slowed);
  /// Takes an event of this network. True: its target, a flow, has ended.
  [[nodiscard]] bool on_event(const kernel::Event& event);
  /// Applies all changes of this instant.
  void settle(std::int64_t now_ps);

  [[nodiscard]] const costmodel::Transfer& transfer(TransferIndex transfer) const { return transfers_[transfer].transfer; }
  [[nodiscard]] std::size_t transfers() const { return transfers_.size(); }
  [[nodiscard]] std::size_t running() const { return running_; }
  /// Links that are shared, after folding.
  [[nodiscard]] std::size_t constraints() const { return constraints_; }
  /// Background flows: what each loads, and the bytes it sent until `now_ps`, rounded down.
  [[nodiscard]] std::size_t backgrounds() const { return endless_.size(); }
  [[nodiscard]] const costmodel::Transfer& background(std::size_t i) const { return transfers_[endless_[i].transfer].transfer; }
  [[nodiscard]] std::int64_t background_bytes(std::size_t i, std::int64_t now_ps) const;
  /// Bytes per second now; 0 in latency.
  [[nodiscard]] std::int64_t rate(FlowIndex flow) const;

 private:
  FlowNetwork(const FlowNetwork&) = default;
  enum class Leg : std::uint8_t { kFree, kLatency, kWire };
  struct Registered {
    costmodel::Transfer transfer;
    std::uint32_t lane = 0;
    kernel::VariableId variable;     // invalid: shares nothing
    FlowIndex flow = 0;              // while running; of background its index in endless_
    bool running = false;
    bool endless = false;
  };
  struct Flow {
    TransferIndex transfer = 0;
    Leg leg = Leg::kFree;
    bool slowed = false;
    bool dirty = false;
    kernel::Progress progress;
    std::uint64_t ticket = 0;        // of the valid event
  };
  struct Endless {
    TransferIndex transfer = 0;
    std::int64_t rate = 0, since_ps = 0;
    kernel::Int128 sent = 0;         // until since_ps, in byte·ps/s
  };
  struct Load {  // of one link, by one transfer
    std::uint32_t link = 0, transfer = 0;
    std::int64_t flows = 0;
  };
  /// Ordered by link, then transfer: a counting sort where most links are loaded.
  [[nodiscard]] std::vector<Load> loads_by_link() const;
  void mark(FlowIndex flow);
  void share_out(std::int64_t now_ps);
  void enter_wire(std::int64_t now_ps, FlowIndex flow);
  void end(FlowIndex flow);

  const topologies::Topology* topology_;
  kernel::Int128 slowdown_ppm_;
  kernel::EventQueue* queue_;
  std::uint32_t event_kind_;
  kernel::MaxMin shares_;
  std::vector<Registered> transfers_;
  std::vector<TransferIndex> by_variable_;
  std::vector<Flow> flows_;
  std::vector<Endless> endless_;
  std::vector<FlowIndex> free_;
  std::vector<FlowIndex> dirty_;
  std::size_t running_ = 0;
  std::size_t constraints_ = 0;
  bool shares_changed_ = false;
};

}  // namespace orrery::sim

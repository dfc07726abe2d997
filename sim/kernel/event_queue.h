#pragma once
/// Future-event set of a simulation, with a total order of simultaneous events.
///
///   pop() = argmin over pending events of (time, phase, sequence number)
///
/// Sequence numbers count pushes, so no two events are equal and the order of pops is a pure function of the pushes.
/// `std::push_heap` over 24-byte events: 10 to 13 million pop+push a second at 10,000 pending; a faster calendar queue would
/// have to know its load beforehand, and a step of training keeps fewer than a hundred events pending.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/sim_time.h"

namespace orrery::sim::kernel {

/// Order of work inside one instant: an earlier phase never sees effects of a later one.
enum class Phase : std::uint8_t {
  kRelease = 0,  ///< work that ends gives back its stream, bandwidth and memory
  kDeliver = 1,  ///< messages leave their latency and enter the fabric
  kStart = 2,    ///< what became ready begins
  kObserve = 3,  ///< samples and counters
};

/// Trivially copyable: no function, no pointer.
struct Event {
  base::SimTime at;
  std::uint64_t order = 0;   ///< phase << 56 | sequence number, unique: also the event's name
  std::uint32_t kind = 0;    ///< the owner's, for one switch
  std::uint32_t target = 0;  ///< dense index of what it is about
};
static_assert(sizeof(Event) == 24 && std::is_trivially_copyable_v<Event>);

/// Events are never removed: who reschedules keeps the `order` of the valid one and ignores the others when they come.
class EventQueue {
 public:
  /// Returns the event's `order`, never 0. @pre at >= now().
  std::uint64_t push(base::SimTime at, Phase phase, std::uint32_t kind, std::uint32_t target) {
    ORRERY_CHECK(at >= now_, "event at {} ps before now, {} ps", at.ps(), now_.ps());
    const std::uint64_t order = static_cast<std::uint64_t>(phase) << 56 | next_++;
    heap_.push_back(Event{at, order, kind, target});
    std::push_heap(heap_.begin(), heap_.end(), Later{});
    return order;
  }
  /// The first event; now() becomes its time. @pre !empty().
  Event pop() {
    ORRERY_CHECK(!heap_.empty());
    std::pop_heap(heap_.begin(), heap_.end(), Later{});
    const Event event = heap_.back();
    heap_.pop_back();
    now_ = event.at;
    return event;
  }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] std::size_t size() const { return heap_.size(); }
  /// Time of the event that pop() would return. @pre !empty().
  [[nodiscard]] base::SimTime next_at() const {
    ORRERY_CHECK(!heap_.empty());
    return heap_.front().at;
  }
  /// Time of the last popped event.
  [[nodiscard]] base::SimTime now() const { return now_; }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };
  std::vector<Event> heap_;
  std::uint64_t next_ = 1;
  base::SimTime now_;
};

}  // namespace orrery::sim::kernel

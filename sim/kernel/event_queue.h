#pragma once
/// Future-event set of a simulation, with a total order of simultaneous events.
///
///   pop() = argmin over pending events of (time, phase, sequence number)
///
/// Sequence numbers count pushes, so no two events are equal and the order of pops is a pure function of the pushes.
/// A 4-ary heap of 24-byte events whose root stays vacant after a pop: the push that usually follows fills it with one sift
/// (tests/bench/sim_kernel_bench.cc counts events a second). A calendar queue would be faster still, but has to know its load beforehand.

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
    const Event event{at, order, kind, target};
    if (vacant_) {
      vacant_ = false;
      sink(event);
    } else {
      heap_.push_back(event);
      rise(event);
    }
    return order;
  }
  /// The first event; now() becomes its time. @pre !empty().
  Event pop() {
    ORRERY_CHECK(!empty());
    if (vacant_) {
      const Event last = heap_.back();
      heap_.pop_back();
      sink(last);
    }
    vacant_ = true;
    now_ = heap_.front().at;
    return heap_.front();
  }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] std::size_t size() const { return heap_.size() - (vacant_ ? 1 : 0); }
  /// Time of the event that pop() would return. @pre !empty().
  [[nodiscard]] base::SimTime next_at() const {
    ORRERY_CHECK(!empty());
    return vacant_ ? heap_[first_child(0)].at : heap_.front().at;
  }
  /// Time of the last popped event.
  [[nodiscard]] base::SimTime now() const { return now_; }

 private:
  static bool earlier(const Event& a, const Event& b) { return a.at != b.at ? a.at < b.at : a.order < b.order; }
  /// The earliest of the up to four children of a place. @pre it has one.
  [[nodiscard]] std::size_t first_child(std::size_t place) const {
    const std::size_t child = 4 * place + 1, end = std::min(child + 4, heap_.size());
    std::size_t first = child;
    for (std::size_t c = child + 1; c < end; ++c) {
      if (earlier(heap_[c], heap_[first])) first = c;
    }
    return first;
  }
  void rise(const Event& event) {
    std::size_t place = heap_.size() - 1;
    while (place > 0 && earlier(event, heap_[(place - 1) / 4])) {
      heap_[place] = heap_[(place - 1) / 4];
      place = (place - 1) / 4;
    }
    heap_[place] = event;
  }
  /// Puts an event in place of the root.
  void sink(const Event& event) {
    std::size_t place = 0;
    while (4 * place + 1 < heap_.size()) {
      const std::size_t child = first_child(place);
      if (!earlier(heap_[child], event)) break;
      heap_[place] = heap_[child];
      place = child;
    }
    heap_[place] = event;
  }

  std::vector<Event> heap_;  // children of i are 4 i + 1 .. 4 i + 4
  bool vacant_ = false;      // the root was popped
  std::uint64_t next_ = 1;
  base::SimTime now_;
};

}  // namespace orrery::sim::kernel

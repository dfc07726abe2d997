#pragma once
/// Future-event set of a simulation, with a total order of simultaneous events.
///
///   pop() = argmin over pending events of (time, phase, sequence number)
///
/// Sequence numbers count pushes, so no two events are equal and the order of pops is a pure
/// function of the pushes.
///
/// Near events wait in a short sorted array, which is all that a step of few ranks needs. When it
/// is full its later half goes to a *far* heap, and so does from then on whatever is not earlier
/// than that; the heap is popped when the array is empty. So whoever is near is earlier than
/// whoever is far.
///
/// The far heap is a radix heap (Ahuja, Mehlhorn, Orlin, Tarjan, "Faster algorithms for the
/// shortest path problem", J. ACM 37(2), 1990), for time never runs backwards. In digits of four
/// bits, an event waits in the bucket
///
///     (level, digit) = (the highest digit in which its time differs from the heap's now,
///                       that digit of its time)
///
/// so the earliest are in the lowest bucket. A pop empties it: its earliest event is now, the
/// others go to lower buckets, those of the same instant to the list of their phase. An event moves
/// down at most once a level, and nothing is compared outside one bucket
/// (tests/bench/sim_kernel_bench.cc counts events a second). Events of one time share a bucket
/// always, so lists keep the order of pushes.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"
#include "base/sim_time.h"

namespace orrery::sim::kernel {

/// Order of work inside one instant: an earlier phase never sees effects of a later one.
enum class Phase : std::uint8_t {
  kRelease = 0,  ///< work that ends gives back its stream, bandwidth and memory
  kDeliver = 1,  ///< messages leave their latency and enter the fabric
  kStart = 2,    ///< what became ready begins
};
inline constexpr std::size_t kPhases = 3;
inline constexpr int kPhaseShift = 56;  // of Event::order

/// Trivially copyable: no function, no pointer.
struct Event {
  base::SimTime at;
  std::uint64_t order = 0;   ///< phase << 56 | sequence number, unique: also the event's name
  std::uint32_t kind = 0;    ///< the owner's, for one switch
  std::uint32_t target = 0;  ///< dense index of what it is about
};
static_assert(sizeof(Event) == 24 && std::is_trivially_copyable_v<Event>);

inline bool earlier(const Event& a, const Event& b) {
  return a.at != b.at ? a.at < b.at : a.order < b.order;
}

class RadixHeap {
 public:
  /// @pre event.at >= now().
  void push(const Event& event) {
    ++size_;
    place(event);
  }
  /// The first event; now() becomes its time. @pre !empty().
  Event pop() {
    --size_;
    if (!more_now()) return advance();
    const int phase = std::countr_zero(present_);
    Present& list = lists_[as_index(phase)];
    const Event event = list.events[list.first++];
    if (list.first == list.events.size()) {
      list.events.clear();
      list.first = 0;
      present_ &= ~(1U << phase);
    }
    return event;
  }
  /// Whether the next pop() gives another event of now().
  [[nodiscard]] bool more_now() const { return present_ != 0; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  /// Time of the last popped event.
  [[nodiscard]] base::SimTime now() const { return now_; }

 private:
  static constexpr unsigned kBits = 4, kDigits = 1U << kBits, kLevels = 64 / kBits;
  struct Present {  // of one phase, at now()
    std::vector<Event> events;
    std::size_t first = 0;
  };

  void place(const Event& event) {
    const auto at = static_cast<std::uint64_t>(event.at.ps());
    const std::uint64_t differs = at ^ static_cast<std::uint64_t>(now_.ps());
    if (differs == 0) {
      const std::uint64_t phase = event.order >> kPhaseShift;
      lists_[phase].events.push_back(event);
      present_ |= 1U << phase;
      return;
    }
    const unsigned level = static_cast<unsigned>(std::bit_width(differs) - 1) / kBits;
    const unsigned digit = static_cast<unsigned>(at >> (level * kBits)) % kDigits;
    buckets_[level * kDigits + digit].push_back(event);
    digits_[level] |= 1U << digit;
    levels_ |= 1U << level;
  }
  /// Takes the earliest event of the lowest bucket. @pre nothing is left of this instant.
  Event advance() {
    const auto level = static_cast<unsigned>(std::countr_zero(levels_));
    const auto digit = static_cast<unsigned>(std::countr_zero(digits_[level]));
    digits_[level] &= ~(1U << digit);
    if (digits_[level] == 0) levels_ &= ~(1U << level);
    std::vector<Event>& bucket = buckets_[level * kDigits + digit];
    const Event *first = bucket.data(), *const end = first + bucket.size();
    for (const Event* e = first + 1; e != end; ++e) first = earlier(*e, *first) ? e : first;
    const Event event = *first;
    now_ = event.at;
    for (const Event* e = bucket.data(); e != end; ++e) {
      if (e != first) place(*e);  // into other buckets: this one's digit is that of now
    }
    bucket.clear();
    return event;
  }

  std::array<std::vector<Event>, std::size_t{kLevels} * kDigits> buckets_;
  std::array<std::uint32_t, kLevels> digits_{};  // with events, by level
  std::uint32_t levels_ = 0;                     // with events
  std::array<Present, kPhases> lists_;
  std::uint32_t present_ = 0;  // phases with events at now()
  std::size_t size_ = 0;
  base::SimTime now_;
};

/// Events are never removed: who reschedules keeps the `order` of the valid one and ignores the
/// others when they come.
class EventQueue {
 public:
  /// Returns the event's `order`, never 0. @pre at >= now().
  std::uint64_t push(base::SimTime at, Phase phase, std::uint32_t kind, std::uint32_t target) {
    ORRERY_CHECK(at >= now_, "event at {} ps before now, {} ps", at.ps(), now_.ps());
    const std::uint64_t order = static_cast<std::uint64_t>(phase) << kPhaseShift | next_++;
    const Event event{at, order, kind, target};
    if (near_count_ == kNear) spill();
    if (!far_.empty() && !earlier(event, bound_))
      far_.push(event);
    else
      insert(event);
    return order;
  }
  /// The first event; now() becomes its time. @pre !empty().
  Event pop() {
    if (near_count_ > 0) {
      const Event event = near_[--near_count_];
      now_ = event.at;
      return event;
    }
    ORRERY_CHECK(!far_.empty());
    bound_ = far_.pop();
    now_ = bound_.at;
    return bound_;
  }
  /// Whether the next pop() gives another event of now().
  [[nodiscard]] bool more_now() const {
    if (near_count_ > 0) return near_[near_count_ - 1].at == now_;
    if (far_.now() == now_) return far_.more_now();
    return !far_.empty() && bound_.at == now_;
  }
  [[nodiscard]] bool empty() const { return near_count_ == 0 && far_.empty(); }
  [[nodiscard]] std::size_t size() const { return near_count_ + far_.size(); }
  /// Time of the last popped event.
  [[nodiscard]] base::SimTime now() const { return now_; }

 private:
  static constexpr std::size_t kNear = 32;

  void insert(const Event& event) {
    std::size_t at = near_count_++;
    for (; at > 0 && earlier(near_[at - 1], event); --at) near_[at] = near_[at - 1];
    near_[at] = event;
  }
  /// The later half goes far.
  void spill() {
    constexpr std::size_t kHalf = kNear / 2;
    for (std::size_t i = 0; i < kHalf; ++i) far_.push(near_[i]);
    bound_ = near_[kHalf - 1];
    std::copy(near_.begin() + kHalf, near_.end(), near_.begin());
    near_count_ = kNear - kHalf;
  }

  std::array<Event, kNear> near_;  // the earliest last
  std::size_t near_count_ = 0;
  RadixHeap far_;
  Event bound_;  // nothing in far_ is earlier; its earliest, unless that was popped
  std::uint64_t next_ = 1;
  base::SimTime now_;
};

}  // namespace orrery::sim::kernel

#pragma once
/// One pending time per index, moved rather than pushed again: for activities whose ends are
/// rescheduled more often than reached.
///
///   pop() = argmin over set timers of time; which of several equal ones, nobody may depend on
///
/// A 4-ary heap that knows each timer's place. Timers of one instant leave without a sift while the
/// rest of the heap is equal, so a step in which thousands of equal activities end together costs
/// next to nothing.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/check.h"

namespace orrery::sim::kernel {

class Timers {
 public:
  explicit Timers(std::uint32_t count) : place_(count, kUnset) { heap_.reserve(count); }

  /// Sets or moves the timer of an index. @pre index < count.
  void set(std::uint32_t index, std::int64_t at_ps) {
    const Timer timer{at_ps, index};
    std::uint32_t place = place_[index];
    if (place == kUnset) {
      heap_.push_back(timer);
      rise(static_cast<std::uint32_t>(heap_.size() - 1), timer);
    } else if (before(timer, heap_[place])) {
      rise(place, timer);
    } else {
      sink(place, timer);
    }
  }
  void clear(std::uint32_t index) {
    const std::uint32_t place = place_[index];
    if (place == kUnset) return;
    place_[index] = kUnset;
    const Timer last = heap_.back();
    heap_.pop_back();
    if (place == heap_.size()) return;
    if (place > 0 && before(last, heap_[(place - 1) / 4]))
      rise(place, last);
    else
      sink(place, last);
  }
  [[nodiscard]] bool is_set(std::uint32_t index) const { return place_[index] != kUnset; }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  /// @pre !empty().
  [[nodiscard]] std::int64_t first_at() const { return heap_.front().at_ps; }
  /// Takes the first timer away. @pre !empty().
  std::uint32_t pop() {
    const std::uint32_t index = heap_.front().index;
    clear(index);
    return index;
  }
  /// When a set timer is due. @pre is_set(index).
  [[nodiscard]] std::int64_t at(std::uint32_t index) const { return heap_[place_[index]].at_ps; }

 private:
  static constexpr std::uint32_t kUnset = std::numeric_limits<std::uint32_t>::max();
  struct Timer {
    std::int64_t at_ps = 0;
    std::uint32_t index = 0;
  };
  static bool before(const Timer& a, const Timer& b) { return a.at_ps < b.at_ps; }

  void put(std::uint32_t place, const Timer& timer) {
    heap_[place] = timer;
    place_[timer.index] = place;
  }
  void rise(std::uint32_t place, const Timer& timer) {
    while (place > 0 && before(timer, heap_[(place - 1) / 4])) {
      put(place, heap_[(place - 1) / 4]);
      place = (place - 1) / 4;
    }
    put(place, timer);
  }
  void sink(std::uint32_t place, const Timer& timer) {
    const auto size = static_cast<std::uint32_t>(heap_.size());
    for (std::uint32_t child = 4 * place + 1; child < size; child = 4 * place + 1) {
      std::uint32_t least = child;
      for (std::uint32_t c = child + 1; c < std::min(child + 4, size); ++c) {
        if (before(heap_[c], heap_[least])) least = c;
      }
      if (!before(heap_[least], timer)) break;
      put(place, heap_[least]);
      place = least;
    }
    put(place, timer);
  }

  std::vector<Timer> heap_;
  std::vector<std::uint32_t> place_;  // [index] in heap_
};

}  // namespace orrery::sim::kernel

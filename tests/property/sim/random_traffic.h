#pragma once
/// Random pairs of a fabric and what runs on it, regular as clusters and collectives are, with or
/// without something that breaks the symmetry.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "tests/unit/sim/traffic.h"

namespace orrery::sim::testing {

class RandomTraffic {
 public:
  explicit RandomTraffic(std::uint64_t seed) : rng_(seed) {}

  /// Up to 64 devices.
  Traffic draw(bool asymmetric) {
    shape();
    if (asymmetric && one_of(2)) capacities_[rng_.below(capacities_.size())] /= 3;  // a slow link
    Traffic traffic{.eras = {{0, capacities_}}};
    const auto jobs = 1 + rng_.below(2);
    for (std::uint32_t job = 0; job < jobs; ++job) add_job(traffic, asymmetric);
    if (one_of(4))
      add_era(traffic, [](auto& all) {  // all links at once
        for (std::int64_t& c : all) c /= 2;
      });
    if (asymmetric && one_of(3)) {
      const std::size_t link = rng_.below(capacities_.size());
      add_era(traffic, [&](auto& all) { all[link] /= 5; });
      add_era(traffic, [&](auto& all) { all[link] = capacities_[link]; });  // repaired
    }
    if (asymmetric && one_of(3)) {
      const auto link = static_cast<std::uint32_t>(rng_.below(capacities_.size()));
      traffic.background.push_back({between(1, capacities_[link]), over({link})});
    }
    return traffic;
  }

 private:
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool one_of(std::uint64_t n) { return rng_.below(n) == 0; }

  template <typename Change>
  void add_era(Traffic& traffic, Change&& change) {
    Traffic::Era next = traffic.eras.back();
    next.from_ps += between(1, 2'000'000);
    change(next.capacities);
    traffic.eras.push_back(std::move(next));
  }

  /// A two-level tree, or a torus with routes by dimension.
  void shape() {
    torus_ = one_of(3);
    const std::uint32_t sides[] = {1, 2, 4, 8};
    rows_ = sides[1 + rng_.below(3)];
    columns_ = sides[1 + rng_.below(3)];
    devices_ = rows_ * columns_;
    const std::int64_t link = between(1'000'000, 50'000'000);
    capacities_.assign((torus_ ? 4U : 2U) * static_cast<std::size_t>(devices_), link);
    if (!torus_)
      capacities_.insert(capacities_.end(), 2 * static_cast<std::size_t>(rows_),
                         link * columns_ / between(1, 8));
  }
  [[nodiscard]] std::vector<costmodel::LinkLoad> route(std::uint32_t from, std::uint32_t to) const {
    return over(torus_ ? torus_route(from, to) : tree_route(from, to));
  }
  [[nodiscard]] std::vector<std::uint32_t> tree_route(std::uint32_t from, std::uint32_t to) const {
    const std::uint32_t a = from / columns_, b = to / columns_;
    if (a == b) return {from, devices_ + to};
    return {from, 2 * devices_ + a, 2 * devices_ + rows_ + b, devices_ + to};
  }
  /// Along the row in the shorter direction, then along the column; link 4 d + k leaves device d.
  [[nodiscard]] std::vector<std::uint32_t> torus_route(std::uint32_t from, std::uint32_t to) const {
    std::vector<std::uint32_t> links;
    std::uint32_t row = from / columns_, column = from % columns_;
    const auto step = [&](std::uint32_t& at, std::uint32_t goal, std::uint32_t size,
                          std::uint32_t kind) {
      const bool up = (goal + size - at) % size * 2 <= size;
      while (at != goal) {
        links.push_back(4 * (row * columns_ + column) + kind + (up ? 0 : 1));
        at = up ? (at + 1) % size : (at + size - 1) % size;
      }
    };
    step(column, to % columns_, columns_, 0);
    step(row, to / columns_, rows_, 2);
    return links;
  }

  /// Groups of `size` ranks, `stride` apart, all doing the same: a ring, an all-to-all, the rounds
  /// of recursive halving or a binary tree. A pair's messages go one after another; a straggler is
  /// late with its first.
  void add_job(Traffic& traffic, bool asymmetric) {
    std::uint32_t size = 2;
    while (size < devices_ && !one_of(3)) size *= 2;
    std::uint32_t stride = 1;
    while (stride * size < devices_ && one_of(2)) stride *= 2;
    const costmodel::Transfer message{.latency_ps = one_of(2) ? 0 : between(1, 1'000'000),
                                      .wire_bytes = between(0, 5000),
                                      .rate_cap = one_of(4) ? between(1'000'000, 20'000'000) : 0};
    const std::int64_t repeats = between(1, 4), start_ps = between(0, 2'000'000);
    const auto kind = rng_.below(4);
    const auto straggler =
        asymmetric && one_of(2) ? static_cast<std::uint32_t>(rng_.below(devices_)) : devices_;
    const auto add = [&](std::uint32_t from, std::uint32_t to) {
      costmodel::Transfer t = message;
      t.links = route(from, to);
      for (std::int64_t k = 0; k < repeats; ++k)
        traffic.items.push_back({t, lanes_, from == straggler ? 2 * start_ps : start_ps});
      ++lanes_;
    };
    for (std::uint32_t base = 0; base < devices_; ++base) {
      if (base / stride % size != 0) continue;
      for (std::uint32_t i = 0; i < size; ++i) {
        const auto rank = [&](std::uint32_t k) { return base + k * stride; };
        if (kind == 0) add(rank(i), rank((i + 1) % size));
        for (std::uint32_t j = 0; kind == 1 && j < size; ++j)
          if (i != j) add(rank(i), rank(j));
        for (std::uint32_t half = size / 2; kind == 2 && half > 0; half /= 2)
          add(rank(i), rank(i ^ half));
        if (kind == 3 && i > 0) add(rank((i - 1) / 2), rank(i));
      }
    }
  }

  base::Rng rng_;
  bool torus_ = false;
  std::uint32_t rows_ = 0, columns_ = 0, devices_ = 0, lanes_ = 0;
  std::vector<std::int64_t> capacities_;
};

}  // namespace orrery::sim::testing

#pragma once
/// Random pairs of a fabric and what runs on it, regular as clusters and collectives are, with or
/// without something that breaks the symmetry.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "sim/network/transfer_run.h"

namespace orrery::sim::testing {

struct Traffic {
  TransferGraph graph;
  TransferRunOptions options;
};

class RandomTraffic {
 public:
  explicit RandomTraffic(std::uint64_t seed) : rng_(seed) {}

  /// Up to 64 devices.
  Traffic draw(bool asymmetric) {
    shape();
    if (asymmetric && one_of(2)) capacities_[rng_.below(capacities_.size())] /= 3;  // a slow link
    Traffic traffic{TransferGraph(capacities_), {}};
    const auto jobs = 1 + rng_.below(2);
    for (std::uint32_t job = 0; job < jobs; ++job) add_job(traffic.graph, job, asymmetric);
    if (one_of(4)) {  // a regular change: all links at once, halved for a while
      const std::int64_t at = between(1, 3'000'000);
      for (std::uint32_t l = 0; l < capacities_.size(); ++l)
        traffic.options.changes.push_back({topologies::LinkId(l), at, capacities_[l] / 2});
    }
    if (asymmetric && one_of(3)) {
      const topologies::LinkId link(static_cast<std::uint32_t>(rng_.below(capacities_.size())));
      const std::int64_t at = between(1, 2'000'000);
      traffic.options.changes.push_back({link, at, one_of(2) ? 0 : capacities_[link.raw()] / 5});
      traffic.options.changes.push_back(
          {link, at + between(1, 5'000'000), capacities_[link.raw()]});
    }
    if (asymmetric && one_of(3)) {
      const topologies::LinkId link(static_cast<std::uint32_t>(rng_.below(capacities_.size())));
      traffic.options.background.push_back({between(1, capacities_[link.raw()]), {{link, 1}}});
    }
    return traffic;
  }

 private:
  using Loads = std::vector<costmodel::LinkLoad>;
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool one_of(std::uint64_t n) { return rng_.below(n) == 0; }

  /// A two-level tree, or a torus with routes by dimension.
  void shape() {
    torus_ = one_of(3);
    const std::uint32_t sides[] = {1, 2, 4, 8};
    rows_ = sides[1 + rng_.below(3)];
    columns_ = sides[1 + rng_.below(3)];
    devices_ = rows_ * columns_;
    const std::int64_t link = between(1'000'000, 50'000'000);
    if (torus_)
      capacities_.assign(4 * static_cast<std::size_t>(devices_), link);
    else
      capacities_.assign(2 * static_cast<std::size_t>(devices_), link);
    if (!torus_)
      capacities_.insert(capacities_.end(), 2 * static_cast<std::size_t>(rows_),
                         link * columns_ / between(1, 8));
  }
  [[nodiscard]] Loads route(std::uint32_t from, std::uint32_t to) const {
    return torus_ ? torus_route(from, to) : tree_route(from, to);
  }
  [[nodiscard]] Loads tree_route(std::uint32_t from, std::uint32_t to) const {
    const auto load = [](std::uint32_t l) { return costmodel::LinkLoad{topologies::LinkId(l), 1}; };
    const std::uint32_t a = from / columns_, b = to / columns_;
    if (a == b) return {load(from), load(devices_ + to)};
    return {load(from), load(2 * devices_ + a), load(2 * devices_ + rows_ + b),
            load(devices_ + to)};
  }
  /// Along the row in the shorter direction, then along the column; link 4 d + k leaves device d.
  [[nodiscard]] Loads torus_route(std::uint32_t from, std::uint32_t to) const {
    Loads loads;
    std::uint32_t row = from / columns_, column = from % columns_;
    const auto step = [&](std::uint32_t& at, std::uint32_t goal, std::uint32_t size,
                          std::uint32_t kind) {
      const bool up = (goal + size - at) % size * 2 <= size;
      while (at != goal) {
        loads.push_back(
            {topologies::LinkId(4 * (row * columns_ + column) + kind + (up ? 0 : 1)), 1});
        at = up ? (at + 1) % size : (at + size - 1) % size;
      }
    };
    step(column, to % columns_, columns_, 0);
    step(row, to / columns_, rows_, 2);
    return loads;
  }

  /// Groups of `size` ranks, `stride` apart, all doing the same.
  void add_job(TransferGraph& graph, std::uint32_t job, bool asymmetric) {
    std::uint32_t size = 2;
    while (size < devices_ && !one_of(3)) size *= 2;
    std::uint32_t stride = 1;
    while (stride * size < devices_ && one_of(2)) stride *= 2;
    const TransferSpec spec{.bytes = between(1, 5000),
                            .latency_ps = one_of(2) ? 0 : between(1, 1'000'000),
                            .rate_cap = one_of(4) ? between(1'000'000, 20'000'000) : 0,
                            .repeats = static_cast<std::uint32_t>(between(1, 6)),
                            .job = job};
    const auto kind = rng_.below(4);
    const std::int64_t compute = between(0, 2'000'000);
    const std::uint32_t straggler =
        asymmetric && one_of(2) ? static_cast<std::uint32_t>(rng_.below(devices_)) : devices_;
    for (std::uint32_t base = 0; base < devices_; ++base) {
      if (base / stride % size != 0) continue;
      std::vector<std::uint32_t> ranks;
      for (std::uint32_t i = 0; i < size; ++i) ranks.push_back(base + i * stride);
      std::vector<TransferId> computes;
      for (const std::uint32_t r : ranks) {
        computes.push_back(graph.add({.latency_ps = compute * (r == straggler ? 2 : 1),
                                      .repeats = spec.repeats,
                                      .job = job}));
      }
      switch (kind) {
        case 0: add_ring(graph, ranks, spec, computes); break;
        case 1: add_all_to_all(graph, ranks, spec, computes); break;
        case 2: add_halving(graph, ranks, spec, computes); break;
        default: add_chain(graph, ranks, spec, computes); break;
      }
    }
  }
  void add_ring(TransferGraph& graph, const std::vector<std::uint32_t>& ranks,
                const TransferSpec& spec, const std::vector<TransferId>& computes) {
    const auto n = static_cast<std::uint32_t>(ranks.size());
    std::vector<TransferId> sends;
    for (std::uint32_t i = 0; i < n; ++i)
      sends.push_back(graph.add(spec, route(ranks[i], ranks[(i + 1) % n])));
    for (std::uint32_t i = 0; i < n; ++i) {
      graph.depend(sends[(i + 1) % n], sends[i], 1);
      graph.depend(sends[i], computes[i]);
      graph.depend(computes[i], sends[(i + n - 1) % n], 2);
    }
  }
  void add_all_to_all(TransferGraph& graph, const std::vector<std::uint32_t>& ranks,
                      const TransferSpec& spec, const std::vector<TransferId>& computes) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      for (std::size_t j = 0; j < ranks.size(); ++j) {
        if (i == j) continue;
        const TransferId send = graph.add(spec, route(ranks[i], ranks[j]));
        graph.depend(send, computes[i]);
        graph.depend(computes[j], send, 1);
      }
    }
  }
  void add_halving(TransferGraph& graph, const std::vector<std::uint32_t>& ranks,
                   const TransferSpec& spec, const std::vector<TransferId>& computes) {
    std::vector<TransferId> last = computes;
    for (std::uint32_t half = static_cast<std::uint32_t>(ranks.size()) / 2; half > 0; half /= 2) {
      std::vector<TransferId> round;
      for (std::uint32_t i = 0; i < ranks.size(); ++i)
        round.push_back(graph.add(spec, route(ranks[i], ranks[i ^ half])));
      for (std::uint32_t i = 0; i < ranks.size(); ++i) {
        graph.depend(round[i], last[i]);
        graph.depend(round[i], last[i ^ half]);
      }
      last = round;
    }
  }
  /// A binary tree from the first rank, chunk by chunk.
  void add_chain(TransferGraph& graph, const std::vector<std::uint32_t>& ranks,
                 const TransferSpec& spec, const std::vector<TransferId>& computes) {
    std::vector<TransferId> into(ranks.size(), computes[0]);
    for (std::size_t i = 1; i < ranks.size(); ++i) {
      into[i] = graph.add(spec, route(ranks[(i - 1) / 2], ranks[i]));
      graph.depend(into[i], into[(i - 1) / 2]);
      graph.depend(computes[i], into[i]);
    }
  }

  base::Rng rng_;
  bool torus_ = false;
  std::uint32_t rows_ = 0, columns_ = 0, devices_ = 0;
  std::vector<std::int64_t> capacities_;
};

}  // namespace orrery::sim::testing

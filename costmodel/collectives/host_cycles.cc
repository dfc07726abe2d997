#include "costmodel/collectives/host_cycles.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/numbers.h"
#include "base/rng.h"

namespace orrery::costmodel {
namespace {

class CycleFinder {
 public:
  CycleFinder(const topologies::Topology& topology, std::span<const int> members)
      : n_(members.size()) {
    std::vector<std::int64_t> rates(n_ * n_, 0);
    std::int64_t least = 0;
    for (std::size_t i = 0; i < n_; ++i)
      for (std::size_t j = 0; j < n_; ++j) {
        const auto route = topology.route(as_u32(members[i]), as_u32(members[j]));
        if (route.size() != 1) continue;
        const std::int64_t rate = rates[i * n_ + j] = topology.link(route[0]).bytes_per_second;
        least = least == 0 ? rate : std::min(least, rate);
      }
    Places order(n_);
    std::iota(order.begin(), order.end(), 0);
    order_.assign(n_, order);
    for (const std::int64_t rate : rates) left_.push_back(least == 0 ? 0 : as_int(rate / least));
  }

  /// Greedily, with other orders of the neighbours until nothing is left or the attempts are spent.
  std::vector<Places> find() {
    const std::vector<int> all = left_;
    const auto links = as_index(std::accumulate(all.begin(), all.end(), 0));
    std::vector<Places> best;
    for (int attempt = 0; attempt < kAttempts && best.size() * n_ < links; ++attempt) {
      left_ = all;
      auto cycles = disjoint();
      if (cycles.size() > best.size()) best = std::move(cycles);
      for (Places& order : order_)
        for (std::size_t i = n_; i > 1; --i) std::swap(order[i - 1], order[rng_.below(i)]);
    }
    return best;
  }

 private:
  std::vector<Places> disjoint() {
    std::vector<Places> cycles;
    for (;;) {
      path_.assign(1, 0);
      used_.assign(n_, false);
      used_[0] = true;
      effort_ = 0;
      if (!extend()) return cycles;
      for (std::size_t i = 0; i < n_; ++i) --link(path_[i], path_[(i + 1) % n_]);
      cycles.push_back(path_);
    }
  }
  static constexpr int kEffort = 20'000;  // nodes of the search for one cycle
  static constexpr int kAttempts = 256;
  int& link(std::size_t from, std::size_t to) { return left_[from * n_ + to]; }
  bool extend() {
    const std::size_t at = path_.back();
    if (path_.size() == n_) return link(at, 0) > 0;
    for (const std::size_t next : order_[at]) {
      if (++effort_ > kEffort) return false;
      if (used_[next] || link(at, next) == 0) continue;
      used_[next] = true;
      path_.push_back(next);
      if (extend()) return true;
      path_.pop_back();
      used_[next] = false;
    }
    return false;
  }
  std::size_t n_;
  int effort_ = 0;
  base::Rng rng_{1};
  std::vector<int> left_;
  Places path_;
  std::vector<Places> order_;  // [place] of its neighbours
  std::vector<bool> used_;
};

}  // namespace

std::vector<Places> host_cycles(const topologies::Topology& topology,
                                std::span<const int> members) {
  // Every cycle leaves the first member over a link of its own.
  const bool linked = std::ranges::any_of(members.subspan(1), [&](int other) {
    return topology.route(as_u32(members[0]), as_u32(other)).size() == 1;
  });
  if (!linked) return {};
  return CycleFinder(topology, members).find();
}

}  // namespace orrery::costmodel

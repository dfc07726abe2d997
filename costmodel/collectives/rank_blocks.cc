#include "costmodel/collectives/rank_blocks.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"

namespace orrery::costmodel {
namespace {

bool divide_one_another(int a, int b) { return a % b == 0 || b % a == 0; }

}  // namespace

std::optional<RankBlocks> RankBlocks::of(const topologies::Topology& topology, int first_rank,
                                         int rank_count) {
  if (!topology.host_copies() || first_rank % rank_count != 0) return std::nullopt;
  RankBlocks blocks;
  blocks.copies_ = &*topology.host_copies();
  blocks.first_ = first_rank;
  blocks.count_ = rank_count;
  blocks.top_ = -1;
  for (const topologies::CopyLevel& level : blocks.copies_->levels) {
    blocks.sizes_.push_back(as_int(level.hosts * topology.devices_per_host()));
    if (rank_count % blocks.sizes_.back() == 0) {
      ++blocks.top_;
    } else if (blocks.sizes_.back() % rank_count != 0) {
      return std::nullopt;
    }
  }
  if (blocks.top_ < 0) return std::nullopt;
  return blocks;
}

bool RankBlocks::repeats(const plan::Group& group) const {
  if (group.size <= 1) return true;
  if (group.stride % count_ == 0) return true;
  if (group.bits != 0) return false;  // a shift by a block need not take it to another group
  const int span = group.span(), host = sizes_.front();
  const bool next_rail =
      sizes_.size() > 1 && group.stride < host && span / host % 2 == 1 && span > host;
  return inside(group) && !next_rail &&
         std::ranges::all_of(std::span(sizes_).first(as_index(top_) + 1), [&](int size) {
           return divide_one_another(span, size) && divide_one_another(group.stride, size);
         });
}

std::optional<int> period_of(const topologies::Topology& topology, const plan::Group& group,
                             int first_rank, int rank_count) {
  const auto& copies = topology.host_copies();
  const int span = group.span(), host = as_int(topology.devices_per_host());
  if (!copies || copies->levels.size() != 1 || group.bits != 0) return std::nullopt;
  if (first_rank % span != 0 || rank_count % span != 0) return std::nullopt;
  const auto period = std::lcm<std::int64_t>(span, host);
  if (period + 2 * host > rank_count) return std::nullopt;  // the hosts at both ends may be parts
  return as_int(period);
}

}  // namespace orrery::costmodel

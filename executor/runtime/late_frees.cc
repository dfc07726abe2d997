#include "executor/runtime/late_frees.h"

#include <algorithm>
#include <utility>

#include "base/numbers.h"
#include "plan/program/memory.h"

namespace orrery::executor {

LateFrees::LateFrees(const plan::Program& program, const plan::RankClass& rank_class,
                     const StreamOrder& order)
    : order_(order), alive_(plan::memory_by_op(program, rank_class)) {
  for (const std::int64_t bytes : alive_) peak_ = std::max(peak_, bytes);
}

base::Result<void> LateFrees::admit(std::size_t op, Streams& streams) {
  const auto stream = as_index(order_.op(op).stream);
  for (Held& h : late_[stream]) {
    bytes_ += h.bytes;
    held_.push_back(std::move(h));
  }
  late_[stream].clear();
  last_[stream] = as_u32(op) + 1;
  give_back_what_ended(streams);
  while (alive_[op] + bytes_ > peak_) {
    const auto next = oldest();
    if (next == held_.end()) break;
    for (const std::uint32_t user : next->users) TRY_VOID(streams.await(user));
    bytes_ -= next->bytes;
    held_.erase(next);
  }
  return {};
}

void LateFrees::hold(std::size_t op, const StreamOrder::Free& free, at::Tensor tensor) {
  Held h{{free.users.begin(), free.users.end()}, free.bytes, std::move(tensor)};
  if (free.by_another) h.users.push_back(as_u32(op));
  if (plan::frees_late(order_.op(op))) {
    late_[as_index(order_.op(op).stream)].push_back(std::move(h));
    return;
  }
  if (h.users.empty()) return;
  bytes_ += h.bytes;
  held_.push_back(std::move(h));
}

void LateFrees::clear() {
  held_.clear();
  for (auto& late : late_) late.clear();
  last_ = {};
  bytes_ = 0;
}

/// A send or copy that nothing of its stream was issued behind.
bool LateFrees::under_way(std::uint32_t op) const {
  const plan::Op& of = order_.op(op);
  return plan::frees_late(of) && last_[as_index(of.stream)] == op + 1;
}

std::deque<LateFrees::Held>::iterator LateFrees::oldest() {
  return std::ranges::find_if(held_, [&](const Held& h) {
    return std::ranges::none_of(h.users, [&](std::uint32_t op) { return under_way(op); });
  });
}

void LateFrees::give_back_what_ended(Streams& streams) {
  const auto ended = [&](std::uint32_t op) { return streams.ended(op); };
  while (!held_.empty() && std::ranges::all_of(held_.front().users, ended)) {
    bytes_ -= held_.front().bytes;
    held_.pop_front();
  }
}

}  // namespace orrery::executor

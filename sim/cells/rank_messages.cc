#include "sim/cells/rank_messages.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/program/messages.h"
#include "sim/network/class_loads.h"

namespace orrery::sim {
void add_up(std::vector<costmodel::LinkLoad>& links) {
  std::ranges::sort(links, {}, &costmodel::LinkLoad::link);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < links.size();) {
    costmodel::LinkLoad sum{links[i].link, 0};
    for (; i < links.size() && links[i].link == sum.link; ++i) sum.flows += links[i].flows;
    links[kept++] = sum;
  }
  links.resize(kept);
}

RankMessages::RankMessages(const plan::Program& program, const costmodel::CostModel& cost,
                           const PreparedStep& step)
    : program_(program), cost_(cost) {
  for (const PreparedClass& k : step.classes) {
    for (const PricedOp& priced : k.ops) {
      if (priced.op == nullptr) continue;
      if (priced.kind == plan::OpKind::kCollective) add_collective(*k.rank_class, *priced.op);
      if (priced.kind != plan::OpKind::kExchange) continue;
      for (const plan::Leg& leg : priced.op->legs) {
        if (leg.send) add_exchange(*k.rank_class, *priced.op, leg);
      }
    }
  }
  for (Message& message : messages_) finish(message);
}

RankMessages::Kind RankMessages::kind_of(const plan::Op& op) const {
  const plan::Group& group = program_.groups[op.group];
  return {as_int(op.collective),
          group.size,
          group.stride,
          group.bits,
          cost_.wire_bytes(program_, op),
          as_int(op.stream),
          op.pieces > 1 ? 1 : 0,
          plan::states_messages(op) ? &op : nullptr};
}

RankMessages::Kind RankMessages::kind_of(const plan::Op& op, const plan::Leg& leg) const {
  return {-1,
          0,
          leg.peer_offset,
          0,
          program_.buffers[leg.buffer.buffer].bytes(),
          as_int(op.stream),
          as_int(&leg - op.legs.data()),
          nullptr};
}

/// The message of a group that begins with the lowest rank of it, made when first asked for.
Message& RankMessages::of_group(std::uint32_t kind, const plan::Group& group, int rank) {
  const auto fresh = as_u32(messages_.size());
  const std::uint32_t at =
      index_.try_emplace({kind, as_u32(group.base(rank))}, fresh).first->second;
  if (at == fresh) messages_.push_back({.kind = kind, .ranks = {}, .transfer = {}});
  return messages_[at];
}

/// One that states who sends to whom: each rank's part is what it sends.
void RankMessages::add_stated(const plan::RankClass& stage, const plan::Op& op) {
  const plan::Group& group = program_.groups[op.group];
  const std::uint32_t kind = number_of(kinds_, kind_of(op));
  const plan::Messages all = plan::messages_of(program_, op, stage);
  const auto transfer = [&](std::span<const plan::Message> sent) {
    return stated_transfer(program_, cost_, op, all, sent);
  };
  const costmodel::Transfer whole = transfer(all.all);
  for (int rank = stage.first_rank; rank < stage.first_rank + stage.count; ++rank) {
    Message& message = of_group(kind, group, rank);
    if (std::ranges::find(message.ranks, as_u32(rank)) != message.ranks.end()) continue;
    message.ranks.push_back(as_u32(rank));
    std::vector<plan::Message> sent;
    std::ranges::copy_if(all.all, std::back_inserter(sent),
                         [&](const plan::Message& m) { return m.from == rank; });
    if (!sent.empty() || all.all.empty()) add_part(message, transfer(sent), whole, false);
  }
}

void RankMessages::add_collective(const plan::RankClass& stage, const plan::Op& op) {
  if (plan::states_messages(op)) return add_stated(stage, op);
  const plan::Group& group = program_.groups[op.group];
  const std::uint32_t kind = number_of(kinds_, kind_of(op));
  const costmodel::CollectivePrices& prices = cost_.communication();
  const std::int64_t bytes = cost_.wire_bytes(program_, op);
  const auto loads = [&](costmodel::Pattern pattern, int first, int count) {
    return prices.paths().loads(pattern, group, first, count, costmodel::Senders::kOfClass);
  };
  const costmodel::Pattern usual = costmodel::CollectivePrices::usual_pattern(op.collective);
  const costmodel::RunsAs how = prices.runs_as(
      op.collective, group, bytes, loads(usual, stage.first_rank, stage.count), op.pieces > 1);
  const auto of_ranks = [&](int first, int count) {
    return prices.collective(op.collective, group, bytes, how, loads(how.pattern, first, count));
  };
  const costmodel::Transfer whole = of_ranks(stage.first_rank, stage.count);
  for (int rank = stage.first_rank; rank < stage.first_rank + stage.count; ++rank) {
    Message& message = of_group(kind, group, rank);
    const auto member = as_u32(rank);
    if (std::ranges::find(message.ranks, member) != message.ranks.end()) continue;
    message.ranks.push_back(member);
    add_part(message, of_ranks(rank, 1), whole, how.library);
  }
}

void RankMessages::add_exchange(const plan::RankClass& stage, const plan::Op& op,
                                const plan::Leg& leg) {
  const std::uint32_t kind = number_of(kinds_, kind_of(op, leg));
  const std::int64_t bytes = program_.buffers[leg.buffer.buffer].bytes();
  const costmodel::Transfer whole =
      cost_.exchange(stage.first_rank, stage.count, leg.peer_offset, bytes);
  for (int rank = stage.first_rank; rank < stage.first_rank + stage.count; ++rank) {
    const auto fresh = as_u32(messages_.size());
    if (!index_.try_emplace({kind, as_u32(rank)}, fresh).second) continue;
    messages_.push_back({.kind = kind, .exchange = true, .ranks = {as_u32(rank)}, .transfer = {}});
    if (leg.peer_offset != 0) messages_.back().ranks.push_back(as_u32(rank + leg.peer_offset));
    add_part(messages_.back(), cost_.exchange(rank, 1, leg.peer_offset, bytes), whole, false);
  }
}

/// Adds what one rank sends, in units of the stage: what flows of other operations leave is shared
/// by units. A link that the stage's measured rate exceeds carries no load of ours, and how long a
/// library's pipeline fills goes by the rate that all of the stage leave it
/// (costmodel/collectives/collectives.h).
void RankMessages::add_part(Message& message, const costmodel::Transfer& part,
                            const costmodel::Transfer& stage, bool library) {
  costmodel::Transfer& t = message.transfer;
  t.latency_ps = library ? stage.latency_ps : std::max(t.latency_ps, part.latency_ps);
  const std::int64_t finer = stage.units / part.units;
  t.wire_bytes = part.wire_bytes / finer;
  const std::int64_t cap = library ? stage.rate_cap : part.rate_cap / finer;
  if (cap > 0) t.rate_cap = t.rate_cap > 0 ? std::min(t.rate_cap, cap) : cap;
  for (const costmodel::LinkLoad& load : part.links) {
    if (std::ranges::binary_search(stage.links, load.link, {}, &costmodel::LinkLoad::link))
      t.links.push_back({load.link, load.flows * finer});
  }
}

/// Adds up the flows of each link, and finds the rate alone.
void RankMessages::finish(Message& message) {
  costmodel::Transfer& t = message.transfer;
  add_up(t.links);
  t.bytes_per_second = rate_alone(t.rate_cap, t.links, cost_.topology());
}

std::uint32_t RankMessages::collective(const plan::Op& op, std::uint32_t rank) const {
  const auto base = as_u32(program_.groups[op.group].base(as_int(rank)));
  return index_.at({kinds_.at(kind_of(op)), base});
}

std::uint32_t RankMessages::exchange(const plan::Op& op, std::size_t leg,
                                     std::uint32_t rank) const {
  return index_.at({kinds_.at(kind_of(op, op.legs[leg])), rank});
}

}  // namespace orrery::sim

#include "sim/cells/cell_step.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "sim/kernel/refinement.h"

namespace orrery::sim {
namespace {

std::vector<std::uint32_t> renumbered(std::vector<std::uint32_t> cells) {
  std::map<std::uint32_t, std::uint32_t> numbers;
  for (std::uint32_t& cell : cells) cell = number_of(numbers, cell);
  return cells;
}

std::size_t messages_of(std::span<const CellJob> jobs, std::size_t job) {
  std::size_t first = 0;
  for (std::size_t j = 0; j < job; ++j) first += jobs[j].messages.front().all().size();
  return first;
}

/// The graph of rank_cells.h. Elements: ranks of all jobs, messages of all jobs, links, background
/// flows.
class Partition {
 public:
  Partition(std::span<const CellJob> jobs, std::span<const CellEra> eras)
      : jobs_(jobs),
        eras_(eras),
        ranks_(first_rank(jobs, jobs.size())),
        messages_(messages_of(jobs, jobs.size())),
        links_(eras.front().topology->links().size()) {}

  Cells run() {
    kernel::Refinement refinement(colours());
    for (std::size_t j = 0; j < jobs_.size(); ++j) join_messages(j, refinement);
    for (std::uint32_t era = 0; era < eras_.size(); ++era) {
      for (std::size_t b = 0; b < eras_[era].background.size(); ++b) {
        for (const costmodel::LinkLoad& load : eras_[era].background[b].loads)
          refinement.add_edge(id(ranks_ + messages_ + links_ + b), link(load.link), era,
                              load.flows);
      }
    }
    const std::vector<std::uint32_t> cells = refinement.run();
    const auto messages = cells.begin() + static_cast<std::ptrdiff_t>(ranks_);
    return {std::vector<std::uint32_t>(cells.begin(), messages),
            renumbered(std::vector<std::uint32_t>(
                messages, messages + static_cast<std::ptrdiff_t>(messages_)))};
  }

 private:
  enum Kind : std::int64_t { kRank, kMessage, kLink, kBackground };
  static std::uint32_t id(std::size_t element) { return as_u32(element); }
  [[nodiscard]] std::uint32_t link(topologies::LinkId l) const {
    return id(ranks_ + messages_ + l.raw());
  }

  /// Ranks are distinguished by what they run and how fast; messages and links by what they are in
  /// every era.
  std::vector<std::uint32_t> colours() const {
    std::vector<std::uint32_t> colours;
    std::map<std::vector<std::int64_t>, std::uint32_t> numbers;
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      const auto job = static_cast<std::int64_t>(j);
      const CellJob& of = jobs_[j];
      std::map<const PreparedStep*, std::int64_t> kinds;
      for (std::size_t rank = 0; rank < of.compute_ppm.size(); ++rank) {
        const auto stage = static_cast<std::int64_t>(stage_of(*of.program, as_int(rank)));
        const PreparedStep* own = of.stages_of.empty() ? of.stages : of.stages_of[rank];
        const std::int64_t kind = kinds.try_emplace(own, std::ssize(kinds)).first->second;
        colours.push_back(number_of(numbers, {kRank, job, stage, kind, of.compute_ppm[rank]}));
      }
    }
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      for (std::size_t m = 0; m < jobs_[j].messages.front().all().size(); ++m) {
        std::vector<std::int64_t> key = {kMessage, static_cast<std::int64_t>(j),
                                         jobs_[j].messages.front().all()[m].kind};
        for (const RankMessages& era : jobs_[j].messages) {
          const costmodel::Transfer& t = era.all()[m].transfer;
          key.insert(key.end(), {t.latency_ps, t.wire_bytes, t.bytes_per_second});
        }
        colours.push_back(number_of(numbers, key));
      }
    }
    for (std::uint32_t l = 0; l < links_; ++l) {
      std::vector<std::int64_t> key = {kLink};
      for (const CellEra& era : eras_)
        key.push_back(era.topology->link(topologies::LinkId(l)).bytes_per_second);
      colours.push_back(number_of(numbers, key));
    }
    for (std::size_t b = 0; b < eras_.front().background.size(); ++b)
      colours.push_back(number_of(numbers, {kBackground, static_cast<std::int64_t>(b)}));
    return colours;
  }

  void join_messages(std::size_t j, kernel::Refinement& refinement) const {
    const std::size_t first = first_rank(jobs_, j), first_message = ranks_ + messages_of(jobs_, j);
    for (std::uint32_t era = 0; era < eras_.size(); ++era) {
      const std::vector<Message>& messages = jobs_[j].messages[era].all();
      for (std::size_t i = 0; i < messages.size(); ++i) {
        const std::uint32_t message = id(first_message + i);
        for (std::uint32_t k = 0; era == 0 && k < messages[i].ranks.size(); ++k) {
          const std::uint32_t role = messages[i].exchange ? k : 0,
                              rank = id(first + messages[i].ranks[k]);
          refinement.add_edge(rank, message, role, 1);
          refinement.add_edge(message, rank, role, 1);
        }
        for (const costmodel::LinkLoad& load : messages[i].transfer.links) {
          refinement.add_edge(link(load.link), message, era, load.flows);
          refinement.add_edge(message, link(load.link), era, load.flows);
        }
      }
    }
  }

  std::span<const CellJob> jobs_;
  std::span<const CellEra> eras_;
  std::size_t ranks_, messages_, links_;
};

/// What a cell of messages loads together, [cell].
std::vector<costmodel::Transfer> joined(std::span<const CellJob> jobs, std::size_t era,
                                        const topologies::Topology& topology,
                                        const std::vector<std::uint32_t>& cell_of_message) {
  std::vector<costmodel::Transfer> cells;
  std::size_t m = 0;
  for (const CellJob& job : jobs) {
    for (const Message& message : job.messages[era].all()) {
      const std::uint32_t cell = cell_of_message[m++];
      if (cell == cells.size()) {
        cells.push_back(message.transfer);
        cells.back().links.clear();
      }
      cells[cell].links.insert(cells[cell].links.end(), message.transfer.links.begin(),
                               message.transfer.links.end());
    }
  }
  for (costmodel::Transfer& t : cells) {
    add_up(t.links);
    t.bytes_per_second = rate_alone(t.bytes_per_second, t.links, topology);
  }
  return cells;
}

/// Builds the step of the cells from those of the stages.
class CellStep {
 public:
  CellStep(std::span<const CellJob> jobs, std::span<const CellEra> eras, const Cells& cells,
           FlowNetwork& network)
      : jobs_(jobs), eras_(eras), cells_(cells), network_(network) {}

  BuiltCells make() {
    for (std::size_t e = 0; e < eras_.size(); ++e)
      joined_.push_back(joined(jobs_, e, *eras_[e].topology, cells_.of_message));
    transfers_.assign(joined_.front().size(), kNone);
    crossings_.assign(joined_.front().size(), kNone);
    for (job_ = 0; job_ < jobs_.size(); ++job_) {
      first_rank_ = first_rank(jobs_, job_);
      first_message_ = messages_of(jobs_, job_);
      built_.first_class.push_back(as_u32(built_.step.classes.size()));
      const auto world = as_u32(jobs_[job_].program->world_size);
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        if (cell_of(rank) == built_.step.classes.size()) add_cell(rank);
      }
    }
    for (const BackgroundFlow& flow : eras_.front().background) network_.add_background(flow);
    add_eras();
    network_.freeze();
    built_.transfer_job.resize(network_.transfers(), as_u32(jobs_.size()));
    return std::move(built_);
  }

 private:
  [[nodiscard]] std::uint32_t cell_of(std::size_t rank) const {
    return cells_.of_rank[first_rank_ + rank];
  }
  [[nodiscard]] const RankMessages& messages() const { return jobs_[job_].messages.front(); }
  [[nodiscard]] std::uint32_t cell_of_message(std::uint32_t message) const {
    return cells_.of_message[first_message_ + message];
  }

  void add_cell(std::uint32_t rank) {
    const CellJob& job = jobs_[job_];
    const PreparedStep& stages = job.stages_of.empty() ? *job.stages : *job.stages_of[rank];
    built_.step.classes.push_back(stages.classes[stage_of(*job.program, as_int(rank))]);
    for (PricedOp& p : built_.step.classes.back().ops) {
      if (p.op == nullptr) continue;
      switch (p.kind) {
        case plan::OpKind::kCompute:
          p.compute_ps = kernel::scaled_ps(p.compute_ps, job.compute_ppm[rank]);
          p.host_wait_ps = kernel::scaled_ps(p.host_wait_ps, job.compute_ppm[rank]);
          break;
        case plan::OpKind::kCollective: resolve_collective(rank, p); break;
        case plan::OpKind::kExchange: resolve_exchange(rank, p); break;
        case plan::OpKind::kCopy: break;
      }
    }
  }

  void resolve_collective(std::uint32_t rank, PricedOp& p) {
    const std::uint32_t m = messages().collective(*p.op, rank);
    std::set<std::uint32_t> members;
    for (const std::uint32_t r : messages().all()[m].ranks) members.insert(cell_of(r));
    const std::uint32_t cell = cell_of_message(m);
    p.transfer = p.crossing = kNone;
    const std::uint32_t transfer = transfer_of(cell, *members.begin(), p.stream, 0);
    if (members.size() == 1) {
      p.transfer = transfer;
      return;
    }
    if (crossings_[cell] == kNone) {
      crossings_[cell] = as_u32(built_.step.crossings.size());
      built_.step.crossings.push_back({.classes = {members.begin(), members.end()},
                                       .group = jobs_[job_].program->groups[p.op->group],
                                       .collective = p.op->collective,
                                       .bytes = p.op->bytes,
                                       .stream = p.stream,
                                       .in_pieces = p.op->pieces > 1,
                                       .transfer = transfer});
    }
    p.crossing = crossings_[cell];
  }

  void resolve_exchange(std::uint32_t rank, PricedOp& p) {
    const PreparedStep& stages = *jobs_[job_].stages;
    const std::uint32_t first = p.first_leg, cell = cell_of(rank);
    p.first_leg = as_u32(built_.step.legs.size());
    for (std::uint32_t i = 0; i < p.legs; ++i) {
      const plan::Leg& leg = p.op->legs[i];
      Channel channel = stages.channels[stages.legs[first + i].channel];
      const std::uint32_t peer = cell_of(as_u32(as_int(rank) + leg.peer_offset));
      channel.sender = leg.send ? cell : peer;
      channel.receiver = leg.send ? peer : cell;
      PricedLeg priced{.send = leg.send,
                       .channel = number_of(channels_, {channel.sender, channel.receiver,
                                                        channel.sending_end, channel.offset})};
      if (priced.channel == built_.step.channels.size()) built_.step.channels.push_back(channel);
      if (leg.send)
        priced.transfer =
            transfer_of(cell_of_message(messages().exchange(*p.op, i, rank)), cell, p.stream, i);
      built_.step.legs.push_back(priced);
    }
  }

  std::uint32_t transfer_of(std::uint32_t message_cell, std::uint32_t cell, std::uint8_t stream,
                            std::uint32_t leg) {
    if (transfers_[message_cell] == kNone) {
      transfers_[message_cell] =
          network_.add(joined_.front()[message_cell], lane_of(cell, stream, leg));
      built_.transfer_job.push_back(as_u32(job_));
      added_.push_back(message_cell);
    }
    return transfers_[message_cell];
  }

  void add_eras() {
    for (std::size_t e = 1; e < eras_.size(); ++e) {
      std::vector<costmodel::Transfer> transfers;
      for (const std::uint32_t message_cell : added_) transfers.push_back(joined_[e][message_cell]);
      network_.change(eras_[e].from_ps, *eras_[e].topology, std::move(transfers),
                      eras_[e].background);
    }
  }

  std::span<const CellJob> jobs_;
  std::span<const CellEra> eras_;
  const Cells& cells_;
  FlowNetwork& network_;
  std::size_t job_ = 0, first_rank_ = 0, first_message_ = 0;
  BuiltCells built_;
  std::vector<std::vector<costmodel::Transfer>> joined_;  // [era][message cell]
  std::vector<std::uint32_t> transfers_, crossings_;      // [message cell]
  std::vector<std::uint32_t> added_;                      // [transfer] message cell
  std::map<std::tuple<std::uint32_t, std::uint32_t, plan::Stream, int>, std::uint32_t> channels_;
};

}  // namespace

std::size_t first_rank(std::span<const CellJob> jobs, std::size_t job) {
  std::size_t first = 0;
  for (std::size_t j = 0; j < job; ++j) first += as_index(jobs[j].program->world_size);
  return first;
}

std::size_t stage_of(const plan::Program& program, int rank) {
  for (std::size_t c = 0; c < program.classes.size(); ++c) {
    const plan::RankClass& k = program.classes[c];
    if (rank >= k.first_rank && rank < k.first_rank + k.count) return c;
  }
  ORRERY_CHECK(false, "rank {} is in no stage", rank);
}

Cells each_alone(std::span<const CellJob> jobs) {
  Cells cells{std::vector<std::uint32_t>(first_rank(jobs, jobs.size())),
              std::vector<std::uint32_t>(messages_of(jobs, jobs.size()))};
  std::iota(cells.of_rank.begin(), cells.of_rank.end(), 0);
  std::iota(cells.of_message.begin(), cells.of_message.end(), 0);
  return cells;
}

Cells equitable(std::span<const CellJob> jobs, std::span<const CellEra> eras) {
  return Partition(jobs, eras).run();
}

BuiltCells build_cells(std::span<const CellJob> jobs, std::span<const CellEra> eras,
                       const Cells& cells, FlowNetwork& network) {
  return CellStep(jobs, eras, cells, network).make();
}

}  // namespace orrery::sim

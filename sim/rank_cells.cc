#include "sim/rank_cells.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/fingerprint.h"
#include "sim/kernel/refinement.h"
#include "sim/picture.h"
#include "sim/rank_messages.h"
#include "sim/step_report.h"

namespace orrery::sim {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

template <typename Key>
std::uint32_t number_of(std::map<Key, std::uint32_t>& numbers, const Key& key) {
  return numbers.try_emplace(key, static_cast<std::uint32_t>(numbers.size())).first->second;
}

/// Cells of ranks and of messages, each numbered from 0 by its first element.
struct Cells {
  std::vector<std::uint32_t> of_rank, of_message;
};

Cells each_alone(std::size_t ranks, std::size_t messages) {
  Cells cells{std::vector<std::uint32_t>(ranks), std::vector<std::uint32_t>(messages)};
  std::iota(cells.of_rank.begin(), cells.of_rank.end(), 0);
  std::iota(cells.of_message.begin(), cells.of_message.end(), 0);
  return cells;
}

std::vector<std::uint32_t> renumbered(std::vector<std::uint32_t> cells) {
  std::map<std::uint32_t, std::uint32_t> numbers;
  for (std::uint32_t& cell : cells) cell = number_of(numbers, cell);
  return cells;
}

/// Elements: ranks, messages, links, background flows.
Cells equitable(const std::vector<std::uint32_t>& rank_colours, const std::vector<Message>& messages, const std::vector<BackgroundFlow>& background,
                const topologies::Topology& topology) {
  std::vector<std::uint32_t> colours;
  std::map<std::tuple<int, std::int64_t, std::int64_t, std::int64_t, std::int64_t>, std::uint32_t> numbers;
  for (const std::uint32_t c : rank_colours) colours.push_back(number_of(numbers, {0, c, 0, 0, 0}));
  for (const Message& m : messages) {
    const costmodel::Transfer& t = m.transfer;
    colours.push_back(number_of(numbers, {1, m.kind, t.latency_ps, t.wire_bytes, t.bytes_per_second}));
  }
  for (const topologies::Link& link : topology.links()) colours.push_back(number_of(numbers, {2, link.bytes_per_second, 0, 0, 0}));
  for (std::uint32_t b = 0; b < background.size(); ++b) colours.push_back(number_of(numbers, {3, b, 0, 0, 0}));
  kernel::Refinement refinement(std::move(colours));
  const auto ranks = static_cast<std::uint32_t>(rank_colours.size()), count = static_cast<std::uint32_t>(messages.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t message = ranks + i;
    for (std::uint32_t k = 0; k < messages[i].ranks.size(); ++k) {
      const std::uint32_t role = messages[i].exchange ? k : 0;
      refinement.add_edge(messages[i].ranks[k], message, role, 1);
      refinement.add_edge(message, messages[i].ranks[k], role, 1);
    }
    for (const costmodel::LinkLoad& load : messages[i].transfer.links) {
      refinement.add_edge(ranks + count + load.link.raw(), message, 0, load.flows);
      refinement.add_edge(message, ranks + count + load.link.raw(), 0, load.flows);
    }
  }
  const std::uint32_t first_background = ranks + count + static_cast<std::uint32_t>(topology.links().size());
  for (std::uint32_t b = 0; b < background.size(); ++b) {
    for (const costmodel::LinkLoad& load : background[b].loads) refinement.add_edge(first_background + b, ranks + count + load.link.raw(), 0, load.flows);
  }
  const std::vector<std::uint32_t> cells = refinement.run();
  return {std::vector<std::uint32_t>(cells.begin(), cells.begin() + ranks),
          renumbered(std::vector<std::uint32_t>(cells.begin() + ranks, cells.begin() + ranks + count))};
}

std::size_t stage_of(const plan::Program& program, int rank) {
  for (std::size_t c = 0; c < program.classes.size(); ++c) {
    const plan::RankClass& k = program.classes[c];
    if (rank >= k.first_rank && rank < k.first_rank + k.count) return c;
  }
  ORRERY_CHECK(false, "rank {} is in no stage", rank);
}

/// Builds the step of the cells from that of the stages.
class CellStep {
 public:
  CellStep(const plan::Program& program, const topologies::Topology& topology, const PreparedStep& stages, const RankMessages& messages,
           const Cells& cells, const RankOptions& options, FlowNetwork& network)
      : program_(program), topology_(topology), stages_(stages), messages_(messages), cells_(cells), compute_ppm_(options.compute_ppm),
        background_(options.background), network_(network) {}

  PreparedStep make() {
    join_messages();
    for (std::uint32_t rank = 0; rank < cells_.of_rank.size(); ++rank) {
      if (cells_.of_rank[rank] == step_.classes.size()) add_cell(rank);
    }
    for (Crossing& x : step_.crossings) ORRERY_CHECK(x.transfer != kNone);
    for (const BackgroundFlow& flow : background_) network_.add_background(flow);
    network_.freeze();
    return std::move(step_);
  }

 private:
  static constexpr std::uint32_t kLegLanes = 64;

  /// What a cell of messages loads together.
  void join_messages() {
    for (std::uint32_t m = 0; m < cells_.of_message.size(); ++m) {
      const costmodel::Transfer& one = messages_.all()[m].transfer;
      if (cells_.of_message[m] == joined_.size()) {
        joined_.push_back(one);
        joined_.back().links.clear();
      }
      auto& links = joined_[cells_.of_message[m]].links;
      links.insert(links.end(), one.links.begin(), one.links.end());
    }
    for (costmodel::Transfer& t : joined_) {
      std::sort(t.links.begin(), t.links.end(), [](const auto& a, const auto& b) { return a.link < b.link; });
      std::size_t kept = 0;
      for (std::size_t i = 0; i < t.links.size();) {
        costmodel::LinkLoad sum{t.links[i].link, 0};
        for (; i < t.links.size() && t.links[i].link == sum.link; ++i) sum.flows += t.links[i].flows;
        t.links[kept++] = sum;
        const std::int64_t share = topology_.link(sum.link).bytes_per_second / sum.flows;
        t.bytes_per_second = std::min(t.bytes_per_second, std::max<std::int64_t>(share, 1));
      }
      t.links.resize(kept);
    }
    transfers_.assign(joined_.size(), kNone);
    crossings_.assign(joined_.size(), kNone);
  }

  void add_cell(std::uint32_t rank) {
    step_.classes.push_back(stages_.classes[stage_of(program_, static_cast<int>(rank))]);
    for (PricedOp& p : step_.classes.back().ops) {
      if (p.op == nullptr) continue;
      switch (p.kind) {
        case plan::OpKind::kCompute: p.compute_ps = kernel::scaled_ps(p.compute_ps, compute_ppm_[rank]); break;
        case plan::OpKind::kCollective: resolve_collective(rank, p); break;
        case plan::OpKind::kExchange: resolve_exchange(rank, p); break;
      }
    }
  }

  void resolve_collective(std::uint32_t rank, PricedOp& p) {
    const std::uint32_t m = messages_.collective(*p.op, rank);
    std::vector<std::uint32_t> members;
    for (const std::uint32_t r : messages_.all()[m].ranks) members.push_back(cells_.of_rank[r]);
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
    const std::uint32_t joined = cells_.of_message[m];
    p.transfer = p.crossing = kNone;
    const std::uint32_t transfer = transfer_of(joined, members.front(), p.stream, 0);
    if (members.size() == 1) {
      p.transfer = transfer;
      return;
    }
    if (crossings_[joined] == kNone) {
      crossings_[joined] = static_cast<std::uint32_t>(step_.crossings.size());
      step_.crossings.push_back({std::move(members), program_.groups[p.op->group], p.op->collective, p.op->bytes, p.stream, transfer});
    }
    p.crossing = crossings_[joined];
  }

  void resolve_exchange(std::uint32_t rank, PricedOp& p) {
    const std::uint32_t first = p.first_leg, cell = cells_.of_rank[rank];
    p.first_leg = static_cast<std::uint32_t>(step_.legs.size());
    for (std::uint32_t i = 0; i < p.legs; ++i) {
      const plan::Leg& leg = p.op->legs[i];
      Channel channel = stages_.channels[stages_.legs[first + i].channel];
      const std::uint32_t peer = cells_.of_rank[static_cast<std::size_t>(static_cast<int>(rank) + leg.peer_offset)];
      channel.sender = leg.send ? cell : peer;
      channel.receiver = leg.send ? peer : cell;
      PricedLeg priced{.send = leg.send, .channel = number_of(channels_, {channel.sender, channel.receiver, channel.pair, channel.offset})};
      if (priced.channel == step_.channels.size()) step_.channels.push_back(channel);
      if (leg.send) priced.transfer = transfer_of(cells_.of_message[messages_.exchange(*p.op, i, rank)], cell, p.stream, i);
      step_.legs.push_back(priced);
    }
  }

  /// Two transfers of one lane never run at once: a cell's stream runs one operation at a time.
  std::uint32_t transfer_of(std::uint32_t joined, std::uint32_t cell, std::uint8_t stream, std::uint32_t leg) {
    if (transfers_[joined] == kNone) transfers_[joined] = network_.add(joined_[joined], (cell * plan::kStreams + stream) * kLegLanes + leg);
    return transfers_[joined];
  }

  const plan::Program& program_;
  const topologies::Topology& topology_;
  const PreparedStep& stages_;
  const RankMessages& messages_;
  const Cells& cells_;
  const std::vector<std::int64_t>& compute_ppm_;
  const std::vector<BackgroundFlow>& background_;
  FlowNetwork& network_;
  PreparedStep step_;
  std::vector<costmodel::Transfer> joined_;               // [message cell]
  std::vector<std::uint32_t> transfers_, crossings_;      // [message cell]
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint8_t, int>, std::uint32_t> channels_;
};

std::string fingerprint_of(const plan::Program& program, const RankOutcome& outcome) {
  base::Fingerprint f;
  f.add(program.fingerprint());
  for (std::size_t rank = 0; rank < outcome.cell_of_rank.size(); ++rank) {
    const ClassOutcome& out = outcome.of(rank);
    for (std::size_t i = 0; i < out.start_ps.size(); ++i) f.add(out.start_ps[i]).add(out.end_ps[i]);
  }
  return f.hex();
}

/// Ranks told apart by what they run and how fast.
std::vector<std::uint32_t> colours_of(const plan::Program& program, const std::vector<std::int64_t>& compute_ppm) {
  std::vector<std::uint32_t> colours(compute_ppm.size());
  std::map<std::pair<std::size_t, std::int64_t>, std::uint32_t> numbers;
  for (std::size_t c = 0; c < program.classes.size(); ++c) {
    const plan::RankClass& k = program.classes[c];
    for (int r = k.first_rank; r < k.first_rank + k.count; ++r) {
      const auto rank = static_cast<std::size_t>(r);
      colours[rank] = number_of(numbers, {c, compute_ppm[rank]});
    }
  }
  return colours;
}

base::Result<void> check_speeds(const std::vector<std::int64_t>& compute_ppm, std::size_t world) {
  if (compute_ppm.size() != world) return base::fail(base::ErrorCode::kOutOfRange, "{} speeds for {} ranks", compute_ppm.size(), world);
  for (const std::int64_t ppm : compute_ppm) {
    if (ppm < 1) return base::fail(base::ErrorCode::kOutOfRange, "a computation of {} millionths of its time", ppm);
  }
  return {};
}

/// [cell] its first rank.
std::vector<std::uint32_t> first_ranks(const std::vector<std::uint32_t>& cell_of_rank) {
  std::vector<std::uint32_t> first;
  for (std::uint32_t rank = 0; rank < cell_of_rank.size(); ++rank) {
    if (cell_of_rank[rank] == first.size()) first.push_back(rank);
  }
  return first;
}

base::Result<void> check_size(const plan::Program& program, const PreparedStep& stages, const std::vector<std::uint32_t>& cell_of_rank) {
  std::int64_t operations = 0;
  const std::vector<std::uint32_t> first = first_ranks(cell_of_rank);
  for (const std::uint32_t rank : first) operations += stages.classes[stage_of(program, static_cast<int>(rank))].op_count();
  if (operations <= RankStep::kMaxOperations) return {};
  base::Diagnostic d = base::make_error(base::ErrorCode::kUnsupported, "{} ranks that differ, {} operations", first.size(), operations);
  d.hint = fmt::format("at most {} are simulated: fewer ranks, larger micro-batches, or no jitter, which tells all ranks apart", RankStep::kMaxOperations);
  return base::fail(std::move(d));
}

}  // namespace

struct RankStep::Ready {
  const plan::Program& program;
  const costmodel::CostModel& cost;
  std::int64_t slowdown_ppm;
  bool fold;
  kernel::EventQueue no_queue;  // of the network that is copied
  FlowNetwork network;
  std::vector<std::uint32_t> cell_of_rank;
  PreparedStep step;

  Ready(const plan::Program& p, const costmodel::CostModel& c, bool folded)
      : program(p), cost(c), slowdown_ppm(std::max<std::int64_t>(c.overlap_slowdown_ppm(), kMillion)), fold(folded),
        network(c.topology(), slowdown_ppm, no_queue, Interpreter::kFlowEvent) {}
  void add_report(const FlowNetwork& ran, const SimOptions& options, RankOutcome& outcome) const;
};

RankStep::RankStep(std::unique_ptr<const Ready> ready) : ready_(std::move(ready)) {}
RankStep::RankStep(RankStep&&) noexcept = default;
RankStep::~RankStep() = default;

base::Result<RankStep> RankStep::make(const plan::Program& program, const costmodel::CostModel& cost, const RankOptions& given) {
  const auto world = static_cast<std::size_t>(program.world_size);
  TRY_VOID(check_fits(program, cost));
  RankOptions options = given;
  if (options.compute_ppm.empty()) options.compute_ppm.assign(world, kMillion);
  TRY_VOID(check_speeds(options.compute_ppm, world));
  auto ready = std::make_unique<Ready>(program, cost, options.fold);
  kernel::EventQueue queue;
  FlowNetwork stage_network(cost.topology(), ready->slowdown_ppm, queue, Interpreter::kFlowEvent);
  TRY(const PreparedStep stages, prepare(program, cost, stage_network));

  const RankMessages messages(program, cost, stages);
  const Cells cells = options.fold ? equitable(colours_of(program, options.compute_ppm), messages.all(), options.background, cost.topology())
                                   : each_alone(world, messages.all().size());
  TRY_VOID(check_size(program, stages, cells.of_rank));
  ready->step = CellStep(program, cost.topology(), stages, messages, cells, options, ready->network).make();
  ready->cell_of_rank = cells.of_rank;
  return RankStep(std::move(ready));
}

/// A stage is shown by the cell that computes longest, of equal ones the first.
void RankStep::Ready::add_report(const FlowNetwork& ran, const SimOptions& options, RankOutcome& outcome) const {
  FinishedStep finished{step, ran, outcome.cells, {}, {}, std::vector<std::int64_t>(step.classes.size(), 0)};
  for (const std::uint32_t cell : cell_of_rank) ++finished.ranks_alike[cell];
  for (const plan::RankClass& k : program.classes) {
    int busiest = k.first_rank;
    const auto busy = [&](int rank) { return outcome.of(static_cast<std::size_t>(rank)).busy_compute_ps; };
    for (int rank = k.first_rank; rank < k.first_rank + k.count; ++rank) busiest = busy(rank) > busy(busiest) ? rank : busiest;
    finished.shown.push_back(cell_of_rank[static_cast<std::size_t>(busiest)]);
    finished.rank.push_back(busiest);
  }
  outcome.report = step_report(program, cost, finished, options);
  outcome.report.fingerprint = outcome.fingerprint;
  outcome.shown = finished.rank;
}

base::Result<RankOutcome> RankStep::run(const Jitter& jitter, const std::optional<SimOptions>& report) const {
  const Ready& r = *ready_;
  ORRERY_CHECK(jitter.sigma_ppm == 0 || !r.fold, "jitter of folded ranks");
  kernel::EventQueue queue;
  FlowNetwork network(r.network, queue);
  Interpreter interpreter(r.step, network, queue, {.overlaps = r.cost.overlaps(), .slowdown_ppm = r.slowdown_ppm, .memory_samples = report && report->timeline,
                                                   .jitter = jitter, .rank = first_ranks(r.cell_of_rank)});
  RankOutcome outcome;
  TRY(outcome.cells, interpreter.run());
  outcome.step_ps = outcome.cells.step_ps;
  outcome.cell_of_rank = r.cell_of_rank;
  outcome.fingerprint = fingerprint_of(r.program, outcome);
  outcome.links = link_bytes(outcome.cells, network);
  if (report) r.add_report(network, *report, outcome);
  return outcome;
}

base::Result<RankOutcome> simulate_ranks(const plan::Program& program, const costmodel::CostModel& cost, const RankOptions& options) {
  TRY(const RankStep step, RankStep::make(program, cost, options));
  return step.run();
}

}  // namespace orrery::sim

#include "sim/network/flow_network.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "base/sim_time.h"

namespace orrery::sim {
namespace {

constexpr std::uint32_t kLastLane = ~std::uint32_t{0};  // background counts down from here

// (transfer, flows), ascending
using Signature = std::vector<std::pair<std::uint32_t, std::int64_t>>;

}  // namespace

std::int64_t rate_alone(std::int64_t cap, std::span<const costmodel::LinkLoad> links,
                        const topologies::Topology& topology) {
  std::int64_t rate = cap > 0 ? cap : std::numeric_limits<std::int64_t>::max();
  for (const costmodel::LinkLoad& load : links)
    rate = std::min(rate, topology.link(load.link).bytes_per_second / load.flows);
  return std::max<std::int64_t>(rate, 1);
}

FlowNetwork::FlowNetwork(const topologies::Topology& topology, std::int64_t slowdown_ppm,
                         kernel::EventQueue& queue, std::uint32_t event_kind)
    : slowdown_ppm_(slowdown_ppm), queue_(&queue), event_kind_(event_kind) {
  ORRERY_CHECK(slowdown_ppm >= kMillion, "slowdown {} ppm", slowdown_ppm);
  eras_.push_back({.topology = &topology, .transfers = {}});
}

FlowNetwork::TransferIndex FlowNetwork::add(costmodel::Transfer transfer, std::uint32_t lane) {
  ORRERY_CHECK(transfer.wire_bytes == 0 || transfer.bytes_per_second > 0, "{} bytes at no rate",
               transfer.wire_bytes);
  eras_.front().transfers.push_back(std::move(transfer));
  registered_.push_back({.lane = lane});
  return static_cast<TransferIndex>(registered_.size() - 1);
}

FlowNetwork::FlowNetwork(const FlowNetwork& frozen, kernel::EventQueue& queue)
    : FlowNetwork(frozen) {
  ORRERY_CHECK(flows_.empty(), "a network that has run");
  queue_ = &queue;
  schedule_next_era();
}

costmodel::Transfer FlowNetwork::endless_transfer(const BackgroundFlow& flow,
                                                  const topologies::Topology& topology) {
  ORRERY_CHECK(flow.bytes_per_second > 0 && !flow.loads.empty(),
               "{} bytes/s in the background over {} links", flow.bytes_per_second,
               flow.loads.size());
  return {.wire_bytes = 1,
          .bytes_per_second = rate_alone(flow.bytes_per_second, flow.loads, topology),
          .links = flow.loads};
}

void FlowNetwork::add_background(const BackgroundFlow& flow) {
  const auto index = as_u32(endless_.size());
  const TransferIndex transfer =
      add(endless_transfer(flow, *eras_.front().topology), kLastLane - index);
  registered_[transfer].endless = true;
  registered_[transfer].flow = index;
  endless_.push_back({transfer, eras_.front().transfers[transfer].bytes_per_second, 0});
}

void FlowNetwork::change(std::int64_t at_ps, const topologies::Topology& topology,
                         std::vector<costmodel::Transfer> transfers,
                         const std::vector<BackgroundFlow>& background) {
  ORRERY_CHECK(at_ps > eras_.back().from_ps && background.size() == endless_.size(),
               "a change at {} ps of {} background flows", at_ps, background.size());
  for (const BackgroundFlow& flow : background)
    transfers.push_back(endless_transfer(flow, topology));
  const std::vector<costmodel::Transfer>& before = eras_.back().transfers;
  ORRERY_CHECK(transfers.size() == before.size(), "{} transfers become {}", before.size(),
               transfers.size());
  for (std::size_t t = 0; t < before.size(); ++t)
    ORRERY_CHECK(transfers[t].wire_bytes == before[t].wire_bytes, "transfer {} changes its bytes",
                 t);
  eras_.push_back({.from_ps = at_ps, .topology = &topology, .transfers = std::move(transfers)});
}

std::vector<FlowNetwork::Load> FlowNetwork::loads_by_link(const Era& era) {
  const std::size_t all_links = era.topology->links().size();
  const auto each = [&](auto&& visit) {
    for (std::uint32_t t = 0; t < era.transfers.size(); ++t) {
      if (era.transfers[t].wire_bytes == 0) continue;
      for (const auto& l : era.transfers[t].links) visit(Load{l.link.raw(), t, l.flows});
    }
  };
  std::size_t count = 0;
  each([&](const Load&) { ++count; });
  if (count < all_links) {
    std::vector<Load> loads;
    loads.reserve(count);
    each([&](const Load& l) { loads.push_back(l); });
    std::ranges::sort(loads);
    return loads;
  }
  std::vector<std::uint32_t> begin(all_links + 1, 0);
  each([&](const Load& l) { ++begin[l.link + 1]; });
  for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<Load> loads(begin.back());
  each([&](const Load& l) { loads[begin[l.link]++] = l; });
  return loads;
}

void FlowNetwork::freeze() {
  foresees_ = eras_.size() == 1;
  uses_.resize(registered_.size());
  alone_.resize(registered_.size());
  for (Era& era : eras_) freeze(era);
  foreseen_.resize(era().constraints, kNoFlow);
  shares_changed_ = !endless_.empty();
  schedule_next_era();
}

void FlowNetwork::freeze(Era& era) {
  const std::vector<Load> loads = loads_by_link(era);
  std::map<Signature, std::int64_t> folded;  // smallest capacity of the links loaded alike
  for (std::size_t i = 0; i < loads.size();) {
    Signature signature;
    bool shared = false;
    std::size_t end = i;
    for (; end < loads.size() && loads[end].link == loads[i].link; ++end) {
      shared =
          shared || registered_[loads[end].transfer].lane != registered_[loads[i].transfer].lane;
      signature.emplace_back(loads[end].transfer, loads[end].flows);
    }
    if (shared) {
      const std::int64_t capacity =
          era.topology->link(topologies::LinkId(loads[i].link)).bytes_per_second;
      const auto [at, fresh] = folded.try_emplace(std::move(signature), capacity);
      if (!fresh) at->second = std::min(at->second, capacity);
    }
    i = end;
  }
  std::vector<std::vector<kernel::Consumption>> uses(era.transfers.size());
  for (const auto& [signature, capacity] : folded) {
    const kernel::ConstraintId constraint = era.shares.add_constraint(capacity);
    for (const auto& [transfer, flows] : signature) uses[transfer].push_back({constraint, flows});
  }
  era.variables.resize(era.transfers.size());
  era.sent.resize(era.transfers.size(), 0);
  for (std::uint32_t t = 0; t < era.transfers.size(); ++t) {
    if (uses[t].empty()) continue;
    if (foresees_)
      for (const kernel::Consumption& use : uses[t]) uses_[t].push_back(use.constraint.raw());
    era.variables[t] = era.shares.add_variable(era.transfers[t].bytes_per_second, uses[t]);
    era.by_variable.push_back(t);
  }
  era.constraints = folded.size();
  for (const Endless& e : endless_)
    if (era.variables[e.transfer].valid()) era.shares.activate(era.variables[e.transfer]);
}

void FlowNetwork::schedule_next_era() {
  if (era_ + 1 < eras_.size())
    queue_->push(base::SimTime::from_ps(eras_[era_ + 1].from_ps), kernel::Phase::kRelease,
                 event_kind_, kNextEra);
}

void FlowNetwork::enter_next_era(std::int64_t now_ps) {
  Era& before = era();
  Era& after = eras_[++era_];
  for (Endless& e : endless_) {
    before.sent[e.transfer] += slowdown_ppm_ * e.rate * (now_ps - e.since_ps);
    e.since_ps = now_ps;
    e.rate = after.variables[e.transfer].valid() ? 0 : after.transfers[e.transfer].bytes_per_second;
  }
  for (FlowIndex flow = 0; flow < flows_.size(); ++flow) {
    Flow& f = flows_[flow];
    if (f.leg != Leg::kWire) continue;
    const kernel::Int128 left = f.progress.remaining(now_ps);
    before.sent[f.transfer] += f.left - left;
    f.left = left;
    if (after.variables[f.transfer].valid()) after.shares.activate(after.variables[f.transfer]);
    mark(flow);
  }
  shares_changed_ = true;
  schedule_next_era();
}

void FlowNetwork::mark(FlowIndex flow) {
  if (flows_[flow].dirty) return;
  flows_[flow].dirty = true;
  dirty_.push_back(flow);
}

FlowNetwork::FlowIndex FlowNetwork::start(std::int64_t now_ps, TransferIndex transfer) {
  Registered& r = registered_[transfer];
  ORRERY_CHECK(!r.running, "transfer {} runs already", transfer);
  if (free_.empty()) {
    flows_.emplace_back();
    free_.push_back(static_cast<FlowIndex>(flows_.size() - 1));
  }
  const FlowIndex flow = free_.back();
  free_.pop_back();
  r.running = true;
  r.flow = flow;
  Flow& f = flows_[flow];
  f.transfer = transfer;
  f.slowed = f.beside = f.varied = f.on_wire = false;
  f.started_ps = now_ps;
  if (foresees_ && foresee(flow)) {
    mark(flow);
    return flow;
  }
  if (const std::int64_t latency_ps = era().transfers[transfer].latency_ps; latency_ps > 0) {
    f.leg = Leg::kLatency;
    f.progress = kernel::RemainingWork(now_ps, latency_ps * slowdown_ppm_);
    mark(flow);
  } else {
    enter_wire(now_ps, flow);
  }
  return flow;
}

/// Whether the flow, which starts now, can be left alone until its end.
bool FlowNetwork::foresee(FlowIndex flow) {
  Flow& f = flows_[flow];
  Era& e = era();
  const kernel::VariableId variable = e.variables[f.transfer];
  const std::vector<std::uint32_t>& uses = uses_[f.transfer];
  if (variable.valid() && !e.shares.idle_around(variable)) return false;
  if (!std::ranges::all_of(
          uses, [&](std::uint32_t constraint) { return foreseen_[constraint] == kNoFlow; }))
    return false;
  Alone& alone = alone_[f.transfer];
  if (alone.rate == 0) {
    alone.rate = variable.valid() ? std::max<std::int64_t>(e.shares.rate_alone(variable), 1)
                                  : e.transfers[f.transfer].bytes_per_second;
    for (const bool slowed : {false, true}) {
      kernel::RemainingWork latency(0, e.transfers[f.transfer].latency_ps * slowdown_ppm_),
          wire(0, wire_work(f.transfer));
      latency.set_speed(0, unit(slowed));
      wire.set_speed(0, unit(slowed) * alone.rate);
      alone.latency_ps[slowed ? 1 : 0] = latency.end_ps();
      alone.wire_ps[slowed ? 1 : 0] = wire.end_ps();
    }
  }
  for (const std::uint32_t constraint : uses) foreseen_[constraint] = flow;
  f.leg = Leg::kForeseen;
  return true;
}

/// Makes the foreseen flow's progress say where it is now.
void FlowNetwork::follow(std::int64_t now_ps, FlowIndex flow) {
  Flow& f = flows_[flow];
  if (!f.varied) {
    f.varied = true;
    f.progress =
        kernel::RemainingWork(f.started_ps, era().transfers[f.transfer].latency_ps * slowdown_ppm_);
    f.progress.set_speed(f.started_ps, unit(f.beside));
  }
  if (f.on_wire) return;
  const std::int64_t wire_ps = f.progress.end_ps();
  if (now_ps < wire_ps) return;
  f.on_wire = true;
  f.progress = kernel::RemainingWork(wire_ps, wire_work(f.transfer));
  f.progress.set_speed(wire_ps, unit(f.beside) * alone_[f.transfer].rate);
}

/// The foreseen flow is slowed from now on, or no longer.
void FlowNetwork::change_speed(std::int64_t now_ps, FlowIndex flow) {
  Flow& f = flows_[flow];
  if (f.started_ps < now_ps) {
    follow(now_ps, flow);
    f.progress.set_speed(now_ps,
                         f.on_wire ? unit(f.slowed) * alone_[f.transfer].rate : unit(f.slowed));
  }
  f.beside = f.slowed;
}

/// When the foreseen flow enters the wire; of one that is there, a time before now.
std::int64_t FlowNetwork::wire_from_ps(const Flow& f) const {
  if (f.on_wire) return f.started_ps;
  return f.varied ? f.progress.end_ps()
                  : f.started_ps + alone_[f.transfer].latency_ps[f.beside ? 1 : 0];
}

std::int64_t FlowNetwork::foreseen_end_ps(const Flow& f) const {
  return f.on_wire ? f.progress.end_ps()
                   : wire_from_ps(f) + alone_[f.transfer].wire_ps[f.beside ? 1 : 0];
}

kernel::Int128 FlowNetwork::foreseen_work(std::int64_t now_ps, const Flow& f) const {
  if (f.on_wire) return wire_work(f.transfer) - f.progress.remaining(now_ps);
  const std::int64_t on_wire_ps = std::max<std::int64_t>(now_ps - wire_from_ps(f), 0);
  return std::min(unit(f.beside) * alone_[f.transfer].rate * on_wire_ps, wire_work(f.transfer));
}

/// Something has come in between: the flow is where it is now.
void FlowNetwork::meet(std::int64_t now_ps, FlowIndex flow) {
  Flow& f = flows_[flow];
  forget(flow);
  follow(now_ps, flow);
  if (!f.on_wire) {
    f.leg = Leg::kLatency;
    mark(flow);
    return;
  }
  const kernel::RemainingWork progress = f.progress;
  enter_wire(now_ps, flow);
  flows_[flow].progress = progress;
}

void FlowNetwork::forget(FlowIndex flow) {
  for (const std::uint32_t constraint : uses_[flows_[flow].transfer])
    foreseen_[constraint] = kNoFlow;
}

kernel::Int128 FlowNetwork::wire_work(TransferIndex transfer) const {
  return static_cast<kernel::Int128>(era().transfers[transfer].wire_bytes) *
         base::kPicosecondsPerSecond * slowdown_ppm_;
}

void FlowNetwork::enter_wire(std::int64_t since_ps, FlowIndex flow) {
  Flow& f = flows_[flow];
  f.leg = Leg::kWire;
  f.left = wire_work(f.transfer);
  f.progress = kernel::RemainingWork(since_ps, f.left);
  if (const kernel::VariableId variable = era().variables[f.transfer]; variable.valid()) {
    for (const std::uint32_t constraint : uses_[f.transfer]) {
      if (const FlowIndex other = foreseen_[constraint]; other != kNoFlow)
        meet(queue_->now().ps(), other);
    }
    era().shares.activate(variable);
    shares_changed_ = true;
  }
  mark(flow);
}

void FlowNetwork::set_slowed(FlowIndex flow, bool slowed) {
  if (flows_[flow].slowed == slowed) return;
  flows_[flow].slowed = slowed;
  slowdown_unforeseen_ =
      slowdown_unforeseen_ || (!foresees_slowed_ && flows_[flow].leg == Leg::kForeseen);
  mark(flow);
}

bool FlowNetwork::on_event(const kernel::Event& event) {
  const FlowIndex flow = event.target;
  if (flow == kNextEra) {
    enter_next_era(event.at.ps());
    return false;
  }
  Flow& f = flows_[flow];
  if (event.order != f.ticket || f.leg == Leg::kFree) return false;
  if (f.leg == Leg::kLatency && era().transfers[f.transfer].wire_bytes > 0) {
    enter_wire(event.at.ps(), flow);
    return false;
  }
  end(flow);
  return true;
}

void FlowNetwork::end(FlowIndex flow) {
  Flow& f = flows_[flow];
  if (f.leg == Leg::kForeseen) {
    era().sent[f.transfer] += wire_work(f.transfer);
    forget(flow);
  }
  if (f.leg == Leg::kWire) {
    era().sent[f.transfer] += f.left;
    if (const kernel::VariableId variable = era().variables[f.transfer]; variable.valid()) {
      era().shares.deactivate(variable);
      shares_changed_ = true;
    }
  }
  f.leg = Leg::kFree;
  f.ticket = 0;
  registered_[f.transfer].running = false;
  free_.push_back(flow);
}

std::int64_t FlowNetwork::rate(FlowIndex flow) const {
  const Flow& f = flows_[flow];
  if (f.leg == Leg::kForeseen)
    return queue_->now().ps() < wire_from_ps(f) ? 0 : alone_[f.transfer].rate;
  if (f.leg != Leg::kWire) return 0;
  const kernel::VariableId variable = era().variables[f.transfer];
  // Less than one byte per second is one, as in the cost model: a transfer always ends.
  return variable.valid() ? std::max<std::int64_t>(era().shares.rate(variable), 1)
                          : era().transfers[f.transfer].bytes_per_second;
}

std::vector<std::vector<std::int64_t>> FlowNetwork::sent_bytes(std::int64_t now_ps) const {
  std::vector<std::vector<kernel::Int128>> work;
  for (std::size_t e = 0; e <= era_; ++e) work.push_back(eras_[e].sent);
  for (const Flow& f : flows_) {
    if (f.leg == Leg::kWire) work.back()[f.transfer] += f.left - f.progress.remaining(now_ps);
    if (f.leg == Leg::kForeseen) work.back()[f.transfer] += foreseen_work(now_ps, f);
  }
  for (const Endless& e : endless_)
    work.back()[e.transfer] += slowdown_ppm_ * e.rate * (now_ps - e.since_ps);
  std::vector<std::vector<std::int64_t>> bytes;
  for (const auto& of_era : work) {
    bytes.emplace_back();
    for (const kernel::Int128 w : of_era)
      bytes.back().push_back(
          static_cast<std::int64_t>(w / (base::kPicosecondsPerSecond * slowdown_ppm_)));
  }
  return bytes;
}

double FlowNetwork::room_bytes(topologies::LinkId link, std::int64_t until_ps) const {
  double bytes = 0;
  for (std::size_t e = 0; e < eras_.size() && eras_[e].from_ps < until_ps; ++e) {
    const std::int64_t end_ps =
        e + 1 < eras_.size() ? std::min(eras_[e + 1].from_ps, until_ps) : until_ps;
    bytes += real(eras_[e].topology->link(link).bytes_per_second) *
             real(end_ps - eras_[e].from_ps) / 1e12;
  }
  return bytes;
}

void FlowNetwork::share_out(std::int64_t now_ps) {
  shares_changed_ = false;
  for (const kernel::VariableId v : era().shares.solve()) {
    const Registered& r = registered_[era().by_variable[v.raw()]];
    if (!r.endless) {
      mark(r.flow);
      continue;
    }
    Endless& e = endless_[r.flow];
    era().sent[e.transfer] += slowdown_ppm_ * e.rate * (now_ps - e.since_ps);
    e.since_ps = now_ps;
    e.rate = era().shares.rate(v);
  }
  std::ranges::sort(dirty_);  // the solver's order says nothing
}

void FlowNetwork::settle(std::int64_t now_ps) {
  if (slowdown_unforeseen_) {
    slowdown_unforeseen_ = false;
    for (std::size_t i = 0; i < dirty_.size(); ++i) {
      if (flows_[dirty_[i]].leg == Leg::kForeseen && flows_[dirty_[i]].slowed)
        meet(now_ps, dirty_[i]);
    }
  }
  if (shares_changed_) share_out(now_ps);
  for (const FlowIndex flow : dirty_) {
    Flow& f = flows_[flow];
    f.dirty = false;
    if (f.leg == Leg::kFree) continue;
    if (f.leg == Leg::kForeseen) {
      // slowed and no longer so within this instant
      if (f.ticket != 0 && f.beside == f.slowed) continue;
      if (f.beside != f.slowed) change_speed(now_ps, flow);
      f.ticket = queue_->push(base::SimTime::from_ps(foreseen_end_ps(f)), kernel::Phase::kRelease,
                              event_kind_, flow);
      continue;
    }
    const kernel::Int128 speed = unit(f.slowed);
    f.progress.set_speed(now_ps, f.leg == Leg::kLatency ? speed : speed * rate(flow));
    const auto phase = f.leg == Leg::kLatency ? kernel::Phase::kDeliver : kernel::Phase::kRelease;
    f.ticket = queue_->push(base::SimTime::from_ps(f.progress.end_ps()), phase, event_kind_, flow);
  }
  dirty_.clear();
}

}  // namespace orrery::sim

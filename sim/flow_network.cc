#include "sim/flow_network.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/sim_time.h"

namespace orrery::sim {
namespace {

constexpr std::int64_t kMillion = 1'000'000;
constexpr std::uint32_t kLastLane = ~std::uint32_t{0};  // background counts down from here

using Signature = std::vector<std::pair<std::uint32_t, std::int64_t>>;  // (transfer, flows), ascending

}  // namespace

FlowNetwork::FlowNetwork(const topologies::Topology& topology, std::int64_t slowdown_ppm, kernel::EventQueue& queue,
                         std::uint32_t event_kind)
    : topology_(&topology), slowdown_ppm_(slowdown_ppm), queue_(&queue), event_kind_(event_kind) {
  ORRERY_CHECK(slowdown_ppm >= kMillion, "slowdown {} ppm", slowdown_ppm);
}

FlowNetwork::TransferIndex FlowNetwork::add(costmodel::Transfer transfer, std::uint32_t lane) {
  ORRERY_CHECK(transfer.wire_bytes == 0 || transfer.bytes_per_second > 0, "{} bytes at no rate", transfer.wire_bytes);
  Registered r;
  r.transfer = std::move(transfer);
  r.lane = lane;
  transfers_.push_back(std::move(r));
  return static_cast<TransferIndex>(transfers_.size() - 1);
}

FlowNetwork::FlowNetwork(const FlowNetwork& frozen, kernel::EventQueue& queue) : FlowNetwork(frozen) {
  ORRERY_CHECK(running_ == 0 && flows_.empty(), "a network that has run");
  queue_ = &queue;
}

void FlowNetwork::add_background(const BackgroundFlow& flow) {
  ORRERY_CHECK(flow.bytes_per_second > 0 && !flow.loads.empty(), "{} bytes/s in the background over {} links", flow.bytes_per_second, flow.loads.size());
  const auto index = static_cast<std::uint32_t>(endless_.size());
  std::int64_t rate = flow.bytes_per_second;
  for (const costmodel::LinkLoad& load : flow.loads) rate = std::min(rate, topology_->link(load.link).bytes_per_second / load.flows);
  const TransferIndex transfer = add({.wire_bytes = 1, .bytes_per_second = std::max<std::int64_t>(rate, 1), .links = flow.loads}, kLastLane - index);
  transfers_[transfer].endless = true;
  transfers_[transfer].flow = index;
  endless_.push_back({transfer, transfers_[transfer].transfer.bytes_per_second, 0, 0});
}

std::vector<FlowNetwork::Load> FlowNetwork::loads_by_link() const {
  const auto each = [&](auto&& visit) {
    for (std::uint32_t t = 0; t < transfers_.size(); ++t) {
      if (transfers_[t].transfer.wire_bytes == 0) continue;
      for (const auto& l : transfers_[t].transfer.links) visit(Load{l.link.raw(), t, l.flows});
    }
  };
  std::size_t count = 0;
  each([&](const Load&) { ++count; });
  if (count < topology_->links().size()) {
    std::vector<Load> loads;
    loads.reserve(count);
    each([&](const Load& l) { loads.push_back(l); });
    std::sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) { return std::tie(a.link, a.transfer) < std::tie(b.link, b.transfer); });
    return loads;
  }
  std::vector<std::uint32_t> begin(topology_->links().size() + 1, 0);
  each([&](const Load& l) { ++begin[l.link + 1]; });
  for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<Load> loads(begin.back());
  each([&](const Load& l) { loads[begin[l.link]++] = l; });
  return loads;
}

void FlowNetwork::freeze() {
  const std::vector<Load> loads = loads_by_link();
  std::map<Signature, std::int64_t> folded;  // smallest capacity of the links loaded alike
  for (std::size_t i = 0; i < loads.size();) {
    Signature signature;
    bool shared = false;
    std::size_t end = i;
    for (; end < loads.size() && loads[end].link == loads[i].link; ++end) {
      shared = shared || transfers_[loads[end].transfer].lane != transfers_[loads[i].transfer].lane;
      signature.emplace_back(loads[end].transfer, loads[end].flows);
    }
    if (shared) {
      const std::int64_t capacity = topology_->link(topologies::LinkId(loads[i].link)).bytes_per_second;
      const auto [at, fresh] = folded.try_emplace(std::move(signature), capacity);
      if (!fresh) at->second = std::min(at->second, capacity);
    }
    i = end;
  }
  std::vector<std::vector<kernel::Consumption>> uses(transfers_.size());
  for (const auto& [signature, capacity] : folded) {
    const kernel::ConstraintId constraint = shares_.add_constraint(capacity);
    for (const auto& [transfer, flows] : signature) uses[transfer].push_back({constraint, flows});
  }
  for (std::uint32_t t = 0; t < transfers_.size(); ++t) {
    if (uses[t].empty()) continue;
    transfers_[t].variable = shares_.add_variable(transfers_[t].transfer.bytes_per_second, uses[t]);
    by_variable_.push_back(t);
  }
  constraints_ = folded.size();
  for (const Endless& e : endless_) {
    if (!transfers_[e.transfer].variable.valid()) continue;
    shares_.activate(transfers_[e.transfer].variable);
    shares_changed_ = true;
  }
}

void FlowNetwork::mark(FlowIndex flow) {
  if (flows_[flow].dirty) return;
  flows_[flow].dirty = true;
  dirty_.push_back(flow);
}

FlowNetwork::FlowIndex FlowNetwork::start(std::int64_t now_ps, TransferIndex transfer) {
  Registered& r = transfers_[transfer];
  ORRERY_CHECK(!r.running, "transfer {} runs already", transfer);
  if (free_.empty()) {
    flows_.emplace_back();
    free_.push_back(static_cast<FlowIndex>(flows_.size() - 1));
  }
  const FlowIndex flow = free_.back();
  free_.pop_back();
  r.running = true;
  r.flow = flow;
  ++running_;
  Flow& f = flows_[flow];
  f.transfer = transfer;
  f.slowed = false;
  if (r.transfer.latency_ps > 0) {
    f.leg = Leg::kLatency;
    f.progress = kernel::Progress(now_ps, r.transfer.latency_ps * slowdown_ppm_);
    mark(flow);
  } else {
    enter_wire(now_ps, flow);
  }
  return flow;
}

void FlowNetwork::enter_wire(std::int64_t now_ps, FlowIndex flow) {
  Flow& f = flows_[flow];
  const Registered& r = transfers_[f.transfer];
  f.leg = Leg::kWire;
  f.progress = kernel::Progress(now_ps, static_cast<kernel::Int128>(r.transfer.wire_bytes) * base::kPicosecondsPerSecond * slowdown_ppm_);
  if (r.variable.valid()) {
    shares_.activate(r.variable);
    shares_changed_ = true;
  }
  mark(flow);
}

void FlowNetwork::set_slowed(FlowIndex flow, bool slowed) {
  if (flows_[flow].slowed == slowed) return;
  flows_[flow].slowed = slowed;
  mark(flow);
}

bool FlowNetwork::on_event(const kernel::Event& event) {
  const FlowIndex flow = event.target;
  Flow& f = flows_[flow];
  if (event.order != f.ticket || f.leg == Leg::kFree) return false;
  if (f.leg == Leg::kLatency && transfers_[f.transfer].transfer.wire_bytes > 0) {
    enter_wire(event.at.ps(), flow);
    return false;
  }
  end(flow);
  return true;
}

void FlowNetwork::end(FlowIndex flow) {
  Flow& f = flows_[flow];
  Registered& r = transfers_[f.transfer];
  if (f.leg == Leg::kWire && r.variable.valid()) {
    shares_.deactivate(r.variable);
    shares_changed_ = true;
  }
  f.leg = Leg::kFree;
  f.ticket = 0;
  r.running = false;
  free_.push_back(flow);
  --running_;
}

std::int64_t FlowNetwork::rate(FlowIndex flow) const {
  const Flow& f = flows_[flow];
  if (f.leg != Leg::kWire) return 0;
  const Registered& r = transfers_[f.transfer];
  // Less than one byte per second is one, as in the cost model: a transfer always ends.
  return r.variable.valid() ? std::max<std::int64_t>(shares_.rate(r.variable), 1) : r.transfer.bytes_per_second;
}

std::int64_t FlowNetwork::background_bytes(std::size_t i, std::int64_t now_ps) const {
  const Endless& e = endless_[i];
  return static_cast<std::int64_t>((e.sent + static_cast<kernel::Int128>(e.rate) * (now_ps - e.since_ps)) / base::kPicosecondsPerSecond);
}

void FlowNetwork::share_out(std::int64_t now_ps) {
  shares_changed_ = false;
  for (const kernel::VariableId v : shares_.solve()) {
    const Registered& r = transfers_[by_variable_[v.raw()]];
    if (!r.endless) {
      mark(r.flow);
      continue;
    }
    Endless& e = endless_[r.flow];
    e.sent += static_cast<kernel::Int128>(e.rate) * (now_ps - e.since_ps);
    e.since_ps = now_ps;
    e.rate = shares_.rate(v);
  }
  std::sort(dirty_.begin(), dirty_.end());  // the solver's order says nothing
}

void FlowNetwork::settle(std::int64_t now_ps) {
  if (shares_changed_) share_out(now_ps);
  for (const FlowIndex flow : dirty_) {
    Flow& f = flows_[flow];
    f.dirty = false;
    if (f.leg == Leg::kFree) continue;
    const kernel::Int128 unit = f.slowed ? kernel::Int128(kMillion) : slowdown_ppm_;
    f.progress.set_speed(now_ps, f.leg == Leg::kLatency ? unit : unit * rate(flow));
    const auto phase = f.leg == Leg::kLatency ? kernel::Phase::kDeliver : kernel::Phase::kRelease;
    f.ticket = queue_->push(base::SimTime::from_ps(f.progress.end_ps()), phase, event_kind_, flow);
  }
  dirty_.clear();
}

}  // namespace orrery::sim

#include "costmodel/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "base/sim_time.h"
#include "costmodel/collectives/collectives.h"
#include "costmodel/compute/compute.h"
#include "costmodel/profiles/device_names.h"

namespace orrery::costmodel {
namespace {

constexpr double kPerMillion = 1e6;
constexpr std::int64_t kMillion = 1'000'000;

base::Result<void> check_device(const model::Profile& profile,
                                const topologies::Topology& topology) {
  if (profile.device.empty()) return {};  // the profile does not say (a Galvatron folder)
  if (topology.name() == "local" && (profile.device == "cpu" || profile.device == "local"))
    return {};
  for (const auto& device : topology.device_models()) {
    if (names_device(profile.device, device.name)) continue;
    auto error = base::make_error(base::ErrorCode::kInconsistent,
                                  "profile '{}' was measured on '{}', cluster '{}' has '{}'",
                                  profile.name, profile.device, topology.name(), device.name);
    error.hint =
        "name a cluster of that device, a profile of this one, or no profile (datasheet prices)";
    return base::fail(std::move(error));
  }
  return {};
}

base::Result<void> check_rates(const model::Profile& profile) {
  base::ErrorSink sink;
  const auto require = [&](bool fine, std::string_view field) {
    if (fine) return;
    sink.add(base::make_error(base::ErrorCode::kOutOfRange, "profile '{}': {} is out of range",
                              profile.name, field));
  };
  require(profile.composition_factor > 0, "composition_factor");
  require(profile.overlap_slowdown >= 1 && profile.overlap_slowdown <= 100, "overlap_slowdown");
  require(profile.launch_seconds >= 0, "launch_seconds");
  require(profile.context_bytes >= 0, "context_bytes");
  const model::StepCommunication& step = profile.step_communication;
  require(step.factor >= 1 && step.issue_seconds >= 0 && step.fabric_share > 0 &&
              step.fabric_share <= 1,
          "step_communication");
  for (const auto& c : profile.collectives) {
    require(c.size >= 2 && c.stride >= 1 && c.hosts >= 1 && c.latency_seconds >= 0, "a collective");
    require(c.bus_bandwidth > 0 || !c.points.empty(), "a collective without bandwidth and points");
    std::int64_t before = 0;
    for (const auto& p : c.points) {
      require(p.bytes > before && p.seconds > 0,
              "a collective's points (bytes ascending, seconds above zero)");
      before = p.bytes;
    }
  }
  return sink.result();
}

}  // namespace

namespace {

using Carrier = SpeedScale::Carrier;

RateScale measured_rates(const SpeedScale& s) {
  const auto when = [&](Carrier one) {
    return s.bandwidth_of == Carrier::kAll || s.bandwidth_of == one ? s.bandwidth_ppm : kMillion;
  };
  return {when(Carrier::kMeasuredInHosts), when(Carrier::kMeasuredAcrossHosts)};
}

/// Links as fast as transfers in a training step find them.
topologies::Topology in_step(topologies::Topology topology, const model::StepCommunication& step) {
  if (step == model::StepCommunication{}) return topology;
  return topology.with_level_rates(std::llround(kPerMillion / step.factor),
                                   std::llround(kPerMillion * step.fabric_share));
}

/// Of a profile that may be absent; what the host adds errs as its launches do.
model::StepCommunication step_of(const std::optional<model::Profile>& profile,
                                 const PriceFactors& errors) {
  model::StepCommunication step =
      profile ? profile->step_communication : model::StepCommunication{};
  step.issue_seconds *= errors.launches;
  return step;
}

topologies::Topology scaled_links(const topologies::Topology& topology, const SpeedScale& s) {
  switch (s.bandwidth_of) {
    case Carrier::kAll: return topology.with_link_rates(s.bandwidth_ppm);
    case Carrier::kLinksOfKind: return topology.with_link_rates(s.bandwidth_ppm, s.link_kind);
    case Carrier::kMeasuredInHosts:
    case Carrier::kMeasuredAcrossHosts: return topology;
  }
  ORRERY_CHECK(false, "carrier out of range");
}

}  // namespace

struct CostModel::State {
  State(model::ModelSpec m, topologies::Topology t, std::optional<model::Profile> p,
        CostModelOptions o, ComputePrices c, SpeedScale s = {}, PriceFactors e = {})
      : model(std::move(m)),
        topology(std::move(t)),
        profile(std::move(p)),
        options(o),
        scale(std::move(s)),
        errors(e),
        compute(std::move(c)),
        collectives(
            topology, profile ? profile->collectives : std::vector<model::CollectiveTimes>{},
            measured_rates(scale), step_of(profile, errors), {errors.in_hosts, errors.fabric}) {}
  State(const State&) = delete;  // collectives refers to topology
  State& operator=(const State&) = delete;

  model::ModelSpec model;
  topologies::Topology topology;
  std::optional<model::Profile> profile;
  CostModelOptions options;
  SpeedScale scale;
  PriceFactors errors;
  ComputePrices compute;
  CollectivePrices collectives;
};

base::Result<CostModel> CostModel::make(model::ModelSpec model, topologies::Topology topology,
                                        std::optional<model::Profile> profile,
                                        CostModelOptions options) {
  if (profile) {
    TRY_VOID(check_device(*profile, topology));
    TRY_VOID(check_rates(*profile));
  }
  TRY(auto compute, ComputePrices::make(model, topology, profile, options.precision));
  if (profile) topology = in_step(std::move(topology), profile->step_communication);
  CostModel made;
  made.state_ = std::make_shared<const State>(std::move(model), std::move(topology),
                                              std::move(profile), options, std::move(compute));
  return made;
}

CostModel CostModel::scaled(const SpeedScale& scale) const {
  ORRERY_CHECK(state_->scale == SpeedScale{}, "prices are scaled once");
  ORRERY_CHECK(scale.compute_ppm > 0 && scale.bandwidth_ppm > 0, "speeds of {} and {} ppm",
               scale.compute_ppm, scale.bandwidth_ppm);
  CostModel made;
  made.state_ =
      std::make_shared<const State>(state_->model, scaled_links(state_->topology, scale),
                                    state_->profile, state_->options, state_->compute, scale);
  return made;
}

CostModel CostModel::drawn(const PriceFactors& errors) const {
  ORRERY_CHECK(state_->scale == SpeedScale{} && state_->errors == PriceFactors{},
               "prices are scaled once");
  const auto rate_ppm = [](double time) {
    return std::max<std::int64_t>(std::llround(kPerMillion / time), 1);
  };
  CostModel made;
  made.state_ = std::make_shared<const State>(
      state_->model,
      state_->topology.with_level_rates(rate_ppm(errors.in_hosts), rate_ppm(errors.fabric)),
      state_->profile, state_->options, state_->compute.drawn(errors), SpeedScale{}, errors);
  return made;
}

CostModel CostModel::on(topologies::Topology changed) const {
  ORRERY_CHECK(
      state_->scale == SpeedScale{} && changed.device_count() == state_->topology.device_count(),
      "prices of another machine");
  CostModel made;
  made.state_ = std::make_shared<const State>(state_->model, std::move(changed), state_->profile,
                                              state_->options, state_->compute);
  return made;
}

std::int64_t CostModel::segment_ps(const model::SegmentShape& shape, model::Phase phase) const {
  const std::int64_t ppm = state_->scale.compute_ppm;
  const double seconds = state_->compute.seconds(shape, phase);
  return base::ceil_ps(
      base::Seconds(ppm == kMillion ? seconds : seconds * kPerMillion / static_cast<double>(ppm)));
}

PriceSource CostModel::segment_source(const model::SegmentShape& shape, model::Phase phase) const {
  return state_->compute.source(shape, phase);
}

Transfer CostModel::collective(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                               int first_rank, int rank_count) const {
  return state_->collectives.collective(op, group, bytes, first_rank, rank_count);
}

Transfer CostModel::exchange(int first_rank, int rank_count, int peer_offset,
                             std::int64_t bytes) const {
  return state_->collectives.exchange(first_rank, rank_count, peer_offset, bytes);
}

const CollectivePrices& CostModel::communication() const { return state_->collectives; }

PathSummary CostModel::summary(plan::Collective op, const plan::Group& group, int first_rank,
                               int rank_count) const {
  return state_->collectives.summary(op, group, first_rank, rank_count);
}

PathSummary CostModel::summary(int first_rank, int rank_count, int peer_offset) const {
  return state_->collectives.summary(first_rank, rank_count, peer_offset);
}

std::int64_t CostModel::collective_ps(plan::Collective op, const plan::Group& group,
                                      std::int64_t bytes, const PathSummary& paths) const {
  return state_->collectives.duration_ps(op, group, bytes, paths);
}

std::int64_t CostModel::exchange_ps(int peer_offset, std::int64_t bytes,
                                    const PathSummary& paths) const {
  return state_->collectives.exchange_ps(peer_offset, bytes, paths);
}

std::int64_t CostModel::op_ps(const plan::Program& program, const plan::Op& op, int first_rank,
                              int rank_count) const {
  switch (op.kind) {
    case plan::OpKind::kCompute: return segment_ps(program.segments[op.segment], op.phase);
    case plan::OpKind::kCollective:
      return state_->collectives
          .collective(op.collective, program.groups[op.group], op.bytes, first_rank, rank_count,
                      Senders::kWholeGroups)
          .duration_ps();
    case plan::OpKind::kExchange: break;
  }
  std::int64_t longest = 0;  // legs are posted at once
  for (const auto& leg : op.legs) {
    const std::int64_t bytes = program.buffers[leg.buffer.buffer].bytes();
    const auto transfer =
        leg.send ? exchange(first_rank, rank_count, leg.peer_offset, bytes)
                 : exchange(first_rank + leg.peer_offset, rank_count, -leg.peer_offset, bytes);
    longest = std::max(longest, transfer.duration_ps());
  }
  return longest;
}

std::int64_t CostModel::overlap_slowdown_ppm() const {
  if (!state_->profile) return static_cast<std::int64_t>(kPerMillion);
  return static_cast<std::int64_t>(state_->profile->overlap_slowdown * kPerMillion + 0.5);
}

bool CostModel::overlaps() const { return !state_->profile || state_->profile->overlaps; }

std::int64_t CostModel::context_bytes() const {
  const model::ModelSpec& m = state_->model;
  const std::int64_t framework = state_->profile ? state_->profile->context_bytes : 0;
  // Rotary attention: cosine and sine of every position, half a head each, fp32.
  return framework + (m.position == model::PositionKind::kRotary
                          ? 4 * state_->options.sequence * m.head_dim
                          : 0);
}

base::FlopsPerSecond CostModel::peak() const {
  const auto peak =
      state_->compute.roofline().peak(model::compute_dtype(state_->options.precision));
  return peak * (static_cast<double>(state_->scale.compute_ppm) / kPerMillion);
}

Origin CostModel::compute_origin() const {
  if (state_->compute.measured()) return Origin::kMeasured;
  return state_->compute.fitted() ? Origin::kFitted : Origin::kDatasheet;
}

Origin CostModel::communication_origin() const {
  return state_->collectives.measured() ? Origin::kMeasured : Origin::kDatasheet;
}

const model::ModelSpec& CostModel::model() const { return state_->model; }
const topologies::Topology& CostModel::topology() const { return state_->topology; }
const std::optional<model::Profile>& CostModel::profile() const { return state_->profile; }
const CostModelOptions& CostModel::options() const { return state_->options; }

std::string CostModel::fingerprint() const {
  base::Fingerprint digest;
  digest.add(state_->model.fingerprint()).add(state_->topology.fingerprint());
  digest.add(model::to_string(state_->options.precision)).add(state_->options.sequence);
  digest.add(state_->profile ? base::to_line(model::to_json(*state_->profile)) : std::string());
  if (state_->scale != SpeedScale{}) {
    digest.add(state_->scale.compute_ppm).add(state_->scale.bandwidth_ppm);
    digest.add(static_cast<int>(state_->scale.bandwidth_of)).add(state_->scale.link_kind);
  }
  if (const PriceFactors& e = state_->errors; e != PriceFactors{}) {
    for (const double factor :
         {e.products, e.attention, e.streams, e.launches, e.in_hosts, e.fabric, e.operators})
      digest.add(factor);
    digest.add(e.seed);
  }
  return digest.hex();
}

}  // namespace orrery::costmodel

#include "costmodel/cost_model.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "base/numbers.h"
#include "base/sim_time.h"
#include "costmodel/collectives/collective_forms.h"
#include "costmodel/collectives/collectives.h"
#include "costmodel/collectives/host_copies.h"
#include "costmodel/compute/compute.h"
#include "costmodel/compute/kernels.h"
#include "costmodel/kind_runs.h"
#include "costmodel/profiles/device_names.h"
#include "topologies/device_order.h"

namespace orrery::costmodel {
namespace {

constexpr double kPerMillion = 1e6;
constexpr std::int64_t kMillion = 1'000'000;

std::int64_t ppm_of(double factor) { return std::llround(factor * kPerMillion); }

base::Result<void> check_device(const model::Profile& profile,
                                const topologies::Topology& topology) {
  if (profile.device.empty()) return {};  // the profile does not say (a Galvatron folder)
  if (topology.name() == "local" && (profile.device == "cpu" || profile.device == "local"))
    return {};
  for (const auto& device : topology.device_models()) {
    if (names_device(profile.device, device.name)) continue;
    return base::fail(
        base::make_error(base::ErrorCode::kInconsistent,
                         "profile '{}' was measured on '{}', cluster '{}' has '{}'", profile.name,
                         profile.device, topology.name(), device.name)
            .with_hint("name a cluster of that device, a profile of this one, or no profile "
                       "(datasheet prices)"));
  }
  return {};
}

base::Result<std::vector<ComputePrices>> prices_of_kinds(
    const model::ModelSpec& model, const topologies::Topology& topology,
    const std::optional<model::Profile>& profile, model::Precision precision) {
  const std::size_t kinds = topology.device_models().size();
  if (kinds > kMostKinds) {
    return base::fail(base::make_error(base::ErrorCode::kUnsupported,
                                       "cluster '{}' has {} device models", topology.name(), kinds)
                          .with_hint(fmt::format("at most {} are told apart", kMostKinds)));
  }
  const bool own = profile && !profile->kinds.empty();
  ORRERY_CHECK(!own || profile->kinds.size() == kinds, "{} profiles of {} kinds of device",
               own ? profile->kinds.size() : 0, kinds);
  std::vector<ComputePrices> all;
  for (std::size_t k = 0; k < kinds; ++k) {
    TRY(ComputePrices prices,
        ComputePrices::make(model, topology, own ? profile->kinds[k] : profile, precision, k));
    all.push_back(std::move(prices));
  }
  return all;
}

std::vector<ComputePrices> drawn_prices(const std::vector<ComputePrices>& all,
                                        const PriceFactors& errors) {
  std::vector<ComputePrices> drawn;
  for (const ComputePrices& prices : all) drawn.push_back(prices.drawn(errors));
  return drawn;
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

using enum SpeedScale::Carrier;
using Carrier = SpeedScale::Carrier;

RateScale measured_rates(const SpeedScale& s) {
  const auto when = [&](Carrier one) {
    return s.bandwidth_of == kAll || s.bandwidth_of == one ? s.bandwidth_ppm : kMillion;
  };
  return {when(kMeasuredInHosts), when(kMeasuredAcrossHosts)};
}

/// Links as fast as transfers in a training step find them.
topologies::Topology in_step(topologies::Topology topology, const model::StepCommunication& step) {
  const std::int64_t ppm = ppm_of(step.fabric_share);
  if (ppm == kMillion) return topology;
  return std::move(topology).with_level_rates(kMillion, ppm);
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
    case kAll: return topology.with_link_rates(s.bandwidth_ppm);
    case kLinksOfKind: return topology.with_link_rates(s.bandwidth_ppm, s.link_kind);
    case kMeasuredInHosts:
    case kMeasuredAcrossHosts: return topology;
  }
  ORRERY_CHECK(false, "carrier out of range");
}

}  // namespace

/// What prices are made from, shared by the models of other speed.
struct CostModel::Inputs {
  model::ModelSpec model;
  topologies::Topology topology;
  std::optional<model::Profile> profile;
  CostModelOptions options;
};

struct CostModel::State {
  State(std::shared_ptr<const Inputs> i, std::vector<ComputePrices> c, SpeedScale s = {},
        PriceFactors e = {}, TimeFactors t = {})
      : inputs(std::move(i)),
        scale(std::move(s)),
        errors(e),
        times(t),
        compute(std::move(c)),
        runs(kind_runs(inputs->topology)),
        collectives(
            inputs->topology,
            inputs->profile ? inputs->profile->collectives : std::vector<model::CollectiveTimes>{},
            measured_rates(scale), step_of(inputs->profile, errors), times,
            inputs->options.library),
        host_copies(inputs->topology) {}

  std::shared_ptr<const Inputs> inputs;
  SpeedScale scale;
  PriceFactors errors;
  TimeFactors times;
  std::vector<ComputePrices> compute;  // [device model]
  std::vector<KindRun> runs;
  CollectivePrices collectives;  // refers to the topology of `inputs`
  HostCopies host_copies;        // likewise
  // of a draw: the machine with its rates, made when a simulation first asks for it
  mutable std::once_flag drawn_once;
  mutable std::optional<topologies::Topology> drawn_topology;
};

base::Result<std::shared_ptr<const CollectiveTuning>> usual_library(
    const topologies::Topology& topology) {
  if (topology.name() == "local") return nullptr;
  std::set<std::string> devices;
  for (const auto& device : topology.device_models()) devices.insert(device.name);
  TRY(CollectiveTuning tuning, find_tuning("auto", devices));
  return std::make_shared<const CollectiveTuning>(std::move(tuning));
}

base::Result<CostModel> CostModel::make(model::ModelSpec model, topologies::Topology topology,
                                        std::optional<model::Profile> profile,
                                        CostModelOptions options) {
  if (profile) {
    TRY_VOID(check_device(*profile, topology));
    TRY_VOID(check_rates(*profile));
  }
  TRY(auto compute, prices_of_kinds(model, topology, profile, options.precision));
  if (options.library) topology = usable_rates(std::move(topology), *options.library);
  if (profile) topology = in_step(std::move(topology), profile->step_communication);
  return CostModel(std::make_shared<const State>(
      std::make_shared<const Inputs>(
          Inputs{std::move(model), std::move(topology), std::move(profile), options}),
      std::move(compute)));
}

std::shared_ptr<const CostModel::Inputs> CostModel::inputs_on(topologies::Topology topology) const {
  return std::make_shared<const Inputs>(Inputs{model(), std::move(topology), profile(), options()});
}

CostModel CostModel::scaled(const SpeedScale& scale) const {
  ORRERY_CHECK(state_->scale == SpeedScale{}, "prices are scaled once");
  ORRERY_CHECK(scale.compute_ppm > 0 && scale.bandwidth_ppm > 0, "speeds of {} and {} ppm",
               scale.compute_ppm, scale.bandwidth_ppm);
  return CostModel(std::make_shared<const State>(inputs_on(scaled_links(topology(), scale)),
                                                 state_->compute, scale));
}

CostModel CostModel::drawn(const PriceFactors& errors) const {
  ORRERY_CHECK(state_->scale == SpeedScale{} && state_->errors == PriceFactors{},
               "prices are scaled once");
  ORRERY_CHECK(!topology().changed(), "a draw of links that were changed one by one");
  const auto rate_ppm = [](double time) {
    return std::max<std::int64_t>(std::llround(kPerMillion / time), 1);
  };
  return CostModel(std::make_shared<const State>(
      state_->inputs, drawn_prices(state_->compute, errors), SpeedScale{}, errors,
      TimeFactors{errors.in_hosts, errors.fabric, rate_ppm(errors.in_hosts),
                  rate_ppm(errors.fabric)}));
}

CostModel CostModel::on(topologies::Topology changed) const {
  ORRERY_CHECK(state_->scale == SpeedScale{} && changed.device_count() == topology().device_count(),
               "prices of another machine");
  return CostModel(std::make_shared<const State>(inputs_on(std::move(changed)), state_->compute));
}

base::Result<CostModel> CostModel::in_order(std::span<const std::string> device_order) const {
  if (device_order.empty() || topologies::is_in_device_order(topology(), device_order))
    return *this;
  TRY(topologies::Topology ordered, topologies::in_device_order(topology(), device_order));
  return on(std::move(ordered));
}

bool CostModel::mixed() const { return state_->compute.size() > 1; }

DeviceKinds CostModel::kinds_of(int first_rank, int rank_count) const {
  if (!mixed()) return 1;
  DeviceKinds kinds = 0;
  auto run = std::ranges::upper_bound(state_->runs, first_rank, {}, &KindRun::end);
  for (int rank = first_rank; rank < first_rank + rank_count && run != state_->runs.end(); ++run) {
    kinds |= DeviceKinds{1} << run->kind;
    rank = run->end;
  }
  return kinds;
}

int CostModel::kind_end(int rank) const { return run_of(state_->runs, rank)->end; }

std::int64_t CostModel::segment_ps(const model::SegmentShape& shape, model::Phase phase,
                                   DeviceKinds kinds) const {
  const std::vector<ComputePrices>& all = state_->compute;
  double seconds = all.front().seconds(shape, phase);
  if (mixed() && kinds == 0) {
    for (const ComputePrices& one : all) seconds = std::min(seconds, one.seconds(shape, phase));
  } else if (mixed()) {
    seconds = 0;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if ((kinds >> k & 1) != 0) seconds = std::max(seconds, all[k].seconds(shape, phase));
    }
  }
  const std::int64_t ppm = state_->scale.compute_ppm;
  return base::ceil_ps(
      base::Seconds(ppm == kMillion ? seconds : seconds * kPerMillion / real(ppm)));
}

PriceSource CostModel::segment_source(const model::SegmentShape& shape, model::Phase phase,
                                      DeviceKinds kinds) const {
  const ComputePrices* slowest = nullptr;
  for (std::size_t k = 0; k < state_->compute.size(); ++k) {
    const ComputePrices& one = state_->compute[k];
    if ((kinds >> k & 1) == 0) continue;
    if (slowest == nullptr || one.seconds(shape, phase) > slowest->seconds(shape, phase))
      slowest = &one;
  }
  return (slowest == nullptr ? state_->compute.front() : *slowest).source(shape, phase);
}

Transfer CostModel::collective(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                               int first_rank, int rank_count, bool in_pieces) const {
  return state_->collectives.collective(op, group, bytes, first_rank, rank_count, Senders::kOfClass,
                                        in_pieces);
}

Transfer CostModel::exchange(int first_rank, int rank_count, int peer_offset,
                             std::int64_t bytes) const {
  return state_->collectives.exchange(first_rank, rank_count, peer_offset, bytes);
}

base::Result<std::int64_t> CostModel::copy_ps(bool to_host, std::int64_t bytes, int first_rank,
                                              int rank_count) const {
  if (rank_count == 0) return 0;
  const auto way = state_->host_copies.slowest(to_host, first_rank, rank_count);
  if (!way) {
    return base::fail(
        base::make_error(base::ErrorCode::kUnsupported,
                         "cluster '{}' has a device without a way to a host bridge, "
                         "over which activations and optimizer states go to the host",
                         topology().name())
            .with_hint("state host_bridges and links to them, or keep both on the device"));
  }
  const double seconds = real(way->latency_ps) / 1e12 + real(bytes) / real(way->bytes_per_second);
  return base::ceil_ps(base::Seconds(seconds * state_->errors.in_hosts));
}

base::Result<void> CostModel::check_copies(const plan::Plan& plan) const {
  if (!plan::copies_to_host(plan)) return {};
  for (const bool to_host : {true, false}) TRY_VOID(copy_ps(to_host, 0, 0, plan.world_size()));
  return {};
}

const model::Framework& CostModel::framework() const {
  static const model::Framework none;
  return profile() && profile()->framework ? *profile()->framework : none;
}

namespace {

/// Expected number of m equal parts of the experts that hold one of a token's k uniform choices:
/// m (1 - C(E - E/m, k) / C(E, k)).
double parts_reached(const model::SegmentShape& rows, int parts) {
  const double experts = real(rows.experts), none = experts - experts / parts;
  double missed = 1;
  for (std::int64_t i = 0; i < rows.top_k; ++i)
    missed *= std::max(none - real(i), 0.0) / (experts - real(i));
  return parts * (1 - missed);
}

}  // namespace

/// Of padded rows only tokens travel, once to each rank, over a network once to each host.
std::int64_t CostModel::token_bytes(const plan::Program& program, const plan::Op& op) const {
  const model::SegmentShape& rows = program.segments[op.segment];
  const plan::Group& group = program.groups[op.group];
  const auto per_host = as_int(topology().devices_per_host());
  const int hosts = ceil_div(group.size * group.stride, per_host);
  const double copies = parts_reached(rows, hosts > 1 ? std::min(hosts, group.size) : group.size);
  return std::llround(real(op.bytes) * copies * real(rows.token_count()) /
                      real(rows.expert_rows()));
}

std::int64_t CostModel::wire_bytes(const plan::Program& program, const plan::Op& op) const {
  if (plan::exchanges_rows(op) && framework().tokens_sent_once) return token_bytes(program, op);
  const double element = framework().gradient_bytes;
  const bool reduces = op.collective == plan::Collective::kAllReduce ||
                       op.collective == plan::Collective::kReduceScatter ||
                       op.collective == plan::Collective::kPointToPoint;
  const auto& operands = op.reads.empty() ? op.updates : op.reads;
  if (element == 0 || !reduces || operands.empty()) return op.bytes;
  const plan::BufferDecl& decl = program.buffers[operands.front().buffer];
  if (decl.category != plan::BufferCategory::kGradient || !decl.unit) return op.bytes;
  return std::llround(real(op.bytes) * element / real(model::element_bytes(decl.dtype)));
}

std::optional<model::SegmentShape> CostModel::copies(const plan::Op& op) const {
  const bool gathers = op.collective == plan::Collective::kAllGather;
  const double copies = gathers ? framework().gather_copies : framework().reduce_copies;
  if (copies == 0) return std::nullopt;
  model::SegmentShape copy;  // every byte of it is read or written once
  copy.kind = model::SegmentKind::kZeroGradient;
  copy.dtype = model::DType::kFloat32;
  copy.elements = std::llround(copies * real(op.bytes) / real(model::element_bytes(copy.dtype)));
  return copy;
}

const CollectivePrices& CostModel::communication() const { return state_->collectives; }

std::int64_t CostModel::overlap_slowdown_ppm() const {
  return profile() ? ppm_of(profile()->overlap_slowdown) : kMillion;
}

bool CostModel::overlaps() const { return !profile() || profile()->overlaps; }

bool CostModel::overlaps_tensor() const { return overlaps() && framework().tensor_overlap; }

bool CostModel::overlaps_experts() const { return overlaps() && framework().expert_overlap; }

std::int64_t CostModel::host_ps(int kernels) const {
  return base::ceil_ps(
      base::Seconds(kernels * framework().kernel_seconds * state_->errors.launches));
}

int CostModel::kernels(const model::SegmentShape& shape, model::Phase phase) const {
  return issued_kernels(shape, phase, framework());
}

std::int64_t CostModel::context_bytes() const {
  const model::ModelSpec& m = model();
  const std::int64_t framework = profile() ? profile()->context_bytes : 0;
  // Rotary attention: cosine and sine of every position, half a head each, fp32.
  return framework +
         (m.position == model::PositionKind::kRotary ? 4 * options().sequence * m.head_dim : 0);
}

std::int64_t CostModel::reserved_bytes(std::int64_t peak) const {
  return mul_div_up(peak, ppm_of(framework().reserved_share), kMillion) + context_bytes();
}

std::int64_t CostModel::usable_bytes(std::int64_t memory) const {
  const std::int64_t left = memory - context_bytes();
  return left <= 0 ? left : mul_div(left, kMillion, ppm_of(framework().reserved_share));
}

base::FlopsPerSecond CostModel::peak(int ranks) const {
  const model::DType type = model::compute_dtype(options().precision);
  const auto of_kind = [&](std::size_t k) { return state_->compute[k].roofline().peak(type); };
  if (ranks == 0) ranks = as_int(topology().device_count());
  base::FlopsPerSecond sum{};
  bool alike = true;
  int from = 0;
  for (const KindRun& run : state_->runs) {
    if (from >= ranks) break;
    alike = alike && of_kind(run.kind) == of_kind(state_->runs.front().kind);
    sum = sum + of_kind(run.kind) * real(std::min(run.end, ranks) - from);
    from = run.end;
  }
  const auto mean = alike ? of_kind(state_->runs.front().kind) : sum * (1 / real(ranks));
  return mean * (real(state_->scale.compute_ppm) / kPerMillion);
}

Origin CostModel::compute_origin() const {
  const auto all = [&](auto is) { return std::ranges::all_of(state_->compute, is); };
  if (all([](const ComputePrices& c) { return c.measured(); })) return Origin::kMeasured;
  const bool known = all([](const ComputePrices& c) { return c.measured() || c.fitted(); });
  return known ? Origin::kFitted : Origin::kDatasheet;
}

Origin CostModel::communication_origin() const {
  if (state_->collectives.measured()) return Origin::kMeasured;
  const auto& library = options().library;
  return library && !library->chosen_by.empty() ? Origin::kFitted : Origin::kDatasheet;
}

const model::ModelSpec& CostModel::model() const { return state_->inputs->model; }
const topologies::Topology& CostModel::topology() const {
  const State& s = *state_;
  if (s.errors == PriceFactors{}) return s.inputs->topology;
  std::call_once(s.drawn_once, [&] {
    s.drawn_topology =
        s.inputs->topology.with_level_rates(s.times.host_links_ppm, s.times.fabric_links_ppm);
  });
  return *s.drawn_topology;
}
const std::optional<model::Profile>& CostModel::profile() const { return state_->inputs->profile; }
const CostModelOptions& CostModel::options() const { return state_->inputs->options; }

std::string CostModel::fingerprint() const {
  base::Fingerprint digest;
  digest.add(model().fingerprint()).add(topology().fingerprint());
  digest.add(model::to_string(options().precision)).add(options().sequence);
  digest.add(options().library ? options().library->fingerprint : std::string());
  digest.add(profile() ? base::to_line(model::to_json(*profile())) : std::string());
  if (profile()) {
    for (const model::Profile& kind : profile()->kinds)
      digest.add(base::to_line(model::to_json(kind)));
  }
  if (state_->scale != SpeedScale{}) {
    digest.add(state_->scale.compute_ppm).add(state_->scale.bandwidth_ppm);
    digest.add(as_int(state_->scale.bandwidth_of)).add(state_->scale.link_kind);
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

#include "costmodel/closed_form/layer_energy.h"

#include <cmath>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::costmodel {
namespace {

constexpr double kWaiting = kPowerShares[as_index(PowerKind::kWait)];

}  // namespace

EnergyPrices::EnergyPrices(const CostModel& cost) : cost_(cost) {
  const topologies::Topology& topology = cost.topology();
  const auto power = MachinePower::of(topology);
  ORRERY_CHECK(power.has_value(), "energy of cluster '{}'", topology.name());
  waiting_watts_ = power->waiting(topology).raw();
  for (const topologies::DeviceModel& model : topology.device_models())
    rooflines_.push_back(Roofline::of(model));
  for (const DevicePower& device : power->models())
    ranges_.push_back(device.limit.raw() - device.idle.raw());
}

double EnergyPrices::compute_ps(const model::SegmentShape& shape, model::Phase phase,
                                std::int64_t ps, Ranks ranks) const {
  const Roofline& device = rooflines_[model_of(cost_.topology(), as_u32(ranks.first))];
  return real(ps) * (compute_draw(device, shape, phase, real(ps) / 1e12).share - kWaiting);
}

double EnergyPrices::communication_ps(bool leaves_host, std::int64_t ps) const {
  return real(ps) * (communication_draw(leaves_host).share - kWaiting);
}

double EnergyPrices::weight_of(Ranks ranks) const {
  if (!cost_.mixed()) return real(ranks.count) * ranges_.front() / waiting_watts_;
  double range = 0;
  for (int r = ranks.first; r < ranks.first + ranks.count; ++r)
    range += ranges_[model_of(cost_.topology(), as_u32(r))];
  return range / waiting_watts_;
}

double EnergyPrices::drawn_ps(const BodyForm& body, std::int64_t b, const WeightBytes& bytes,
                              Ranks ranks, OperationPrices& prices) const {
  const OfBody<double> of = body.forms.each(
      [&](const TemplateForm& form) { return form.drawn_ps(b, bytes, ranks, prices, *this); });
  return of.forward + of.backward + of.weight + of.copy_in;
}

OfWeights<double> EnergyPrices::drawn_ps(const WeightForm& weights, Ranks ranks,
                                         OperationPrices& prices) const {
  return weights.forms.each(
      [&](const TemplateForm& form) { return form.drawn_ps(1, {}, ranks, prices, *this); });
}

std::int64_t EnergyPrices::energy_ps(const BodyTimes& body, const WeightTimes& weights,
                                     std::int64_t micro_batches, Ranks ranks) const {
  const OfWeights<double>& w = weights.drawn_ps;
  double each = body.drawn_ps + w.gather_forward + w.gather_backward;
  double once = w.zero_gradient + w.sync_last + w.update;
  (weights.form->reduces_per_micro_batch ? each : once) += w.sync;
  return std::llround(weight_of(ranks) * (real(micro_batches) * each + once));
}

std::int64_t EnergyPrices::least_energy_ps(const BodyTimes& body, std::int64_t micro_batches,
                                           Ranks ranks) const {
  return std::llround(weight_of(ranks) * (real(micro_batches) * body.drawn_ps));
}

double TemplateForm::drawn_ps(std::int64_t b, const WeightBytes& weights, Ranks ranks,
                              OperationPrices& prices, const EnergyPrices& energy) const {
  const topologies::Topology& topology = prices.cost().topology();
  const Ranks part = slowest(b, weights, ranks, prices);
  const DeviceKinds kinds = prices.cost().kinds_of(part.first, part.count);
  double sum = 0;
  for (const Step& s : steps_) {
    if (s.data_stream || s.moves) continue;
    const std::int64_t ps = step_ps(s, b, weights, part, ranks, kinds, prices);
    switch (s.kind) {
      case plan::OpKind::kCompute: {
        model::SegmentShape shape = prices.shape_of(s.shape).of_sequences(b);
        if (s.zeroes_part_of >= 0)
          shape.elements =
              weights.part[as_index(s.zeroes_part_of)] / model::element_bytes(shape.dtype);
        if (ps > 0) sum += energy.compute_ps(shape, s.phase, ps, ranks);
        break;
      }
      case plan::OpKind::kCollective:
        sum += energy.communication_ps(leaves_host(topology, part.first, s.group), ps);
        break;
      case plan::OpKind::kExchange: {
        bool leaves = false;
        for (const auto* peers : {&s.sends, &s.receives})
          for (const int peer : *peers)
            leaves = leaves || leaves_host(topology, part.first, part.first + peer);
        sum += energy.communication_ps(leaves, ps);
        break;
      }
      case plan::OpKind::kCopy: break;
    }
  }
  return sum;
}

}  // namespace orrery::costmodel

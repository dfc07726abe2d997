#pragma once
/// \file
/// The parts of a layer that are lowered and priced by themselves, and how they make its cost.
#include <cstdint>
#include <utility>

#include "costmodel/closed_form/closed_form.h"
#include "costmodel/closed_form/layer_form.h"
#include "plan/lowering/lower.h"

namespace orrery::costmodel {

/// Of each template of a layer that serves its weights.
template <class T>
struct OfWeights {
  T gather_forward{}, gather_backward{}, zero_gradient{}, sync{}, sync_last{}, update{};
  auto each(const auto& f) const {
    return OfWeights<decltype(f(sync))>{f(gather_forward), f(gather_backward), f(zero_gradient),
                                        f(sync),           f(sync_last),       f(update)};
  }
};
/// Of each template that computes, and of what is copied back in front of the backward.
template <class T>
struct OfBody {
  T forward{}, backward{}, weight{}, copy_in{};
  auto each(const auto& f) const {
    return OfBody<decltype(f(weight))>{f(forward), f(backward), f(weight), f(copy_in)};
  }
};

/// What serves a layer's weights, under one way of sharding.
struct WeightForm {
  OfWeights<TemplateForm> forms;
  OfWeights<plan::TemplateMemory> memory;
  WeightBytes bytes;
  // of `bytes`, of its parts alone: names in a key
  std::uint64_t bytes_number = 0, parts_number = 0;
  std::int64_t persistent_bytes = 0;
  bool reduces_per_micro_batch = false;
  std::int64_t states_bytes = 0;  // that the update copies to the device
  bool updates_in_turn = false;   // the copy waits for what nothing runs beside

  WeightForm() = default;
  WeightForm(const plan::LayerTemplates& t, OperationPrices& prices);
};

struct BodyForm {
  OfBody<TemplateForm> forms;
  bool splits = false;
  std::uint64_t number = 0;  // of those whose weights are symbolic: names it in a key
  BodyForm() = default;
  BodyForm(const plan::LayerTemplates& t, bool symbolic_weights, OperationPrices& prices);
};

/// What they take, on some ranks; where energy is minimised, what they draw (layer_energy.h).
struct BodyTimes : OfBody<TemplateForm::Times> {
  double drawn_ps = 0;
};
struct BodyMemory : OfBody<plan::TemplateMemory> {
  std::int64_t copied_bytes = 0;
};
BodyMemory memory_of(const BodyForm& body, std::int64_t b, const WeightBytes& bytes,
                     OperationPrices& prices);
struct WeightTimes {
  const WeightForm* form = nullptr;
  OfWeights<TemplateForm::Times> times;
  OfWeights<double> drawn_ps{};
};

/// The closed form of closed_form.h, LayerCost, from its parts.
LayerCost join(const CostModel& cost, const BodyForm& body, const BodyTimes& times,
               const BodyMemory& memory, const WeightTimes& weights);

}  // namespace orrery::costmodel

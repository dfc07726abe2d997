#include "costmodel/profiles/settings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"

namespace orrery::costmodel {

using enum base::ErrorCode;
using base::Setting;
using model::Framework;
using model::Profile;
using model::StepCommunication;

namespace {

using Number = std::pair<std::string, double*>;

std::vector<Number> numbers_of(Profile& p) {
  std::vector<Number> numbers{{"composition_factor", &p.composition_factor},
                              {"device_deviation", &p.device_deviation},
                              {"overlap_slowdown", &p.overlap_slowdown},
                              {"factor", &p.step_communication.factor},
                              {"issue_seconds", &p.step_communication.issue_seconds},
                              {"fabric_share", &p.step_communication.fabric_share}};
  if (!p.framework) return numbers;
  Framework& f = *p.framework;
  numbers.insert(numbers.end(), {{"kernel_seconds", &f.kernel_seconds},
                                 {"loss_passes", &f.loss_passes},
                                 {"norm_passes", &f.norm_passes},
                                 {"activation_passes", &f.activation_passes},
                                 {"rotary_passes", &f.rotary_passes},
                                 {"expert_bias_bytes", &f.expert_bias_bytes},
                                 {"expert_bias_gradient_bytes", &f.expert_bias_gradient_bytes},
                                 {"clamp_bytes", &f.clamp_bytes},
                                 {"clamp_gradient_bytes", &f.clamp_gradient_bytes},
                                 {"gradient_bytes", &f.gradient_bytes},
                                 {"gather_copies", &f.gather_copies},
                                 {"reduce_copies", &f.reduce_copies},
                                 {"loss_bytes", &f.loss_bytes},
                                 {"reserved_share", &f.reserved_share},
                                 {"driver_share", &f.driver_share},
                                 {"context_bytes", &f.context_bytes},
                                 {"communicator_bytes", &f.communicator_bytes}});
  return numbers;
}

base::Result<void> apply_one(const Setting& setting, std::span<const Number> numbers) {
  const auto number = std::ranges::find(numbers, setting.field, &Number::first);
  if (number == numbers.end()) {
    std::vector<std::string> names;
    for (const Number& n : numbers) names.push_back(n.first);
    return base::fail(
        base::make_error(kNotFound, "'{}': software has no '{}'", setting.text(), setting.field)
            .with_hint(base::did_you_mean(setting.field, names, "fields")));
  }
  const auto factor = setting.factor();
  const auto stated =
      factor ? std::optional(*factor * *number->second) : base::parse_real(setting.value);
  if (!stated)
    return base::fail(kBadValue, "'{}': expected a number or a factor as 2x", setting.text());
  if (*stated < 0)
    return base::fail(kOutOfRange, "'{}': expected a number above zero", setting.text());
  *number->second = *stated;
  return {};
}

/// What the profile measured in the place of the number that is set.
const char* hidden_by(const Profile& p, const Setting& setting) {
  const std::string& field = setting.field;
  const bool speed = field.starts_with("peak_") || field == "memory_bandwidth" ||
                     field == "launch_overhead" || field == "power";
  if (speed && (!p.operators.empty() || !p.layers.empty())) return "operations";
  const bool link = field.ends_with("bandwidth") || field.ends_with("latency");
  return link && !speed && !p.collectives.empty() ? "collectives" : nullptr;
}

}  // namespace

base::Result<void> apply_settings(Profile& profile, std::span<const Setting> settings) {
  for (Profile& kind : profile.kinds) TRY_VOID(apply_settings(kind, settings));
  const std::vector<Number> numbers = numbers_of(profile);
  base::ErrorSink sink;
  for (const Setting& setting : settings) {
    if (setting.part == kSoftwarePart) {
      if (auto applied = apply_one(setting, numbers); !applied)
        sink.add(std::move(applied).error());
    } else if (const char* measured = hidden_by(profile, setting)) {
      sink.add(base::make_error(kUsage, "'{}' has no effect: profile '{}' has measured {}",
                                setting.text(), profile.name, measured)
                   .with_hint("leave --profile out"));
    }
  }
  return sink.result();
}

}  // namespace orrery::costmodel

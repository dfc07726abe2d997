#include "topologies/import/settings.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/numbers.h"
#include "base/text.h"

namespace orrery::topologies {

using enum base::ErrorCode;
using base::Result;
using base::Setting;

namespace {

struct Capacity {
  int64_t* bytes_per_second;
};
struct Memory {
  int64_t* bytes;
};

/// One number of the file, by the two names under which a setting finds it.
struct Number {
  std::string part, field;
  std::variant<base::FlopsPerSecond*, base::BytesPerSecond*, base::Seconds*, base::Watts*, double*,
               Capacity, Memory>
      at;
};

void list_device(const std::string& part, DeviceModel& m, std::vector<Number>& numbers) {
  numbers.insert(numbers.end(), {{part, "peak_fp32", &m.peak_fp32},
                                 {part, "peak_bf16", &m.peak_bf16},
                                 {part, "peak_fp8", &m.peak_fp8},
                                 {part, "peak_fp4", &m.peak_fp4},
                                 {part, "memory_bandwidth", &m.memory_bandwidth},
                                 {part, "memory", Memory{&m.memory_bytes}},
                                 {part, "launch_overhead", &m.launch_overhead},
                                 {part, "power", &m.power}});
}

void list_fabric(FabricSpec& f, std::vector<Number>& numbers) {
  for (const std::string& part : std::set{std::string("fabric"), f.kind}) {
    numbers.push_back({part, "bandwidth", Capacity{&f.bytes_per_second}});
    numbers.push_back({part, "latency", &f.latency});
  }
  numbers.push_back({"fabric", "switch_latency", &f.switch_latency});
  numbers.push_back({"fabric", "oversubscription", &f.oversubscription});
  if (f.paths == PathChoice::kHashed) numbers.push_back({"fabric", "queue_pairs", &f.queue_pairs});
  numbers.push_back({"fabric", "local_bandwidth", Capacity{&f.local_bytes_per_second}});
  numbers.push_back({"fabric", "global_bandwidth", Capacity{&f.global_bytes_per_second}});
}

std::vector<Number> numbers_of(TopologyFile& file) {
  std::vector<Number> numbers;
  for (DeviceModel& model : file.models)
    for (const std::string& part : std::set{std::string("device"), model.name})
      list_device(part, model, numbers);
  for (HostKind& kind : file.kinds)
    for (LinkGroup& link : kind.links) {
      numbers.push_back({link.kind, "bandwidth", Capacity{&link.bytes_per_second}});
      numbers.push_back({link.kind, "latency", &link.latency});
    }
  if (file.fabric) list_fabric(*file.fabric, numbers);
  return numbers;
}

Result<base::FlopsPerSecond> parse(const std::string& text, base::FlopsPerSecond) {
  return base::parse_flops_rate(text);
}
Result<base::BytesPerSecond> parse(const std::string& text, base::BytesPerSecond) {
  return base::parse_bandwidth(text);
}
Result<base::Seconds> parse(const std::string& text, base::Seconds) {
  return base::parse_seconds(text);
}
Result<base::Watts> parse(const std::string& text, base::Watts) { return base::parse_power(text); }
Result<double> parse(const std::string& text, double) {
  const auto number = base::parse_real(text);
  if (!number) return base::fail(kBadValue, "expected a number or a factor as 2x");
  return *number;
}

/// What a number is in SI after a setting.
template <class Q>
Result<double> changed(const Setting& setting, double now, Q unit) {
  if (const auto factor = setting.factor()) return now * *factor;
  TRY(const Q value, parse(setting.value, unit));
  if constexpr (std::is_same_v<Q, double>)
    return value;
  else
    return value.raw();
}

Result<void> check(double value, double low, double high) {
  if (value >= low && value <= high) return {};
  return base::fail(kOutOfRange, "{} is outside {} .. {}", value, low, high);
}

struct Change {
  const Setting& setting;

  template <class Q>
  Result<void> operator()(Q* number) const {
    TRY(const double value, changed(setting, number->raw(), Q()));
    constexpr bool delay = std::is_same_v<Q, base::Seconds>;
    TRY_VOID(check(value, 0, delay ? 1 : 1e30));
    *number = Q(value);
    return {};
  }
  Result<void> operator()(double* number) const {
    TRY(const double value, changed(setting, *number, double()));
    TRY_VOID(check(value, 1, 1000));  // of oversubscription, queue pairs
    *number = value;
    return {};
  }
  Result<void> operator()(Capacity c) const {
    TRY(const double rate, changed(setting, real(*c.bytes_per_second), base::BytesPerSecond()));
    if (rate == 0 && *c.bytes_per_second == 0) return {};
    TRY_VOID(check(rate, 1, 9e15));
    *c.bytes_per_second = std::llround(rate);
    return {};
  }
  Result<void> operator()(Memory m) const {
    TRY(const double bytes, [&]() -> Result<double> {
      if (const auto factor = setting.factor()) return real(*m.bytes) * *factor;
      TRY(const base::Bytes stated, base::parse_bytes(setting.value));
      return stated.raw();
    }());
    TRY_VOID(check(bytes, 1, 9e15));
    *m.bytes = std::llround(bytes);
    return {};
  }
};

std::vector<std::string> distinct(std::vector<std::string> names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

base::Diagnostic not_found(const Setting& setting, const std::vector<Number>& numbers,
                           const std::string& topology) {
  std::vector<std::string> parts, fields;
  for (const Number& n : numbers) {
    parts.push_back(n.part);
    if (n.part == setting.part) fields.push_back(n.field);
  }
  if (fields.empty())
    return base::make_error(kNotFound, "'{}': topology '{}' has no '{}' to set", setting.text(),
                            topology, setting.part)
        .with_hint(base::did_you_mean(setting.part, distinct(std::move(parts)), "parts"));
  return base::make_error(kNotFound, "'{}': '{}' has no '{}'", setting.text(), setting.part,
                          setting.field)
      .with_hint(base::did_you_mean(setting.field, distinct(std::move(fields)), "fields"));
}

}  // namespace

Result<void> apply_settings(TopologyFile& file, std::span<const Setting> settings) {
  const std::vector<Number> numbers = numbers_of(file);
  base::ErrorSink sink;
  for (const Setting& setting : settings) {
    bool found = false;
    for (const Number& n : numbers) {
      if (n.part != setting.part || n.field != setting.field) continue;
      found = true;
      const auto result = std::visit(Change{setting}, n.at);
      if (result) continue;
      for (base::Diagnostic d : result.error()) {
        d.message = fmt::format("'{}': {}", setting.text(), d.message);
        sink.add(std::move(d));
      }
      break;
    }
    if (!found) sink.add(not_found(setting, numbers, file.name));
  }
  return sink.result();
}

}  // namespace orrery::topologies

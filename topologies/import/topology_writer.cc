#include "topologies/import/topology_writer.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"

namespace orrery::topologies {

namespace {

using enum VertexKind;

/// A JSON text is also a YAML text.
std::string json_text(const std::string& text) {
  return base::Json(text).dump(-1, ' ', false, base::Json::error_handler_t::replace);
}

/// "25 GB/s", "31.508 GB/s": exact, for capacities are whole bytes per second.
std::string rate(int64_t bytes_per_second) {
  constexpr int64_t kGiga = 1'000'000'000;
  std::string fraction = fmt::format("{:09}", bytes_per_second % kGiga);
  fraction.erase(fraction.find_last_not_of('0') + 1);
  return fmt::format("{}{}{} GB/s", bytes_per_second / kGiga, fraction.empty() ? "" : ".",
                     fraction);
}

/// To far less than the simulator's picosecond.
std::string delay(base::Seconds seconds) { return fmt::format("{:.12g} us", seconds.raw() * 1e6); }

std::string part_of(const HostKind& host, uint32_t vertex) {
  for (const PartGroup& part : host.parts) {
    if (vertex < part.first || vertex >= part.first + part.count) continue;
    return part.count == 1 ? part.name : fmt::format("{}[{}]", part.name, vertex - part.first);
  }
  ORRERY_CHECK(false, "vertex {} is in no part", vertex);
}

/// "    power: 400 W"; nothing where it is not stated.
std::string power(const char* key, base::Watts watts) {
  return watts.raw() > 0 ? fmt::format("{}: {} W\n", key, watts.raw()) : "";
}

std::string write_models(const TopologyFile& file) {
  std::string out = "device_models:\n";
  const auto peak = [](const char* key, base::FlopsPerSecond rate) {
    return rate.raw() > 0 ? fmt::format("    {}: {} FLOP/s\n", key, rate.raw()) : "";
  };
  for (const DeviceModel& m : file.models) {
    out += fmt::format(
        "  - name: {}\n    peak_fp32: {} FLOP/s\n    peak_bf16: {} FLOP/s\n{}{}    "
        "memory_bandwidth: "
        "{} B/s\n    memory: {} B\n"
        "    launch_overhead: {}\n{}    source: {}\n",
        json_text(m.name), m.peak_fp32.raw(), m.peak_bf16.raw(), peak("peak_fp8", m.peak_fp8),
        peak("peak_fp4", m.peak_fp4), m.memory_bandwidth.raw(), m.memory_bytes,
        delay(m.launch_overhead),
        power("    power", m.power) + power("    idle_power", m.idle_power), json_text(m.source));
  }
  return out;
}

std::string write_host(const TopologyFile& file) {
  const HostKind& host = file.kinds.front();
  std::string out = fmt::format("host:\n  source: {}\n", json_text(file.source));
  if (host.power.raw() > 0)
    out += power("  host_power", host.power) +
           fmt::format("  power_source: {}\n", json_text(host.power_source));
  const auto list = [&](std::string_view key, VertexKind kind) {
    std::string entries;
    for (const PartGroup& part : host.parts) {
      if (part.kind != kind) continue;
      const std::string model =
          kind == kDevice ? fmt::format(", model: {}", json_text(file.models[part.model].name))
                          : "";
      entries += fmt::format("    - {{name: {}{}, count: {}}}\n", part.name, model, part.count);
    }
    if (!entries.empty()) out += fmt::format("  {}:\n{}", key, entries);
  };
  list("devices", kDevice);
  list("switches", kSwitch);
  list("host_bridges", kHostBridge);
  list("nics", kNic);
  if (!host.links.empty()) out += "  links:\n";
  for (const LinkGroup& group : host.links) {
    for (const auto& [from, to] : group.ends) {
      out += fmt::format(
          "    - {{from: \"{}\", to: \"{}\", kind: {}, bandwidth_per_direction: {}, latency: {}, "
          "source: {}}}\n",
          part_of(host, from), part_of(host, to), json_text(group.kind),
          rate(group.bytes_per_second), delay(group.latency), json_text(group.source));
    }
  }
  return out;
}

std::string write_references(const TopologyFile& file) {
  std::string out = "hosts:\n";
  for (const HostReference& reference : file.references) {
    out += fmt::format("  - {{type: {}, count: {}}}\n", json_text(reference.type), reference.count);
  }
  return out;
}

std::string write_fabric(const FabricSpec& spec) {
  ORRERY_CHECK(spec.shape == FabricShape::kSwitch || spec.shape == FabricShape::kTree, "fabric {}",
               to_string(spec.shape));
  std::string out = fmt::format(
      "fabric:\n  name: {}\n  kind: {}\n  bandwidth_per_direction: {}\n  latency: {}\n",
      json_text(spec.name), json_text(spec.kind), rate(spec.bytes_per_second), delay(spec.latency));
  out += power("  device_power", spec.device_power);
  if (spec.shape == FabricShape::kSwitch) return out;
  out +=
      fmt::format("  shape: tree\n  switch_latency: {}\n  switches:\n", delay(spec.switch_latency));
  for (uint32_t s = 0; s < spec.tree.size(); ++s) {
    std::string below;
    for (const TreeSwitch& child : spec.tree) {
      if (child.parent == s) below += (below.empty() ? "" : ", ") + json_text(child.name);
    }
    out += fmt::format("    - {{name: {}", json_text(spec.tree[s].name));
    if (spec.tree[s].hosts > 0) out += fmt::format(", hosts: {}", spec.tree[s].hosts);
    if (!below.empty()) out += fmt::format(", switches: [{}]", below);
    if (spec.tree[s].parent != kNoSwitch)
      out += fmt::format(", uplink_bandwidth_per_direction: {}",
                         rate(spec.tree[s].uplink_bytes_per_second));
    out += "}\n";
  }
  return out;
}

/// Characters that JSON's strings may hold and YAML may not, as '?': U+007F to U+009F, the byte
/// order mark, U+FFFE and U+FFFF. @pre UTF-8.
std::string without_controls(std::string text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool c1 = byte(i) == 0xC2 && byte(i + 1) < 0xA0 && byte(i + 1) != 0x85;
    const bool mark = byte(i) == 0xEF && byte(i + 1) == 0xBB && byte(i + 2) == 0xBF;
    const bool none = byte(i) == 0xEF && byte(i + 1) == 0xBF && byte(i + 2) >= 0xBE;
    if (byte(i) == 0x7F) text[i] = '?';
    if (c1) text.replace(i, 2, "?");
    if (mark || none) text.replace(i, 3, "?");
  }
  return text;
}

}  // namespace

std::string write_topology(const TopologyFile& file, std::span<const std::string> notes) {
  std::string out;
  for (std::string note : notes) {
    for (char& c : note) c = c < ' ' || c > '~' ? ' ' : c;
    out += "# " + note + "\n";
  }
  out += fmt::format("schema: orrery.topology/1\nname: {}\ndescription: {}\n\n",
                     json_text(file.name), json_text(file.description));
  if (file.references.empty()) {
    ORRERY_CHECK(file.kinds.size() == 1);
    out += write_models(file) + "\n" + write_host(file);
  } else {
    out += write_references(file);
  }
  if (file.fabric) {
    std::string source = "imported";
    for (const std::string& note : file.source_notes) {
      if (note.starts_with("fabric: ")) source = note.substr(8);
    }
    out += "\n" + write_fabric(*file.fabric) + fmt::format("  source: {}\n", json_text(source));
  }
  return without_controls(std::move(out));
}

}  // namespace orrery::topologies

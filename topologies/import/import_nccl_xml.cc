// The XML that NCCL writes to NCCL_TOPO_DUMP_FILE and reads from NCCL_TOPO_FILE:
//
//     <system version="1">
//       <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
//         <pci busid="0000:0f:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
//           <pci busid="0000:10:00.0" ...>
//             <gpu dev="0" sm="90"> <nvlink target="0000:05:00.0" count="18" tclass="0x068000"/>
//             </gpu>
//           </pci>
//           <pci busid="0000:12:00.0" ...> <nic> <net name="mlx5_0" speed="400000"/> </nic> </pci>
//
// A cpu is a host bridge, a pci with pci below it a switch, a pci with a gpu or nic that device;
// speed and width of a pci are those of its link upwards. `speed` of a net is in Mb/s. tclass
// 0x068000 is an NVSwitch, else the target is a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <pugixml.hpp>

#include "base/numbers.h"
#include "base/text.h"
#include "topologies/import/host_sketch.h"
#include "topologies/import/import.h"

namespace orrery::topologies {

using enum base::ErrorCode;
using base::ErrorSink;

namespace {

constexpr int kMaxDepth = 32;
constexpr size_t kMaxParts = 4096;

/// Payload of one lane, bytes per second: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, then flits
/// of 242 in 256 bytes.
double lane_rate(double transfers) {
  const double code = transfers <= 5e9 ? 0.8 : transfers <= 32e9 ? 128.0 / 130 : 242.0 / 256;
  return transfers * code / 8;
}

/// What devices get between two sockets, NVIDIA/nccl@069a3d4 src/graph/topo.cc
/// ncclTopoGetInterCpuBw and topo.h.
double socket_rate(std::string_view vendor, long long family, long long model) {
  // Zen 5; Zen 3 and 4; before
  if (vendor == "AuthenticAMD") return family >= 0xbf ? 32e9 : family >= 0xaf ? 24e9 : 16e9;
  if (vendor == "GenuineIntel")
    return model >= 0xcf ? 40e9 : model >= 0x8f ? 22e9 : model >= 0x55 ? 10e9 : 6e9;
  return 6e9;
}

struct Gpu {
  uint32_t part = 0;
  long long dev = 0;
  long long sm = 0;
  std::string bus;
  pugi::xml_node node;
};

struct Port {
  uint32_t part = 0;
  double bytes_per_second = 0;
};

class XmlReader {
 public:
  XmlReader(std::string_view text, std::string_view file, ErrorSink& sink)
      : buffer_(text), file_(file), sink_(sink) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') line_starts_.push_back(i + 1);
    }
  }

  void read() {
    pugi::xml_document document;
    // The parser writes into the buffer, so names stay at their places.
    const pugi::xml_parse_result parsed =
        document.load_buffer_inplace(buffer_.data(), buffer_.size());
    if (!parsed)
      return sink_.error(place(as_index(parsed.offset)), kParse, "{}", parsed.description());
    const pugi::xml_node system = document.child("system");
    if (!system)
      return sink_.error(place(0), kParse, "no element 'system': this is no topology of NCCL");
    for (const pugi::xml_node cpu : system.children("cpu")) read_cpu(cpu);
    join_sockets();
    if (gpus_.empty()) sink_.error(place_of(system), kInconsistent, "no GPU in the topology");
    join_nvlinks();
  }

  HostSketch host;
  std::vector<std::string> notes;
  std::vector<Port> ports;
  size_t gpu_count() const { return gpus_.size(); }

 private:
  base::SourceSpan place(size_t offset) const {
    const auto after = std::ranges::upper_bound(line_starts_, offset);
    return {std::string(file_), as_u32(after - line_starts_.begin()),
            as_u32(offset - *(after - 1) + 1)};
  }
  base::SourceSpan place_of(const pugi::xml_node& node) const {
    return place(as_index(std::max<std::ptrdiff_t>(node.offset_debug(), 0)));
  }
  base::SourceSpan place_of(const pugi::xml_attribute& attribute) const {
    return place(as_index(attribute.name() - buffer_.data()));
  }

  /// An integer attribute, decimal or 0x...; nothing when it is absent. A malformed one is a fault.
  std::optional<long long> integer(const pugi::xml_node& node, const char* name) {
    const pugi::xml_attribute attribute = node.attribute(name);
    if (!attribute) return std::nullopt;
    const std::string_view text = attribute.value();
    if (text.starts_with("0x") && text.size() > 2 && text.size() <= 10 &&
        text.find_first_not_of("0123456789abcdefABCDEF", 2) == std::string_view::npos) {
      return std::stoll(std::string(text.substr(2)), nullptr, 16);
    }
    const auto value = base::parse_integer(text);
    if (!value) sink_.error(place_of(attribute), kBadValue, "{}=\"{}\" is no integer", name, text);
    return value;
  }

  long long required(const pugi::xml_node& node, const char* name, long long least,
                     long long most) {
    if (!node.attribute(name)) {
      sink_.error(place_of(node), kMissingKey, "element '{}' has no attribute '{}'", node.name(),
                  name);
      return least;
    }
    const auto value = integer(node, name);
    if (value && (*value < least || *value > most)) {
      sink_.error(place_of(node.attribute(name)), kOutOfRange, "{}={} is outside {} .. {}", name,
                  *value, least, most);
    }
    return std::clamp(value.value_or(least), least, most);
  }

  /// A new part, while there are not too many.
  std::optional<uint32_t> add(const pugi::xml_node& node, VertexKind kind, const char* name) {
    if (++parts_ <= kMaxParts) return host.add(kind, name);
    if (parts_ == kMaxParts + 1)
      sink_.error(place_of(node), kOutOfRange, "more than {} parts", kMaxParts);
    return std::nullopt;
  }

  void read_cpu(const pugi::xml_node& node) {
    const auto cpu = add(node, VertexKind::kHostBridge, "cpu");
    if (!cpu) return;
    const auto family = integer(node, "familyid"), model = integer(node, "modelid");
    const double rate =
        socket_rate(node.attribute("vendor").value(), family.value_or(0), model.value_or(0));
    sockets_.push_back({*cpu, rate});
    for (const pugi::xml_node child : node.children()) read_child(child, *cpu, 0);
  }

  void read_child(const pugi::xml_node& node, uint32_t above, int depth) {
    const std::string_view name = node.name();
    if (node.type() != pugi::node_element) return;
    if (name == "pci") return read_pci(node, above, depth);
    if (name == "nic" || name == "net") return read_nic(node, above, link_rate(node.parent()));
    if (name == "nvlink" || name == "c2c" || name == "pcilink" || name == "gpu") return;
    const std::vector<std::string> names = {"pci", "gpu", "nic", "net", "nvlink"};
    sink_.add(base::make_error(kUnknownKey, "unknown element '{}'", name)
                  .at(place_of(node))
                  .with_hint(base::did_you_mean(name, names, "elements")));
  }

  /// Rate of a pci's link upwards; NCCL takes PCIe 3.0 x16 where the system does not say.
  int64_t link_rate(const pugi::xml_node& pci) {
    const std::string_view speed = pci.attribute("link_speed").value();
    const auto gigatransfers = base::parse_real(speed.substr(0, speed.find(' ')));
    const auto width = pci.attribute("link_width") ? integer(pci, "link_width") : std::nullopt;
    if (!gigatransfers || *gigatransfers <= 0 || *gigatransfers > 1000 || !width || *width < 1 ||
        *width > 64) {
      if (!assumed_) notes.push_back("a PCIe link without speed or width is taken as PCIe 3.0 x16");
      assumed_ = true;
      return static_cast<int64_t>(16 * lane_rate(8e9));
    }
    return static_cast<int64_t>(real(*width) * lane_rate(*gigatransfers * 1e9));
  }

  void read_pci(const pugi::xml_node& node, uint32_t above, int depth) {
    if (depth > kMaxDepth)
      return sink_.error(place_of(node), kOutOfRange, "PCIe elements nest deeper than {}",
                         kMaxDepth);
    const int64_t rate = link_rate(node);
    if (const pugi::xml_node gpu = node.child("gpu")) return read_gpu(node, gpu, above, rate);
    if (node.child("nic") || node.child("net")) {
      for (const pugi::xml_node child : node.children()) {
        if (std::string_view(child.name()) == "nic" || std::string_view(child.name()) == "net")
          read_nic(child, above, rate);
      }
      return;
    }
    if (!node.child("pci")) return;  // a device without ports
    const auto part = add(node, VertexKind::kSwitch, "pcie");
    if (!part) return;
    host.join(*part, above, "pcie", rate, kPcieHop, kSource);
    for (const pugi::xml_node child : node.children()) read_child(child, *part, depth + 1);
  }

  void read_gpu(const pugi::xml_node& pci, const pugi::xml_node& gpu, uint32_t above,
                int64_t rate) {
    const long long dev = required(gpu, "dev", 0, 1023);
    const std::string bus = base::to_lower(pci.attribute("busid").value());
    for (const Gpu& other : gpus_) {
      if (other.dev == dev) sink_.error(place_of(gpu), kInconsistent, "two GPUs have dev={}", dev);
      if (!bus.empty() && other.bus == bus)
        sink_.error(place_of(pci), kInconsistent, "two GPUs have busid={}", bus);
    }
    pending_.push_back({above, rate});
    gpus_.push_back({0, dev, integer(gpu, "sm").value_or(0), bus, gpu});
  }

  void read_nic(const pugi::xml_node& node, uint32_t above, int64_t rate) {
    std::vector<pugi::xml_node> nets;
    if (std::string_view(node.name()) == "net") nets.push_back(node);
    for (const pugi::xml_node net : node.children("net")) nets.push_back(net);
    for (const pugi::xml_node& net : nets) {
      const auto part = add(net, VertexKind::kNic, "nic");
      if (!part) return;
      host.join(*part, above, "pcie", rate, kPcieHop, kSource);
      const long long megabits =
          net.attribute("speed") ? required(net, "speed", 1, 100'000'000) : 0;
      ports.push_back({*part, real(megabits) * 1e6 / 8});
    }
  }

  void join_sockets() {
    for (size_t a = 0; a < sockets_.size(); ++a) {
      for (size_t b = a + 1; b < sockets_.size(); ++b) {
        host.join(sockets_[a].first, sockets_[b].first, "smp",
                  static_cast<int64_t>(std::min(sockets_[a].second, sockets_[b].second)),
                  kSocketHop,
                  "what devices get between sockets, NVIDIA/nccl@069a3d4 src/graph/topo.h; latency "
                  "as in the catalog");
      }
    }
  }

  /// GPUs become devices in the order of dev; then their slots and NVLinks.
  void join_nvlinks() {
    std::vector<size_t> order;
    for (size_t i = 0; i < gpus_.size(); ++i) order.push_back(i);
    std::ranges::sort(order, [&](size_t a, size_t b) { return gpus_[a].dev < gpus_[b].dev; });
    std::map<std::string, size_t> by_bus;
    for (const size_t i : order) {
      const auto part = add(gpus_[i].node, VertexKind::kDevice, "gpu");
      if (!part) return;
      gpus_[i].part = *part;
      host.join(*part, pending_[i].first, "pcie", pending_[i].second, kPcieHop, kSource);
      by_bus.try_emplace(gpus_[i].bus, i);
    }
    std::optional<uint32_t> hub;
    for (const size_t i : order) {
      int64_t to_switch = 0;
      for (const pugi::xml_node link : gpus_[i].node.children("nvlink")) {
        const long long count = required(link, "count", 1, 1024);
        // 25 GB/s per direction for NVLink 2 to 4, 50 GB/s from Blackwell (sm 100), 20 GB/s on
        // Pascal (sm 60).
        const int64_t rate = count * (gpus_[i].sm >= 100  ? 50'000'000'000
                                      : gpus_[i].sm == 60 ? 20'000'000'000
                                                          : 25'000'000'000);
        const auto target = by_bus.find(base::to_lower(link.attribute("target").value()));
        if (integer(link, "tclass").value_or(0) == 0x068000) {
          to_switch += rate;
        } else if (target == by_bus.end()) {
          sink_.error(place_of(link), kNotFound, "NVLink to '{}', which is the busid of no GPU",
                      link.attribute("target").value());
        } else if (gpus_[target->second].dev > gpus_[i].dev) {
          host.join(gpus_[i].part, gpus_[target->second].part, "nvlink", rate, 2 * kNvlinkHop,
                    "NVLinks in NCCL's topology; 25 GB/s each (sm 60: 20, sm 100: 50)");
        }
      }
      if (to_switch == 0) continue;
      if (!hub) hub = host.add(VertexKind::kSwitch, "nvswitch");
      host.join(gpus_[i].part, *hub, "nvlink", to_switch, kNvlinkHop,
                "NVLinks in NCCL's topology, all NVSwitches as one; 25 GB/s each (sm 60: 20, sm "
                "100: 50)");
    }
  }

  static constexpr const char* kSource =
      "link_speed and link_width in NCCL's topology; latency as in the catalog";
  std::string buffer_;
  std::string_view file_;
  ErrorSink& sink_;
  std::vector<size_t> line_starts_ = {0};
  std::vector<Gpu> gpus_;
  std::vector<std::pair<uint32_t, int64_t>> pending_;  // [gpu] what is above it, and the rate
  std::vector<std::pair<uint32_t, double>> sockets_;
  size_t parts_ = 0;
  bool assumed_ = false;
};

}  // namespace

base::Result<Imported> import_nccl(std::string_view text, std::string_view file,
                                   const HostImport& known) {
  ErrorSink sink;
  XmlReader reader(text, file, sink);
  reader.read();
  if (!sink.ok()) return sink.result(Imported{});
  Imported imported;
  imported.notes = std::move(reader.notes);
  imported.file = {.name = known.name,
                   .description = fmt::format("{} x {}, from NCCL's topology", reader.gpu_count(),
                                              known.model.name),
                   .source = "NCCL topology XML",
                   .models = {known.model},
                   .kinds = {reader.host.finish()}};
  double slowest = 0, fastest = 0;
  for (const Port& port : reader.ports) {
    if (port.bytes_per_second <= 0) continue;
    slowest = slowest == 0 ? port.bytes_per_second : std::min(slowest, port.bytes_per_second);
    fastest = std::max(fastest, port.bytes_per_second);
  }
  if (slowest > 0) {
    imported.file.fabric = core_fabric(static_cast<int64_t>(slowest));
    imported.file.source_notes.push_back(
        "fabric: speed of the ports in NCCL's topology, fabric assumed non-blocking; latency as in "
        "the catalog");
    if (fastest > slowest)
      imported.notes.push_back("ports differ in speed: all cables are taken as the slowest");
  }
  return sink.result(std::move(imported));
}

}  // namespace orrery::topologies

#include "base/file.h"
#include "base/numbers.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "topologies/import/detect.h"
#include "topologies/import/import.h"
#include "topologies/import/topology_writer.h"
#include "topologies/picture/summary.h"
#include "topologies/picture/svg.h"

namespace orrery::cli {

using base::OptionType;

namespace {

std::string rate(double bytes_per_second) {
  return fmt::format("{}", base::BytesPerSecond(bytes_per_second));
}

Json summary_json(const Topology& t, const topologies::Summary& s) {
  Json json{{"schema", "orrery.topology_summary/1"},
            {"name", t.name()},
            {"hosts", t.hosts()},
            {"devices", t.device_count()},
            {"diameter_hops", s.diameter},
            {"bisection_bytes_per_second", s.bisection_bytes_per_second},
            {"bisection_method", s.bisection_method},
            {"fingerprint", t.fingerprint()},
            {"levels", json_list(s.levels,
                                 [](const topologies::Level& level) -> Json {
                                   const auto each = real(level.bytes_per_second);
                                   return {{"parts", level.parts},
                                           {"kind", level.kind},
                                           {"fabric", level.fabric},
                                           {"cables", level.cables},
                                           {"bytes_per_second", level.bytes_per_second},
                                           {"latency_seconds", level.latency.raw()},
                                           {"total_bytes_per_second", each * real(level.cables)}};
                                 })},
            {"tiers", json_list(s.tiers, [](const topologies::TierRatio& tier) -> Json {
               return {{"tier", tier.tier}, {"oversubscription", tier.ratio}};
             })}};
  if (s.injection_bytes_per_second)
    json["injection_bytes_per_second"] = *s.injection_bytes_per_second;
  if (s.oversubscription) json["oversubscription"] = *s.oversubscription;
  return json;
}

void print_summary(const Topology& t, const topologies::Summary& s) {
  std::string models;
  for (const topologies::DeviceModel& model : t.device_models())
    models += (models.empty() ? "" : ", ") + model.name;
  fmt::print("{}: {} host{}, {} devices ({})\n", t.name(), t.hosts(), t.hosts() == 1 ? "" : "s",
             t.device_count(), models);
  if (const topologies::ClusterShape* c = t.cluster(); c != nullptr && c->fabric) {
    const auto switches = c->fabric->switches().size();
    fmt::print("fabric {}: {}, {} switch{}, paths {}\n", c->spec.name, to_string(c->spec.shape),
               switches, switches == 1 ? "" : "es",
               c->spec.paths == topologies::PathChoice::kEcmp ? "hashed (ecmp)" : "fluid");
  }
  fmt::print("\n{:<28} {:<12} {:>10} {:>12} {:>12} {:>10}\n", "level", "kind", "cables", "each way",
             "all", "latency");
  for (const topologies::Level& level : s.levels) {
    const auto each = real(level.bytes_per_second);
    fmt::print("{:<28} {:<12} {:>10} {:>12} {:>12} {:>10}\n", level.parts, level.kind, level.cables,
               rate(each), rate(each * real(level.cables)), fmt::format("{}", level.latency));
  }
  fmt::print("\ndiameter          {} hops\n", s.diameter);
  if (s.bisection_bytes_per_second > 0)
    fmt::print("bisection         {}  ({})\n", rate(s.bisection_bytes_per_second),
               s.bisection_method);
  if (s.injection_bytes_per_second)
    fmt::print("injection         {} a host\n", rate(*s.injection_bytes_per_second));
  if (s.oversubscription) {
    fmt::print("oversubscription  {:.3g} : 1", *s.oversubscription);
    for (const topologies::TierRatio& tier : s.tiers)
      fmt::print("  ({} {:.3g} : 1)", tier.tier, tier.ratio);
    fmt::print("\n");
  }
}

void present(const Options& options, const Topology& topology, const topologies::Summary& summary) {
  if (options.flag("json"))
    print_json(summary_json(topology, summary));
  else
    print_summary(topology, summary);
}

Result<int> show(const Options& options) {
  if (!options.has("NAME|FILE"))
    return base::fail(kUsage, "show needs the name of a cluster or a topology file");
  TRY(const Topology topology, find_cluster(options.string("NAME|FILE"), options.count("hosts")));
  TRY_VOID(check_hosts(options, topology));
  const topologies::Summary summary = topologies::summarise(topology);
  if (options.has("svg"))
    TRY_VOID(
        base::write_file_atomic(options.string("svg"), topologies::draw_svg(topology, summary)));
  present(options, topology, summary);
  if (options.has("svg")) say("picture written to {}\n", options.string("svg"));
  return 0;
}

Result<std::int64_t> rate_option(const Options& options, const std::string& name) {
  if (!options.has(name)) return 0;
  auto rate = base::parse_bandwidth(options.string(name));
  if (rate && rate->raw() >= 1 && rate->raw() <= 9e15)
    return static_cast<std::int64_t>(rate->raw());
  if (rate)
    return base::fail(kOutOfRange, "--{} {} is outside 1 B/s .. 9000 TB/s", name,
                      options.string(name));
  return base::fail(std::move(rate).error());
}

Result<topologies::Imported> import_slurm_file(const Options& options, const std::string& text,
                                               const std::string& file) {
  if (!options.has("host"))
    return base::fail(kUsage, "topology.conf names nodes and not what they are: add --host");
  TRY(topologies::SlurmImport known, topologies::slurm_hosts(options.string("host")));
  known.name = options.string("name");
  known.oversubscription = options.real("oversubscription");
  return topologies::import_slurm(text, file, known);
}

Result<topologies::Imported> import_host_file(const Options& options, const std::string& text,
                                              const std::string& file) {
  if (!options.has("device"))
    return base::fail(kUsage, "the file does not say which GPUs these are: add --device");
  topologies::HostImport known{.name = options.string("name"), .model = {}};
  TRY(known.model, topologies::catalog_device_model(options.string("device")));
  TRY(known.pcie_bytes_per_second, rate_option(options, "pcie"));
  TRY(known.nvlink_bytes_per_second, rate_option(options, "nvlink"));
  TRY(known.socket_bytes_per_second, rate_option(options, "socket"));
  TRY(known.nic_bytes_per_second, rate_option(options, "nic"));
  return options.string("from") == "nccl" ? topologies::import_nccl(text, file, known)
                                          : topologies::import_nvidia_smi(text, file, known);
}

/// Writes the text to --out, or prints it; then what the file makes, as `show` would.
Result<int> deliver(const Options& options, const topologies::Imported& imported) {
  const std::string text = topologies::write_topology(imported.file, imported.notes);
  for (const std::string& note : imported.notes) say("note: {}\n", note);
  if (!options.has("out")) {
    fmt::print("{}", text);
    return 0;
  }
  TRY_VOID(base::write_file_atomic(options.string("out"), text));
  say("topology written to {}\n", options.string("out"));
  TRY(const Topology topology, topologies::load_topology(options.string("out")));
  present(options, topology, topologies::summarise(topology));
  return 0;
}

Result<int> import_topology(const Options& options) {
  if (!options.has("NAME|FILE") || !options.has("from"))
    return base::fail(kUsage, "import needs a file, and --from to say what it is");
  const std::string file = options.string("NAME|FILE");
  TRY(const std::string text, base::read_file(file));
  TRY(const topologies::Imported imported, options.string("from") == "slurm"
                                               ? import_slurm_file(options, text, file)
                                               : import_host_file(options, text, file));
  return deliver(options, imported);
}

Result<int> detect(const Options& options) {
  TRY(const topologies::Imported imported, topologies::detect_local());
  return deliver(options, imported);
}

Result<int> run(const Options& options, const Invocation&) {
  const std::string action = options.string("ACTION");
  if (action == "show") return show(options);
  if (action == "import") return import_topology(options);
  if (action == "detect") return detect(options);
  return refuse(kBadValue, "show, import or detect", "unknown action '{}'", action);
}

}  // namespace

Command topology_command() {
  return {
      {.name = "topology",
       .summary =
           "show a cluster's network, find this machine's, or read another tool's description",
       .examples = {{"orrery topology show h100-rail-optimised --hosts 64 --svg cluster.svg",
                     "levels, bisection, diameter, a picture"},
                    {"orrery topology import topo.txt --from nvidia-smi --device A100-SXM4-80GB "
                     "--out host.yaml",
                     "then --cluster host.yaml"},
                    {"orrery topology detect --out local.yaml", "this machine, to be edited"}},
       .positionals = {{.name = "ACTION",
                        .help = "what to do",
                        .choices = {"show", "import", "detect"}},
                       {.name = "NAME|FILE",
                        .help = "show: catalog cluster or topology file; import: the file to read",
                        .required = false}},
       .options =
           {hosts_option(),
            output_option("svg", "FILE", "show: draw it"),
            output_option("out", "FILE",
                          "import, detect: write the topology file (orrery.topology/1)"),
            choice_option("from", "KIND", {"nvidia-smi", "nccl", "slurm"},
                          "import: nvidia-smi topo -m, NCCL's XML, or topology.conf"),
            text_option("device", "NAME",
                        "import nvidia-smi, nccl: device of a catalog host, e.g. H100-SXM5-80GB"),
            text_option("host", "NAME|FILE", "import slurm: what every node is, e.g. dgx-h100"),
            text_option("name", "NAME", "import: the topology's name", "imported"),
            text_option("pcie", "RATE", "import nvidia-smi: a slot, one direction (PCIe 4.0 x16)",
                        "31.508GB/s"),
            text_option("nvlink", "RATE",
                        "import nvidia-smi: one NVLink, one direction (NVLink 5: 50GB/s)",
                        "25GB/s"),
            text_option("socket", "RATE", "import nvidia-smi: between NUMA nodes", "16GB/s"),
            text_option("nic", "RATE",
                        "import nvidia-smi: a card's cable, e.g. 400Gb/s; makes the fabric"),
            {.name = "oversubscription",
             .value_name = "R",
             .type = OptionType::kDouble,
             .default_value = "1",
             .min = 1,
             .max = 1000,
             .help = "import slurm: of every switch"},
            json_option()}},
      run};
}

}  // namespace orrery::cli

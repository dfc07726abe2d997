// Other tools' descriptions: what they make, and every fault with its place.
#include "topologies/import/import.h"

#include <gmock/gmock.h>

#include "fixture.h"
#include "topologies/import/detect.h"
#include "topologies/import/topology_writer.h"

namespace orrery::topologies {
namespace {

using testing::AllOf;
using testing::HasSubstr;

HostImport known() {
  return {.name = "host",
          .model = plain_model(),
          .pcie_bytes_per_second = 10,
          .nvlink_bytes_per_second = 100,
          .socket_bytes_per_second = 5,
          .nic_bytes_per_second = 7};
}

/// Written and read again.
Topology loaded(base::Result<Imported> imported, uint32_t hosts = 1) {
  const Imported i = expect_ok(std::move(imported));
  return expect_ok(parse_topology(write_topology(i.file, i.notes), "written.yaml", hosts));
}

template <class T>
std::string faults(const base::Result<T>& result) {
  return result ? "" : to_string(result.error());
}

constexpr const char* kMatrix =
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV2\tSYS\tPIX\tSYS\t0-31\t0\n"
    "GPU1\tNV2\t X \tSYS\tPXB\tSYS\t0-31\t0\n"
    "GPU2\tSYS\tSYS\t X \tSYS\tNODE\t32-63\t1\n"
    "NIC0\tPIX\tPXB\tSYS\t X \tSYS\t\t\n"
    "NIC1\tSYS\tSYS\tNODE\tSYS\t X \t\t\n\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: "
    "mlx5_0\n";

TEST(NvidiaSmi, MatrixBecomesATreeOfSwitchesAndSockets) {
  const Topology t = loaded(import_nvidia_smi(kMatrix, "topo.txt", known()), 2);
  EXPECT_EQ(t.devices_per_host(), 3u);
  EXPECT_EQ(describe(t, 0, 1), "0/gpu[0] > 0/gpu[1]");
  EXPECT_EQ(bottleneck_of(t, t.route(0, 1)), 200);
  EXPECT_EQ(describe(t, 0, 2), "0/gpu[0] > 0/pcie > 0/pcie_upper > 0/cpu[0] > 0/cpu[1] > 0/gpu[2]");
  EXPECT_EQ(describe(t, 1, 3),
            "0/gpu[1] > 0/pcie_upper > 0/pcie > 0/nic[0] > core > 1/nic[0] > 1/pcie > 1/gpu[0]");
  EXPECT_EQ(describe(t, 2, 5),
            "0/gpu[2] > 0/cpu[1] > 0/nic[1] > core > 1/nic[1] > 1/cpu[1] > 1/gpu[2]");
  EXPECT_EQ(bottleneck_of(t, t.route(2, 5)), 7);
}

TEST(NvidiaSmi, EqualNvlinksBeyondAGpusOwnAreASwitch) {
  std::string text = "     GPU0 GPU1 GPU2 CPU\n";
  for (int i = 0; i < 3; ++i)
    text += "GPU" + std::to_string(i) +
            (i == 0   ? " X NV12 NV12 0\n"
             : i == 1 ? " NV12 X NV12 0\n"
                      : " NV12 NV12 X 0\n");
  const Topology t = loaded(import_nvidia_smi(text, "topo.txt", known()));
  EXPECT_EQ(describe(t, 0, 2), "0/gpu[0] > 0/nvswitch > 0/gpu[2]");
  EXPECT_EQ(bottleneck_of(t, t.route(0, 2)), 1200);
}

TEST(NvidiaSmi, EveryFaultHasItsPlace) {
  EXPECT_THAT(faults(import_nvidia_smi("", "a", known())),
              HasSubstr("a:1:1: error[E0001]: no line begins with 'GPU0'"));
  EXPECT_THAT(faults(import_nvidia_smi(" GPU0 GPU1\nGPU0 X NVX\nGPU1 PIY X\n", "a", known())),
              AllOf(HasSubstr("a:2:8: error[E0014]: 'NVX' is no nearness; X, NV#, PIX"),
                    HasSubstr("a:3:6: error[E0014]: 'PIY'")));
  EXPECT_THAT(faults(import_nvidia_smi(" GPU0 GPU1\nGPU0 X PIX\n", "a", known())),
              HasSubstr("a:1:7: error[E0001]: the row of 'GPU1' is missing"));
  EXPECT_THAT(faults(import_nvidia_smi(" GPU0 GPU1\nGPU0 X PIX\nGPU1 SYS X\n", "a", known())),
              HasSubstr("a:3:6: error[E0006]: 'GPU1' to 'GPU0' is SYS, and back it is PIX"));
  EXPECT_THAT(
      faults(import_nvidia_smi(" GPU0 GPU1 GPU2\nGPU0 X PIX PIX\nGPU1 PIX X SYS\nGPU2 PIX SYS X\n",
                               "a", known())),
      HasSubstr("a:4:10: error[E0006]: 'GPU2' and 'GPU1' are SYS, but other cells put them nearer "
                "together"));
}

constexpr const char* kXml = R"(<system version="1">
  <cpu numaid="0" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:0f:00.0" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:10:00.0" link_speed="16.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="90"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:12:00.0" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="m" )"
                             R"(speed="400000"/></nic></pci>
    </pci>
  </cpu>
  <cpu numaid="1" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:80:00.0" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu>
    </pci>
  </cpu>
</system>)";

TEST(NcclXml, RatesComeFromLinkSpeedWidthAndCount) {
  const Topology t = loaded(import_nccl(kXml, "topo.xml", known()), 2);
  EXPECT_EQ(describe(t, 0, 1), "0/gpu[0] > 0/nvswitch > 0/gpu[1]");
  EXPECT_EQ(bottleneck_of(t, t.route(0, 1)), 18 * 25'000'000'000);
  EXPECT_EQ(describe(t, 1, 3), "0/gpu[1] > 0/pcie > 0/nic > core > 1/nic > 1/pcie > 1/gpu[1]");
  EXPECT_EQ(bottleneck_of(t, t.route(1, 3)), 15'753'846'153);  // 8 lanes of 16 GT/s * 128 / 130 / 8
  EXPECT_EQ(describe(t, 0, 3),
            "0/gpu[0] > 0/cpu[1] > 0/cpu[0] > 0/pcie > 0/nic > core > 1/nic > 1/pcie > 1/gpu[1]");
  EXPECT_EQ(t.link(t.route(0, 3)[1]).bytes_per_second, 22'000'000'000);  // two Sapphire Rapids
}

TEST(NcclXml, EveryFaultHasItsPlace) {
  EXPECT_THAT(faults(import_nccl("<system", "a", known())), HasSubstr("a:1:7: error[E0001]"));
  EXPECT_THAT(faults(import_nccl("", "a", known())), HasSubstr("error[E0001]"));
  EXPECT_THAT(faults(import_nccl("<graph/>", "a", known())), HasSubstr("no element 'system'"));
  EXPECT_THAT(faults(import_nccl("<system>\n<cpu><gpx/>\n<pci busid='1'><gpu/></pci>\n<pci "
                                 "busid='1'><gpu dev='x'/></pci></cpu></system>",
                                 "a", known())),
              AllOf(HasSubstr("a:2:7: error[E0002]: unknown element 'gpx'"),
                    HasSubstr("a:3:17: error[E0003]: element 'gpu' has no attribute 'dev'"),
                    HasSubstr("a:4:21: error[E0014]: dev=\"x\" is no integer"),
                    HasSubstr("two GPUs have busid=1")));
  EXPECT_THAT(faults(import_nccl("<system><cpu><pci><gpu dev='0'><nvlink target='9' "
                                 "count='1'/></gpu></pci></cpu></system>",
                                 "a", known())),
              HasSubstr("a:1:33: error[E0007]: NVLink to '9', which is the busid of no GPU"));
  std::string deep = "<system><cpu>";
  for (int i = 0; i < 5000; ++i) deep += "<pci>";
  for (int i = 0; i < 5000; ++i) deep += "</pci>";
  EXPECT_THAT(faults(import_nccl(deep + "</cpu></system>", "a", known())),
              HasSubstr("nest deeper than 32"));
}

SlurmImport nodes() {
  SlurmImport s = expect_ok(slurm_hosts("rtx-titan-pcie"));
  s.name = "cluster";
  s.oversubscription = 2;
  return s;
}

TEST(Slurm, SwitchesBecomeATree) {
  const Topology t =
      loaded(import_slurm("# tree\nSwitchName=a Nodes=n[01-03,7] LinkSpeed=1\r\nswitchname=b \\\n "
                          "nodes=x[1-2]y[1-2]\nSwitchName=top Switches=a,b\n"
                          "SwitchName=top2 Switches=top\n",
                          "t.conf", nodes()));
  EXPECT_EQ(t.hosts(), 8u);
}

TEST(Slurm, UplinksCarryTheCardsBelowOverTheOversubscription) {
  const Topology t = loaded(import_slurm(
      "SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=m[1-2]\nSwitchName=top Switches=a,b\n",
      "t.conf", nodes()));
  EXPECT_EQ(t.hosts(), 6u);
  const auto route = t.route(0, 8 * 5);
  EXPECT_THAT(describe(t, 0, 40), HasSubstr("0/nic > a > top > b > 5/nic"));
  EXPECT_EQ(t.link(route[4]).bytes_per_second, 4 * 12'500'000'000 / 2);
  EXPECT_EQ(t.link(route[5]).bytes_per_second, 2 * 12'500'000'000 / 2);
}

TEST(Slurm, NamesThatYamlCannotHoldAreWrittenSoThatItCan) {
  for (const char* odd : {"a\x7f", "a\xc2\x80", "a\xef\xbf\xbf", "a\xff", "a\x01"}) {
    const std::string text = fmt::format(
        "SwitchName={} Nodes=n[1-2]\nSwitchName=b Nodes=m[1-2]\nSwitchName=top Switches={},b\n",
        odd, odd);
    EXPECT_EQ(loaded(import_slurm(text, "t.conf", nodes())).hosts(), 4u);
  }
}

TEST(Slurm, EveryFaultHasItsPlace) {
  EXPECT_THAT(faults(import_slurm("", "a", nodes())),
              HasSubstr("a:1:1: error[E0001]: no line has a SwitchName"));
  EXPECT_THAT(faults(import_slurm(
                  "SwitchName=s Nodes=n[1-\nNodes=a\nSwitchName=t Nods=a Nodes=n[2-1]\nfoo\n", "a",
                  nodes())),
              AllOf(HasSubstr("a:1:24: error[E0001]"),
                    HasSubstr("a:2:1: error[E0003]: the line has no SwitchName"),
                    HasSubstr("a:3:14: error[E0002]: unknown key 'Nods'; did you mean 'nodes'?"),
                    HasSubstr("a:3:32: error[E0001]"),
                    HasSubstr("a:4:1: error[E0001]: 'foo' is no KEY=VALUE")));
  EXPECT_THAT(faults(import_slurm("SwitchName=s Nodes=n[1-99999]\n", "a", nodes())),
              HasSubstr("more than 65536 names"));
  EXPECT_THAT(faults(import_slurm("SwitchName=s Nodes=a\nSwitchName=t Nodes=a\n", "a", nodes())),
              HasSubstr("node 'a' hangs on two switches"));
  EXPECT_THAT(faults(import_slurm("SwitchName=s Nodes=a\nSwitchName=t Nodes=b\n", "a", nodes())),
              HasSubstr("a tree has one root"));
  EXPECT_THAT(faults(import_slurm("SwitchName=s Nodes=a Switches=t\nSwitchName=t Switches=s\n", "a",
                                  nodes())),
              HasSubstr("is above itself"));
}

TEST(Importers, SurviveEveryTruncation) {
  const std::string slurm = "SwitchName=leaf[0 Nodes=n[00-03]\nSwitchName=b Switches=leaf\n";
  for (size_t n = 0; n < std::string(kMatrix).size(); ++n)
    (void)import_nvidia_smi(std::string(kMatrix).substr(0, n), "a", known());
  for (size_t n = 0; n < std::string(kXml).size(); ++n)
    EXPECT_FALSE(import_nccl(std::string(kXml).substr(0, n), "a", known())) << n;
  for (size_t n = 0; n < slurm.size(); ++n) (void)import_slurm(slurm.substr(0, n), "a", nodes());
}

TEST(Detect, ProductsAreMatchedByFamilyAndMemory) {
  const std::vector<std::string> known_names = catalog_device_names();
  EXPECT_EQ(match_device("NVIDIA A100-SXM4-40GB", 40, known_names), "A100-SXM4-40GB");
  EXPECT_EQ(match_device("NVIDIA A100-SXM4-80GB", 80, known_names), "A100-SXM4-80GB");
  EXPECT_EQ(match_device("NVIDIA H200", 140.4, known_names), "H200-SXM5-141GB");
  EXPECT_EQ(match_device("NVIDIA H100 80GB HBM3", 79.6, known_names), "H100-SXM5-80GB");
  EXPECT_EQ(match_device("NVIDIA GeForce RTX 4090", 24, known_names), std::nullopt);
}

TEST(Detect, CoresBecomeDevices) {
  const LocalMachine machine{.cpu_name = "CPU \"x\"",
                             .cores = 3,
                             .cores_source = "test",
                             .hertz = 1e9,
                             .hertz_source = "test",
                             .instruction_set = "none",
                             .fp32_flop_per_cycle = 2,
                             .bf16_flop_per_cycle = 2,
                             .memory_bytes = 3'000};
  const Topology t = loaded(describe_cores(machine));
  EXPECT_EQ(t.device_count(), 3u);
  EXPECT_EQ(t.device_model(0).memory_bytes, 1'000);
  EXPECT_EQ(describe(t, 0, 2), "0/core[0] > 0/memory > 0/core[2]");
}

TEST(TopologyWriter, WhatIsReadAgainIsTheSame) {
  const Imported first = expect_ok(import_nccl(kXml, "topo.xml", known()));
  const std::string text = write_topology(first.file, first.notes);
  const auto file =
      expect_ok(read_topology_file(expect_ok(base::Node::parse_text(text, "a.yaml"))));
  EXPECT_EQ(write_topology(file, first.notes), text);
}

TEST(TopologyWriter, KeepsWhatHostsDevicesAndSwitchesDraw) {
  Imported first = expect_ok(import_nccl(kXml, "topo.xml", known()));
  first.file.models.front().power = base::Watts(700);
  first.file.models.front().idle_power = base::Watts(70);
  first.file.kinds.front().power = base::Watts(2400);
  first.file.kinds.front().power_source = "a meter";
  const std::string text = write_topology(first.file, first.notes);
  const auto file =
      expect_ok(read_topology_file(expect_ok(base::Node::parse_text(text, "a.yaml"))));
  EXPECT_EQ(file.models.front().idle_power, base::Watts(70));
  EXPECT_EQ(file.kinds.front().power, base::Watts(2400));
  EXPECT_EQ(file.kinds.front().power_source, "a meter");
}

}  // namespace
}  // namespace orrery::topologies

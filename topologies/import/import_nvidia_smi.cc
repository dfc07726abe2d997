// `nvidia-smi topo -m`: a matrix of nearness.
//
//             GPU0   GPU1   NIC0   CPU Affinity   NUMA Affinity
//     GPU0     X     NV12   PXB    0-31           0
//
// What two parts share, from near to far: PIX one PCIe switch, PXB several switches, PHB the host
// bridge, NODE the NUMA node, SYS nothing but the link between the sockets. NV# says how many
// NVLinks join two GPUs and hides their PCIe, which then follows from their cards and NUMA nodes.
// Each nearness is an equivalence, so its classes are the parts of a tree.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>

#include "base/numbers.h"
#include "base/text.h"
#include "topologies/import/host_sketch.h"
#include "topologies/import/import.h"
#include "topologies/import/text_lines.h"

namespace orrery::topologies {

using enum base::ErrorCode;
using base::ErrorSink;

namespace {

constexpr size_t kMaxParts = 512;
constexpr int kMostNvlinks = 18;  // of one GPU to date (H100, B200)
constexpr std::string_view kLatencies = "latencies as in the catalog, topologies/README.md";

enum Nearness : int { kPix = 0, kPxb, kPhb, kNode, kSys, kNvlink, kSelf };
constexpr std::array<std::string_view, 5> kNames = {"PIX", "PXB", "PHB", "NODE", "SYS"};

struct Cell {
  Nearness nearness = kSys;
  int nvlinks = 0;
  Word word;
};

struct Matrix {
  std::vector<Word> labels;
  std::vector<std::vector<Cell>> cells;        // [row][column]
  std::vector<std::optional<long long>> numa;  // [row]
  bool is_gpu(size_t i) const { return labels[i].text.starts_with("GPU"); }
  std::vector<size_t> gpus() const {
    std::vector<size_t> found;
    for (size_t i = 0; i < labels.size(); ++i) {
      if (is_gpu(i)) found.push_back(i);
    }
    return found;
  }
};

bool is_label(std::string_view word) {
  for (const std::string_view prefix : {"GPU", "NIC"}) {
    if (word.starts_with(prefix) && base::parse_integer(word.substr(3)).value_or(-1) >= 0)
      return true;
  }
  return word.starts_with("mlx") || word.starts_with("bnxt") || word.starts_with("efa") ||
         word.starts_with("rdma");
}

std::optional<Cell> parse_cell(const Word& word) {
  if (word.text == "X") return Cell{kSelf, 0, word};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (word.text == kNames[i]) return Cell{static_cast<Nearness>(i), 0, word};
  }
  if (word.text == "SOC") return Cell{kSys, 0, word};  // older drivers
  const auto links =
      word.text.starts_with("NV") ? base::parse_integer(word.text.substr(2)) : std::nullopt;
  if (links && *links >= 1 && *links <= 1024) return Cell{kNvlink, as_int(*links), word};
  return std::nullopt;
}

class MatrixReader {
 public:
  MatrixReader(std::string_view file, ErrorSink& sink) : file_(file), sink_(sink) {}

  Matrix read(std::string_view text) {
    const auto lines = words_of_lines(text);
    size_t at = 0;
    while (at < lines.size() && (lines[at].empty() || !lines[at].front().text.starts_with("GPU")))
      ++at;
    if (at == lines.size()) {
      sink_.error({std::string(file_), 1, 1}, kParse,
                  "no line begins with 'GPU0': this is no output of nvidia-smi topo -m");
      return {};
    }
    read_header(lines[at]);
    for (++at; at < lines.size() && matrix_.cells.size() < matrix_.labels.size(); ++at) {
      if (lines[at].empty()) continue;
      if (!is_label(lines[at].front().text)) break;
      read_row(lines[at]);
    }
    if (matrix_.cells.size() < matrix_.labels.size()) {
      const Word& missing = matrix_.labels[matrix_.cells.size()];
      sink_.error(missing.place(file_), kParse, "the row of '{}' is missing", missing.text);
    }
    return std::move(matrix_);
  }

 private:
  void read_header(const std::vector<Word>& words) {
    size_t i = 0;
    std::map<std::string_view, size_t> seen;
    for (; i < words.size() && is_label(words[i].text); ++i) {
      if (!seen.try_emplace(words[i].text, i).second)
        sink_.error(words[i].place(file_), kDuplicateKey, "column '{}' twice", words[i].text);
      matrix_.labels.push_back(words[i]);
    }
    if (matrix_.labels.size() > kMaxParts) {
      sink_.error(words[i - 1].place(file_), kOutOfRange, "{} columns are more than {}",
                  matrix_.labels.size(), kMaxParts);
      matrix_.labels.resize(kMaxParts);
    }
    for (; i < words.size(); ++i) has_numa_ = has_numa_ || words[i].text == "NUMA";
  }

  void read_row(const std::vector<Word>& words) {
    const size_t n = matrix_.labels.size();
    const Word& expected = matrix_.labels[matrix_.cells.size()];
    if (words.front().text != expected.text) {
      sink_.error(words.front().place(file_), kInconsistent, "row '{}' where '{}' is due",
                  words.front().text, expected.text);
    }
    std::vector<Cell>& row = matrix_.cells.emplace_back(n);
    for (size_t i = 0; i < n; ++i) {
      if (i + 1 >= words.size()) {
        sink_.error(words.back().place(file_), kParse, "row '{}' has {} cells of {}",
                    words.front().text, words.size() - 1, n);
        break;
      }
      const auto cell = parse_cell(words[i + 1]);
      if (cell) {
        row[i] = *cell;
      } else {
        sink_.add(base::make_error(kBadValue, "'{}' is no nearness", words[i + 1].text)
                      .at(words[i + 1].place(file_))
                      .with_hint("X, NV#, PIX, PXB, PHB, NODE or SYS"));
      }
    }
    // "CPU Affinity" has no blanks in it, so "NUMA Affinity" is the second word after the cells.
    matrix_.numa.push_back(
        has_numa_ && words.size() > n + 2 ? base::parse_integer(words[n + 2].text) : std::nullopt);
  }

  std::string_view file_;
  ErrorSink& sink_;
  Matrix matrix_;
  bool has_numa_ = false;
};

class Classes {
 public:
  explicit Classes(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), size_t{0}); }
  size_t find(size_t i) const {
    while (parent_[i] != i) i = parent_[i];
    return i;
  }
  void unite(size_t a, size_t b) {
    parent_[std::max(find(a), find(b))] = std::min(find(a), find(b));
  }

 private:
  std::vector<size_t> parent_;
};

/// Symmetry, the diagonal, NVLinks between GPUs only.
void check_matrix(const Matrix& m, std::string_view file, ErrorSink& sink) {
  for (size_t i = 0; i < m.labels.size(); ++i) {
    for (size_t j = 0; j < m.labels.size(); ++j) {
      const Cell& cell = m.cells[i][j];
      const base::SourceSpan place = cell.word.place(file);
      if ((cell.nearness == kSelf) != (i == j)) {
        sink.error(place, kInconsistent, "'{}' between '{}' and '{}'", cell.word.text,
                   m.labels[i].text, m.labels[j].text);
      } else if (j < i && (cell.nearness != m.cells[j][i].nearness ||
                           cell.nvlinks != m.cells[j][i].nvlinks)) {
        sink.error(place, kInconsistent, "'{}' to '{}' is {}, and back it is {}", m.labels[i].text,
                   m.labels[j].text, cell.word.text, m.cells[j][i].word.text);
      } else if (cell.nearness == kNvlink && !(m.is_gpu(i) && m.is_gpu(j))) {
        sink.error(place, kInconsistent, "{} joins '{}' and '{}', not two GPUs", cell.word.text,
                   m.labels[i].text, m.labels[j].text);
      }
    }
  }
  if (m.gpus().empty())
    sink.error({std::string(file), 1, 1}, kInconsistent, "no GPU in the matrix");
}

/// Classes of each nearness from PIX to NODE; a cell that two others contradict is a fault.
std::vector<Classes> nearness_classes(const Matrix& m, std::string_view file, ErrorSink& sink) {
  const size_t n = m.labels.size();
  std::vector<Classes> classes;
  for (int level = kPix; level <= kNode; ++level) {
    classes.emplace_back(level == kPix ? Classes(n) : classes.back());
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < i; ++j) {
        const bool same_node =
            level == kNode && m.numa[i] && m.numa[i] == m.numa[j] && m.cells[i][j].nearness != kSys;
        if (m.cells[i][j].nearness <= level || same_node) classes.back().unite(i, j);
      }
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Cell& cell = m.cells[i][j];
      if (cell.nearness > kSys || cell.nearness == kPix) continue;
      const auto& nearer = classes[as_index(cell.nearness) - 1];
      if (nearer.find(i) != nearer.find(j)) continue;
      sink.error(cell.word.place(file), kInconsistent,
                 "'{}' and '{}' are {}, but other cells put them nearer together", m.labels[i].text,
                 m.labels[j].text, cell.word.text);
    }
  }
  return classes;
}

/// The PCIe tree: a NUMA node is a host bridge, a class of several parts a switch below it.
void add_pcie(const Matrix& m, const std::vector<Classes>& classes,
              const std::vector<uint32_t>& parts, const HostImport& known, HostSketch& host) {
  const std::string source =
      fmt::format("nvidia-smi topo -m for who shares what; rate as given; {}", kLatencies);
  std::map<size_t, uint32_t> cpus;
  std::map<std::pair<size_t, size_t>, uint32_t> switches;  // level, class
  for (size_t i = 0; i < m.labels.size(); ++i) {
    const size_t node = classes[kNode].find(i);
    if (!cpus.contains(node)) cpus[node] = host.add(VertexKind::kHostBridge, "cpu");
  }
  const auto join = [&](uint32_t a, uint32_t b) {
    host.join(a, b, "pcie", known.pcie_bytes_per_second, kPcieHop, source);
  };
  for (size_t i = 0; i < m.labels.size(); ++i) {
    uint32_t below = parts[i];
    bool known_above = false;
    for (const size_t level : {size_t{kPix}, size_t{kPxb}}) {
      const size_t c = classes[level].find(i);
      std::vector<size_t> members;
      for (size_t j = 0; j < m.labels.size(); ++j) {
        if (classes[level].find(j) == c) members.push_back(j);
      }
      const bool several =
          level == kPix ? members.size() > 1 : std::ranges::any_of(members, [&](size_t j) {
            return classes[kPix].find(j) != classes[kPix].find(i);
          });
      if (!several) continue;
      const auto [at, fresh] = switches.try_emplace({level, c}, 0);
      if (fresh) at->second = host.add(VertexKind::kSwitch, level == kPix ? "pcie" : "pcie_upper");
      join(below, at->second);
      below = at->second;
      if (!fresh) {
        known_above = true;  // the switch has its own way up
        break;
      }
    }
    if (!known_above) join(below, cpus.at(classes[kNode].find(i)));
  }
  const std::string socket =
      "rate between sockets as given (nvidia-smi has none); latency as in the catalog";
  for (auto a = cpus.begin(); a != cpus.end(); ++a) {
    for (auto b = std::next(a); b != cpus.end(); ++b)
      host.join(a->second, b->second, "smp", known.socket_bytes_per_second, kSocketHop, socket);
  }
}

/// All pairs with the same NV# and more NVLinks than a GPU has: they end in a switch, for NV# is
/// then the GPU's own count.
void add_nvlinks(const Matrix& m, const std::vector<uint32_t>& parts, const HostImport& known,
                 HostSketch& host, std::vector<std::string>& notes) {
  const std::vector<size_t> gpus = m.gpus();
  if (gpus.size() < 2) return;
  const int first = m.cells[gpus[0]][gpus[1]].nvlinks;
  bool equal = first > 0;
  for (const size_t i : gpus) {
    for (const size_t j : gpus) equal = equal && (i == j || m.cells[i][j].nvlinks == first);
  }
  if (equal && first * as_int(gpus.size() - 1) > kMostNvlinks) {
    const std::string source =
        fmt::format("NV{} between all GPUs in nvidia-smi topo -m; rate of one NVLink as given; {}",
                    first, kLatencies);
    const uint32_t hub = host.add(VertexKind::kSwitch, "nvswitch");
    for (const size_t i : gpus)
      host.join(parts[i], hub, "nvlink", first * known.nvlink_bytes_per_second, kNvlinkHop, source);
    notes.push_back(
        fmt::format("NV{} between all {} GPUs is more than {} NVLinks each: taken as NVSwitch",
                    first, gpus.size(), kMostNvlinks));
    return;
  }
  for (const size_t i : gpus) {
    for (const size_t j : gpus) {
      if (j <= i || m.cells[i][j].nvlinks == 0) continue;
      const std::string source =
          fmt::format("NV{} in nvidia-smi topo -m; rate of one NVLink as given; {}",
                      m.cells[i][j].nvlinks, kLatencies);
      host.join(parts[i], parts[j], "nvlink", m.cells[i][j].nvlinks * known.nvlink_bytes_per_second,
                2 * kNvlinkHop, source);
    }
  }
}

}  // namespace

base::Result<Imported> import_nvidia_smi(std::string_view text, std::string_view file,
                                         const HostImport& known) {
  ErrorSink sink;
  const Matrix m = MatrixReader(file, sink).read(text);
  if (sink.ok()) check_matrix(m, file, sink);
  if (!sink.ok()) return sink.result(Imported{});
  const std::vector<Classes> classes = nearness_classes(m, file, sink);
  if (!sink.ok()) return sink.result(Imported{});

  HostSketch host;
  Imported imported;
  std::vector<uint32_t> parts;
  for (size_t i = 0; i < m.labels.size(); ++i) {
    parts.push_back(m.is_gpu(i) ? host.add(VertexKind::kDevice, "gpu")
                                : host.add(VertexKind::kNic, "nic"));
  }
  add_nvlinks(m, parts, known, host, imported.notes);
  add_pcie(m, classes, parts, known, host);
  imported.file = {.name = known.name,
                   .description = fmt::format("{} x {}, from nvidia-smi topo -m", m.gpus().size(),
                                              known.model.name),
                   .source = "nvidia-smi topo -m",
                   .models = {known.model},
                   .kinds = {host.finish()}};
  if (known.nic_bytes_per_second > 0 && host.count("nic") > 0) {
    imported.file.fabric = core_fabric(known.nic_bytes_per_second);
    imported.file.source_notes.push_back(fmt::format(
        "fabric: rate of a card as given, fabric assumed non-blocking; {}", kLatencies));
  } else if (host.count("nic") > 0) {
    imported.notes.push_back(
        "no rate of the network cards was given, so there is no fabric: one host only");
  }
  return sink.result(std::move(imported));
}

}  // namespace orrery::topologies

// topology.conf of Slurm's topology/tree, one switch per line (man 5 topology.conf):
//
//     SwitchName=leaf0 Nodes=node[000-031,040]   LinkSpeed=100
//     SwitchName=spine Switches=leaf[0-3]
//
// Names are host lists: a prefix, then numbers and ranges in brackets, several times; leading zeros
// count. Keys do not depend on case, '#' starts a comment, a backslash at the end joins the next
// line. LinkSpeed has no unit and is not used.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/numbers.h"
#include "base/text.h"
#include "topologies/fabric/fabric_tree.h"
#include "topologies/import/import.h"

namespace orrery::topologies {

using enum base::ErrorCode;
using base::ErrorSink;
using namespace base::literals;

namespace {

constexpr size_t kMaxNames = 65'536;
constexpr base::Seconds kSwitchHop = 0.2_us;

/// Names that a host list stands for, in order; nothing when it is malformed, with the offset of
/// the fault.
class HostList {
 public:
  explicit HostList(std::string_view text) : text_(text) {}

  std::optional<std::vector<std::string>> expand() {
    std::vector<std::string> names;
    while (at_ < text_.size()) {
      std::vector<std::string> item{""};
      if (text_[at_] == ',') return std::nullopt;
      while (at_ < text_.size() && text_[at_] != ',') {
        if (!extend(item)) return std::nullopt;
        if (item.size() + names.size() > kMaxNames) {
          too_many_ = true;
          return std::nullopt;
        }
      }
      names.insert(names.end(), item.begin(), item.end());
      if (at_ < text_.size() && ++at_ == text_.size()) return std::nullopt;  // a comma and nothing
    }
    return names;
  }
  size_t offset() const { return at_; }
  bool too_many() const { return too_many_; }

 private:
  bool extend(std::vector<std::string>& item) {
    if (text_[at_] == ']') return false;
    if (text_[at_] != '[') {
      for (std::string& name : item) name += text_[at_];
      ++at_;
      return true;
    }
    ++at_;
    std::vector<std::string> numbers;
    do {
      const auto first = number();
      if (!first) return false;
      std::optional<std::string> last = first;
      if (at_ < text_.size() && text_[at_] == '-') {
        ++at_;
        last = number();
      }
      if (!last || !add_range(*first, *last, numbers)) return false;
    } while (at_ < text_.size() && text_[at_] == ',' && ++at_);
    if (at_ >= text_.size() || text_[at_] != ']') return false;
    ++at_;
    if (item.size() * numbers.size() > kMaxNames) {
      too_many_ = true;
      return false;
    }
    std::vector<std::string> product;
    for (const std::string& name : item) {
      for (const std::string& n : numbers) product.push_back(name + n);
    }
    item = std::move(product);
    return true;
  }

  std::optional<std::string> number() {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == begin || at_ - begin > 9) return std::nullopt;
    return std::string(text_.substr(begin, at_ - begin));
  }

  bool add_range(const std::string& first, const std::string& last,
                 std::vector<std::string>& numbers) {
    const long long from = *base::parse_integer(first), to = *base::parse_integer(last);
    if (to < from) return false;
    if (as_index(to - from) >= kMaxNames || numbers.size() + as_index(to - from) >= kMaxNames) {
      too_many_ = true;
      return false;
    }
    for (long long n = from; n <= to; ++n)
      numbers.push_back(fmt::format("{:0{}}", n, first.size()));
    return true;
  }
  std::string_view text_;
  size_t at_ = 0;
  bool too_many_ = false;
};

struct Switch {
  std::string name;
  base::SourceSpan place;
  std::vector<std::string> nodes, children;
};

class Reader {
 public:
  Reader(std::string_view file, ErrorSink& sink) : file_(file), sink_(sink) {}

  std::vector<Switch> read(std::string_view text) {
    uint32_t number = 0;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string_view line = text.substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.ends_with('\r')) line.remove_suffix(1);
      line = line.substr(0, line.find('#'));
      const bool open = line.ends_with('\\');
      if (open) line.remove_suffix(1);
      read_words(line, number);
      if (!open) finish_line();
    }
    finish_line();
    return std::move(switches_);
  }

 private:
  void read_words(std::string_view line, uint32_t number) {
    for (size_t at = line.find_first_not_of(" \t"); at != std::string_view::npos;
         at = line.find_first_not_of(" \t", at)) {
      const size_t end = std::min(line.find_first_of(" \t", at), line.size());
      read_word(line.substr(at, end - at), {std::string(file_), number, as_u32(at + 1)});
      at = end;
    }
  }

  void read_word(std::string_view word, const base::SourceSpan& place) {
    if (!line_place_.has_value()) line_place_ = place;
    const size_t equals = word.find('=');
    const std::string key = base::to_lower(word.substr(0, equals));
    if (equals == std::string_view::npos)
      return sink_.error(place, kParse, "'{}' is no KEY=VALUE", word);
    const std::string_view value = word.substr(equals + 1);
    base::SourceSpan value_place = place;
    value_place.column += as_u32(equals + 1);
    if (key == "linkspeed") return;
    if (key == "blockname" || key == "blocksizes") {
      return sink_.error(place, kUnsupported,
                         "topology/block is not read, only topology/tree (SwitchName)");
    }
    if (key != "switchname" && key != "nodes" && key != "switches") {
      const std::vector<std::string> keys = {"switchname", "nodes", "switches", "linkspeed"};
      return sink_.add(base::make_error(kUnknownKey, "unknown key '{}'", word.substr(0, equals))
                           .at(place)
                           .with_hint(base::did_you_mean(key, keys)));
    }
    if (!keys_.insert(key).second)
      return sink_.error(place, kDuplicateKey, "'{}' twice on one line", word.substr(0, equals));
    if (value.empty())
      return sink_.error(value_place, kBadValue, "'{}' has no value", word.substr(0, equals));
    if (key == "switchname") {
      current_.name = value;
      current_.place = value_place;
      return;
    }
    HostList list(value);
    auto names = list.expand();
    if (!names) {
      value_place.column += as_u32(list.offset());
      if (list.too_many())
        return sink_.error(value_place, kOutOfRange, "a list of more than {} names", kMaxNames);
      return sink_.error(value_place, kParse, "'{}' is no list like node[01-16,20]", value);
    }
    total_ += names->size();
    if (total_ > 4 * kMaxNames)
      return sink_.error(value_place, kOutOfRange, "more than {} names in all", 4 * kMaxNames);
    (key == "nodes" ? current_.nodes : current_.children) = *std::move(names);
  }

  void finish_line() {
    if (line_place_) {
      if (!keys_.contains("switchname"))
        sink_.error(*line_place_, kMissingKey, "the line has no SwitchName");
      if (!keys_.contains("nodes") && !keys_.contains("switches")) {
        sink_.error(*line_place_, kMissingKey, "switch '{}' has neither Nodes nor Switches",
                    current_.name);
      }
      switches_.push_back(std::move(current_));
    }
    current_ = {};
    keys_.clear();
    line_place_.reset();
  }

  std::string_view file_;
  ErrorSink& sink_;
  std::vector<Switch> switches_;
  Switch current_;
  std::set<std::string> keys_;
  std::optional<base::SourceSpan> line_place_;
  size_t total_ = 0;
};

/// Parents by name; every node and every switch hangs on one switch.
std::vector<TreeSwitch> tree_of(const std::vector<Switch>& switches, std::string_view file,
                                ErrorSink& sink) {
  std::map<std::string, uint32_t> index;
  std::vector<TreeSwitch> tree;
  std::set<std::string> nodes;
  for (const Switch& s : switches) {
    if (!index.try_emplace(s.name, count_of(tree)).second)
      sink.error(s.place, kDuplicateKey, "switch '{}' twice", s.name);
    tree.push_back({.name = s.name, .hosts = count_of(s.nodes)});
    for (const std::string& node : s.nodes) {
      if (!nodes.insert(node).second)
        sink.error(s.place, kInconsistent, "node '{}' hangs on two switches", node);
    }
  }
  for (uint32_t parent = 0; parent < switches.size(); ++parent) {
    for (const std::string& name : switches[parent].children) {
      const auto child = index.find(name);
      if (child == index.end()) {
        sink.error(switches[parent].place, kNotFound,
                   "switch '{}' has a switch '{}' that no line describes", switches[parent].name,
                   name);
      } else if (tree[child->second].parent != kNoSwitch) {
        sink.error(switches[parent].place, kInconsistent, "switch '{}' hangs on two switches",
                   name);
      } else {
        tree[child->second].parent = parent;
        tree[child->second].uplink_bytes_per_second = 1;  // until its hosts are counted
      }
    }
  }
  if (tree.empty()) sink.error({std::string(file), 1, 1}, kParse, "no line has a SwitchName");
  if (!sink.ok()) return tree;
  for (const std::string& fault : faults_of_tree(tree))
    sink.error(switches.front().place, kInconsistent, "{}", fault);
  if (nodes.empty()) sink.error(switches.front().place, kInconsistent, "no switch has a node");
  if (nodes.size() > kMaxHosts)
    sink.error(switches.front().place, kOutOfRange, "{} nodes are more than {}", nodes.size(),
               kMaxHosts);
  return tree;
}

}  // namespace

base::Result<Imported> import_slurm(std::string_view text, std::string_view file,
                                    const SlurmImport& known) {
  ErrorSink sink;
  const std::vector<Switch> switches = Reader(file, sink).read(text);
  std::vector<TreeSwitch> tree =
      sink.ok() ? tree_of(switches, file, sink) : std::vector<TreeSwitch>{};
  if (!sink.ok()) return sink.result(Imported{});

  std::vector<uint64_t> below(tree.size(), 0);  // hosts under each switch
  uint32_t hosts = 0;
  for (const TreeSwitch& s : tree) {
    hosts += s.hosts;
    for (uint32_t up = as_u32(&s - tree.data()); up != kNoSwitch; up = tree[up].parent)
      below[up] += s.hosts;
  }
  for (size_t s = 0; s < tree.size(); ++s) {
    if (tree[s].parent == kNoSwitch) continue;
    const double capacity = real(below[s] * known.nics_per_host) *
                            real(known.cable.bytes_per_second) / known.oversubscription;
    tree[s].uplink_bytes_per_second = std::max<int64_t>(1, static_cast<int64_t>(capacity));
  }
  Imported imported;
  imported.file.name = known.name;
  imported.file.description = fmt::format(
      "{} hosts of {} on {} switches, from Slurm's topology.conf", hosts, known.host, tree.size());
  imported.file.references.push_back({.type = known.host, .count = hosts, .place = {}});
  imported.file.counts_hosts = true;
  FabricSpec spec = known.cable;
  spec.shape = FabricShape::kTree;
  spec.switch_latency = kSwitchHop;
  spec.tree = std::move(tree);
  imported.file.fabric = std::move(spec);
  imported.file.source_notes.push_back(
      fmt::format("fabric: switches and nodes from topology.conf; uplinks of a switch carry its "
                  "hosts' cards oversubscribed {} : 1 (as given); 0.2 us a "
                  "switch (catalog); cables as in {}",
                  known.oversubscription, known.host));
  imported.notes.push_back(fmt::format(
      "every node is taken as one {}; hosts are numbered in the order of the switches' lines",
      known.host));
  return sink.result(std::move(imported));
}

}  // namespace orrery::topologies

#include "search/table/instance.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/numbers.h"

namespace orrery::search {
namespace {

constexpr std::string_view kSchema = "orrery.instance/1";
constexpr base::IntRange kAmount{0, kMaxInstanceTotal - 1};

std::vector<InstanceOption> read_layer(const base::Node& node, std::size_t index,
                                       std::int64_t& count, base::ErrorSink& sink) {
  base::Reader r(node, fmt::format("layer {}", index), sink);
  count = r.optional_int("count", {1, kMaxInstanceSize}).value_or(1);
  std::vector<InstanceOption> options;
  std::set<std::string> names;
  const std::vector<base::Node> items = r.required_list("options");
  for (const base::Node& item : items) {
    base::Reader o(item, fmt::format("option {} of layer {}", options.size(), index), sink);
    InstanceOption option;
    option.name = o.required_string("name");
    option.time_ps = o.required_int("time_ps", kAmount);
    option.memory_bytes = o.required_int("memory_bytes", kAmount);
    o.finish();
    if (!option.name.empty() && !names.insert(option.name).second) {
      o.error("name", base::ErrorCode::kInconsistent, "layer {} has two options named '{}'", index,
              option.name);
    }
    options.push_back(std::move(option));
  }
  if (r.has("options") && items.empty() && node.find("options")->is_list()) {
    r.error("options", base::ErrorCode::kOutOfRange, "layer {} has no options", index);
  }
  if (items.size() > as_index(kMaxInstanceOptions)) {
    r.error("options", base::ErrorCode::kOutOfRange, "layer {} has {} options, at most {}", index,
            items.size(), kMaxInstanceOptions);
  }
  r.finish();
  return options;
}

/// A list of `rows` lists of `columns` times; nothing after a fault.
std::optional<std::vector<std::int64_t>> read_table(const base::Node& node, std::size_t rows,
                                                    std::size_t columns, const std::string& what,
                                                    base::ErrorSink& sink) {
  const std::vector<base::Node> lines = node.items();
  const auto wrong = [&](const base::Node& at, std::size_t found, std::size_t expected,
                         std::string_view of) {
    sink.add(
        at.error(base::ErrorCode::kInconsistent, "{} has {} {}, not {}", what, found, of, expected)
            .with_hint("one row for each option before the boundary, one entry in it for each "
                       "option behind"));
  };
  if (lines.size() != rows) {
    wrong(node, lines.size(), rows, "rows");
    return std::nullopt;
  }
  std::vector<std::int64_t> table;
  bool whole = true;
  for (const base::Node& line : lines) {
    if (!line.is_list() || line.size() != columns) {
      wrong(line, line.size(), columns, "entries in a row");
      whole = false;
      continue;
    }
    for (const base::Node& entry : line.items()) {
      const auto value = entry.as_int64(kAmount);
      if (!value) sink.add(value.error());
      whole = whole && value.has_value();
      table.push_back(value.value_or(0));
    }
  }
  return whole ? std::optional(std::move(table)) : std::nullopt;
}

/// One matrix for every boundary, or a list of matrices, one a boundary.
void read_transitions(const base::Node& node, Instance& instance, base::ErrorSink& sink) {
  const std::vector<base::Node> items = node.items();
  const auto& layers = instance.layers;
  const bool several = !items.empty() && items.front().is_list() && items.front().size() > 0 &&
                       items.front().items().front().is_list();
  if (!several && items.empty() && layers.size() == 1) return;
  if (!several) {
    const std::size_t options = layers.front().size();
    const auto other =
        std::ranges::find_if(layers, [&](const auto& l) { return l.size() != options; });
    if (other != layers.end()) {
      sink.add(node.error(base::ErrorCode::kInconsistent,
                          "one transition table, but layer 0 has {} options and layer {} has {}",
                          options, other - layers.begin(), other->size())
                   .with_hint("give a list of tables, one for each boundary between layers"));
      return;
    }
    if (auto table = read_table(node, options, options, "transition_ps", sink)) {
      instance.transition_ps.push_back(*std::move(table));
    }
    return;
  }
  if (items.size() + 1 != layers.size()) {
    sink.add(node.error(base::ErrorCode::kInconsistent,
                        "{} transition tables for {} layers, which have {} boundaries",
                        items.size(), layers.size(), layers.size() - 1));
    return;
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto table = read_table(items[i], layers[i].size(), layers[i + 1].size(),
                            fmt::format("transition_ps[{}]", i), sink);
    instance.transition_ps.push_back(std::move(table).value_or(std::vector<std::int64_t>{}));
  }
}

/// Σ over layers of the largest time, transition and memory: no sum of an answer is above.
void check_totals(const Instance& instance, const base::SourceSpan& where, base::ErrorSink& sink) {
  __int128 time = 0, memory = 0;
  std::vector<std::int64_t> largest;
  for (const auto& table : instance.transition_ps)
    largest.push_back(*std::ranges::max_element(table));
  for (std::size_t i = 0; i < instance.layers.size(); ++i) {
    std::int64_t slow = 0, heavy = 0;
    for (const InstanceOption& o : instance.layers[i]) {
      slow = std::max(slow, o.time_ps);
      heavy = std::max(heavy, o.memory_bytes);
    }
    time += slow;
    memory += heavy;
    if (i > 0 && !largest.empty()) time += largest.size() == 1 ? largest.front() : largest[i - 1];
  }
  if (time < kMaxInstanceTotal && memory < kMaxInstanceTotal) return;
  sink.error(where, base::ErrorCode::kOutOfRange,
             "the {} of all layers together can reach 2^57 {} or more",
             time >= kMaxInstanceTotal ? "times" : "memory",
             time >= kMaxInstanceTotal ? "ps" : "bytes");
}

}  // namespace

base::Result<Instance> read_instance(const base::Node& root) {
  base::ErrorSink sink;
  base::Reader r(root, "instance", sink);
  const std::string schema = r.required_string("schema");
  if (sink.ok() && schema != kSchema) {
    return base::fail_at(r.span("schema"), base::ErrorCode::kUnsupported, "schema '{}' is not '{}'",
                         schema, kSchema);
  }
  Instance instance;
  instance.budget_bytes =
      r.required_int("budget_bytes", {0, std::numeric_limits<std::int64_t>::max()});
  const std::vector<base::Node> layers = r.required_list("layers");
  std::int64_t total = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::int64_t count = 1;
    const std::vector<InstanceOption> options = read_layer(layers[i], i, count, sink);
    total += count * static_cast<std::int64_t>(std::max<std::size_t>(options.size(), 1));
    if (total > kMaxInstanceSize) {
      r.error("layers", base::ErrorCode::kOutOfRange, "more than {} options over all layers",
              kMaxInstanceSize);
      break;
    }
    instance.layers.insert(instance.layers.end(), as_index(count), options);
  }
  if (sink.ok() && layers.empty())
    r.error("layers", base::ErrorCode::kOutOfRange, "an instance has at least one layer");
  const auto transitions = r.optional_list("transition_ps");
  if (transitions && sink.ok()) read_transitions(*root.find("transition_ps"), instance, sink);
  r.finish();
  if (sink.ok()) check_totals(instance, r.span("layers"), sink);
  return sink.result(std::move(instance));
}

base::Result<Instance> load_instance(const std::string& path) {
  TRY(const base::Node root, base::Node::parse_file(path));
  return read_instance(root);
}

}  // namespace orrery::search

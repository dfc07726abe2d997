#include "plan/export/differences.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "plan/export/nearest.h"

namespace orrery::plan {
namespace {

constexpr std::string_view kUniform = "all layers, embedding and head have one strategy there";

struct StrategyField {
  std::string_view name;
  std::string (*text)(const LayerStrategy&);
};

std::string yes_or_no(bool value) { return value ? "true" : "false"; }

constexpr std::array kStrategyFields{
    StrategyField{"tp", [](const LayerStrategy& s) { return std::to_string(s.tp); }},
    StrategyField{"cp", [](const LayerStrategy& s) { return std::to_string(s.cp); }},
    StrategyField{"dp", [](const LayerStrategy& s) { return std::to_string(s.dp); }},
    StrategyField{"ep", [](const LayerStrategy& s) { return std::to_string(s.ep); }},
    StrategyField{"folded", [](const LayerStrategy& s) { return yes_or_no(s.folded); }},
    StrategyField{"context",
                  [](const LayerStrategy& s) { return std::string(to_string(s.context)); }},
    StrategyField{"zero", [](const LayerStrategy& s) { return std::to_string(s.zero); }},
    StrategyField{"shard", [](const LayerStrategy& s) { return std::to_string(s.shard); }},
    StrategyField{"operators",
                  [](const LayerStrategy& s) { return std::string(to_string(s.operators)); }},
    StrategyField{"slices", [](const LayerStrategy& s) { return std::to_string(s.slices); }},
    StrategyField{"strided", [](const LayerStrategy& s) { return yes_or_no(s.strided); }},
    StrategyField{"sequence_parallel",
                  [](const LayerStrategy& s) { return yes_or_no(s.sequence_parallel); }},
    StrategyField{"tensor_pieces",
                  [](const LayerStrategy& s) { return std::to_string(s.tensor_pieces); }},
    StrategyField{"recompute",
                  [](const LayerStrategy& s) { return std::string(to_string(s.recompute)); }},
    StrategyField{"grad_reduce",
                  [](const LayerStrategy& s) { return std::string(to_string(s.grad_reduce)); }},
    StrategyField{"states",
                  [](const LayerStrategy& s) { return std::string(to_string(s.states)); }},
};
/// Of every framework.
constexpr Rule kStates{"states", "states that are kept on the host are updated there"};

std::string sizes_text(const Plan& plan) {
  return fmt::format("{}", fmt::join(stage_sizes(plan), ", "));
}

class Comparison {
 public:
  Comparison(const Plan& planned, const Plan& runs, const std::vector<Rule>& rules)
      : planned_(planned), runs_(runs), rules_(rules) {}

  std::vector<Difference> read() {
    compare("precision", to_string(planned_.precision), to_string(runs_.precision));
    number("sequence", planned_.sequence, runs_.sequence);
    number("global_batch", planned_.global_batch, runs_.global_batch);
    number("micro_batches", planned_.micro_batches, runs_.micro_batches);
    compare("schedule", to_string(planned_.schedule), to_string(runs_.schedule));
    number("virtual_stages", planned_.virtual_stages, runs_.virtual_stages);
    compare("stages", sizes_text(planned_), sizes_text(runs_));
    number("prefetch_depth", planned_.prefetch_depth, runs_.prefetch_depth);
    number("hosts", planned_.hosts, runs_.hosts);
    const std::vector<LayerStrategy> before = layers_of(planned_), after = layers_of(runs_);
    ORRERY_CHECK(before.size() == after.size(), "{} layers and {}", before.size(), after.size());
    for (const StrategyField& field : kStrategyFields) {
      layers(field, before, after);
      if (field.name == "context") continue;
      compare(fmt::format("vocabulary.{}", field.name), field.text(planned_.vocabulary),
              field.text(runs_.vocabulary));
    }
    return std::move(found_);
  }

 private:
  void add(const std::string& field, std::string where, std::string_view planned,
           std::string_view runs) {
    const auto rule = std::ranges::find(rules_, field, &Rule::field);
    std::string_view why = rule == rules_.end() ? kUniform : rule->why;
    if (field.ends_with(kStates.field)) why = kStates.why;
    found_.push_back(
        {field, std::move(where), std::string(planned), std::string(runs), std::string(why)});
  }

  void compare(const std::string& field, std::string_view planned, std::string_view runs) {
    if (planned != runs) add(field, {}, planned, runs);
  }

  void number(const std::string& field, std::int64_t planned, std::int64_t runs) {
    compare(field, std::to_string(planned), std::to_string(runs));
  }

  void layers(const StrategyField& field, const std::vector<LayerStrategy>& before,
              const std::vector<LayerStrategy>& after) {
    for (std::size_t first = 0; first < before.size();) {
      const std::string planned = field.text(before[first]), runs = field.text(after[first]);
      std::size_t end = first + 1;
      while (end < before.size() && field.text(before[end]) == planned &&
             field.text(after[end]) == runs)
        ++end;
      const std::string where = end == first + 1 ? fmt::format("layer {}", first)
                                                 : fmt::format("layers {}-{}", first, end - 1);
      if (planned != runs) add(std::string(field.name), where, planned, runs);
      first = end;
    }
  }

  const Plan& planned_;
  const Plan& runs_;
  const std::vector<Rule>& rules_;
  std::vector<Difference> found_;
};

}  // namespace

std::vector<Difference> differences(const Plan& planned, const Plan& runs,
                                    const std::vector<Rule>& rules) {
  return Comparison(planned, runs, rules).read();
}

}  // namespace orrery::plan

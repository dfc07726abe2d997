#include <algorithm>
#include <array>

#include "base/text.h"
#include "plan/import/import.h"
#include "plan/import/import_arguments.h"

namespace orrery::plan {
namespace {

using enum base::ErrorCode;

/// What `mixed_precision` says, as arguments of Megatron-LM.
struct Recipe {
  std::string_view name, key, value;
};
constexpr Recipe kRecipes[] = {
    {"bf16_mixed", "", ""},
    {"bf16_with_fp8_delayed_scaling_mixed", "fp8-recipe", "delayed"},
    {"bf16_with_fp8_current_scaling_mixed", "fp8-recipe", "tensorwise"},
    {"bf16_with_fp8_subchannel_scaling_mixed", "fp8-recipe", "blockwise"},
    {"bf16_with_mxfp8_mixed", "fp8-recipe", "mxfp8"},
    {"bf16_with_nvfp4_mixed", "fp4-format", "e2m1"}};
constexpr std::string_view kVirtual = "virtual-pipeline-model-parallel-size";

/// Assignments `NAME.section.field = value`, one a line, as arguments of Megatron-LM.
class FieldReader {
 public:
  FieldReader(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {}

  base::Result<std::vector<Argument>> read() {
    for (std::uint32_t line = 1; !text_.empty(); ++line) {
      const std::size_t end = std::min(text_.find('\n'), text_.size());
      read_line(text_.substr(0, end), line);
      text_.remove_prefix(std::min(end + 1, text_.size()));
    }
    return sink_.result(std::move(arguments_));
  }

 private:
  static std::string_view without_comment(std::string_view line) {
    char quote = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (quote == 0 && line[i] == '#') return line.substr(0, i);
      if (line[i] == '"' || line[i] == '\'') {
        if (quote == 0)
          quote = line[i];
        else if (quote == line[i])
          quote = 0;
      }
    }
    return line;
  }

  void read_line(std::string_view whole, std::uint32_t number) {
    const std::string_view line = without_comment(whole);
    const std::size_t equals = line.find('=');
    if (equals == line.npos || line.substr(equals + 1).starts_with("=")) return;
    const std::string_view name = base::trim(line.substr(0, equals));
    const std::size_t dot = name.rfind('.');
    if (dot == name.npos || name.find_first_of(" \t([") != name.npos) return;
    const base::SourceSpan where{file_, number,
                                 static_cast<std::uint32_t>(line.find_first_not_of(" \t") + 1)};
    add(name.substr(dot + 1), base::trim(line.substr(equals + 1)), where);
  }

  void add(std::string_view field, std::string_view value, const base::SourceSpan& where) {
    if (value == "None") return;
    if (value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
        value.back() == value.front())
      value = value.substr(1, value.size() - 2);
    std::string key(field);
    std::ranges::replace(key, '_', '-');
    if (key == "mixed-precision") return add_precision(value, where);
    if (key == "comm-overlap") {
      // CommOverlapConfig turns the reductions' overlap on wherever there are replicas
      if (value.find("tp_comm_overlap=True") == value.npos) return;
      arguments_.push_back({"tp-comm-overlap", where, ""});
      arguments_.push_back({"overlap-grad-reduce", where, ""});
      return;
    }
    if (key == kVirtual) key = "num-virtual-stages-per-pipeline-rank";
    const bool on = value == "True";
    arguments_.push_back({std::move(key), where, on ? "" : std::string(value)});
  }

  void add_precision(std::string_view value, const base::SourceSpan& where) {
    const auto* const recipe = std::ranges::find(kRecipes, value, &Recipe::name);
    if (recipe == std::ranges::end(kRecipes)) {
      std::vector<std::string> names;
      for (const Recipe& r : kRecipes) names.emplace_back(r.name);
      sink_.add(base::make_error(kBadValue, "no recipe of mixed precision '{}'", value)
                    .at(where)
                    .with_hint(fmt::format("{}", fmt::join(names, ", "))));
      return;
    }
    arguments_.push_back({"bf16", where, ""});
    if (!recipe->key.empty())
      arguments_.push_back({std::string(recipe->key), where, std::string(recipe->value)});
  }

  std::string_view text_;
  std::string file_;
  std::vector<Argument> arguments_;
  base::ErrorSink sink_;
};

}  // namespace

base::Result<ImportedPlan> import_megatron_bridge(std::string_view text, const std::string& name,
                                                  const ImportTarget& target) {
  TRY(std::vector<Argument> arguments, FieldReader(text, name).read());
  return megatron_plan(std::move(arguments), name, target);
}

}  // namespace orrery::plan

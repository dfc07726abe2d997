#pragma once
/// \file
/// Plans as files of other frameworks, with a report of what each of them cannot say.
///
/// Every framework here gives most decisions one value for the whole model, and each has rules of
/// its own. export_plan() works in four steps:
///
///   1. nearest   the plan that the framework runs: the plan's own decisions where the framework
///                has a word for them, else what stands in their place (docs/commands.md)
///   2. rules     validate(), and what the framework requires beyond; several of them accept what
///                they cannot run, so that the rules are held here
///   3. file      the text, written from the plan of step 1 alone
///   4. report    the plans of the user and of step 1 field by field
///
/// So reading the file back (plan/import/) gives the plan of step 1, and where the report is empty
/// the user's. Versions, names of options and rules: frameworks() and the file of each framework.
///
/// Example: a plan of 32 layers whose first 8 have ZeRO-3 and the others ZeRO-1, for Megatron-LM on
/// two stages: its optimizer shards alike everywhere, and a pipeline leaves it ZeRO-1. The report
/// is
/// {"zero", "layers 0-7", "3", "1", why}, and the plan has ZeRO-1 in all layers.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/spec.h"
#include "plan/import/import.h"
#include "plan/program/plan.h"

namespace orrery::plan {

enum class Framework : std::uint8_t {
  kMegatron,
  kMegatronBridge,
  kTorchTitan,
  kDeepSpeed,
  kAccelerate,
  kGalvatron
};

struct FrameworkTerms {
  Framework framework;
  std::string_view name;     // of the command line: "megatron"
  std::string_view title;    // "Megatron-LM"
  std::string_view version;  // whose words the file has
  std::string_view file;     // what is written: "arguments of pretrain_gpt.py"
  std::string_view
      software;             // whose steps it runs, by name (orrery list software); empty: not known
  std::string_view target;  // of `orrery plan --target`: what it can run; empty: none
};
/// One row for each, in order of the enumerators.
std::span<const FrameworkTerms> frameworks();
const FrameworkTerms& terms_of(Framework framework);

struct ExportRequest {
  const model::ModelSpec& model;
  int devices_per_host = 1;  // of the cluster
};

/// A decision that the framework takes otherwise.
struct Difference {
  std::string field;    // as in a plan file: "zero", "schedule", "vocabulary.tp"
  std::string where;    // "layers 0-7"; empty: the whole plan
  std::string planned;  // the plan's value
  std::string runs;     // what the framework has in its place
  std::string why;
  bool operator==(const Difference&) const = default;
};

/// A value that the framework takes from elsewhere than the file.
struct Setting {
  std::string name, value, where;
  bool operator==(const Setting&) const = default;
};

struct ExportedPlan {
  std::string text;                     // of the file
  Plan plan;                            // what the framework runs
  std::vector<Difference> differences;  // between the plan that was given and this one
  BesideFile beside;                    // what a reader of the file needs as well
  std::vector<Setting> settings;        // the same for people, and what no reader needs
  std::vector<std::string> notes;       // what no plan can say, so that no time below counts it
  [[nodiscard]] bool exact() const { return differences.empty(); }
};

/// Errors: those of validate() on the plan itself; kInfeasible when the framework can run nothing
/// like it, each fault with its rule.
base::Result<ExportedPlan> export_plan(Framework framework, const Plan& plan,
                                       const ExportRequest& request);

}  // namespace orrery::plan

#include "cli/commands/calibrate_check.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "base/numbers.h"
#include "cli/block_shapes.h"
#include "cli/executor_calls.h"
#include "cli/inputs.h"
#include "cli/measured/block_errors.h"
#include "cli/text/show.h"
#include "costmodel/coverage.h"
#include "costmodel/profiles/profiles.h"
#include "plan/lowering/lower.h"
#include "topologies/import/local.h"

namespace orrery::cli {
namespace {

/// What is wrong, and what it does to predictions.
struct Finding {
  std::string what, effect;
};

/// Drivers and libraries change within months.
constexpr std::int64_t kStaleDays = 180;
/// Shares of time and spreads below are noise.
constexpr double kFarShare = 0.02, kWideSpread = 1.5;

/// Days since an ISO 8601 date; none when it is not one.
std::optional<std::int64_t> age_days(const std::string& date) {
  int y = 0;
  unsigned m = 0, d = 0;
  if (std::sscanf(date.c_str(), "%d-%u-%u", &y, &m, &d) != 3) return std::nullopt;
  const std::chrono::year_month_day day{std::chrono::year(y), std::chrono::month(m),
                                        std::chrono::day(d)};
  if (!day.ok()) return std::nullopt;
  return (std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()) -
          std::chrono::sys_days(day))
      .count();
}

void judge_origin(const model::Profile& profile, std::vector<Finding>& findings) {
  const auto age = age_days(profile.provenance.date);
  if (!age) {
    findings.push_back({"no date",
                        "nobody can tell whether driver and libraries are still the same; 'orrery "
                        "calibrate' writes one"});
  } else if (*age > kStaleDays) {
    findings.push_back({fmt::format("{} days old", *age),
                        "drivers and libraries have changed since: calibrate again"});
  }
  if (profile.device != "cpu") return;
  const auto machine = topologies::probe_local_machine();
  if (machine && profile.provenance.machine.find(machine->cpu_name) == std::string::npos) {
    findings.push_back({fmt::format("measured on '{}', this is '{}'", profile.provenance.machine,
                                    machine->cpu_name),
                        "its times are another processor's: calibrate here"});
  }
}

bool has_type(const model::Profile& profile, model::DType type) {
  return std::ranges::any_of(profile.operators,
                             [&](const auto& p) { return p.shape.dtype == type; }) ||
         std::ranges::any_of(profile.surfaces, [&](const auto& s) { return s.dtype == type; }) ||
         std::ranges::any_of(profile.layers, [&](const auto& t) {
           return model::compute_dtype(t.precision) == type;
         });
}

void judge_measurements(const model::Profile& profile, std::vector<Finding>& findings) {
  for (const auto& [type, name] :
       {std::pair{model::DType::kFloat32, "fp32"}, std::pair{model::DType::kBFloat16, "bf16"}}) {
    if (!has_type(profile, type))
      findings.push_back(
          {fmt::format("nothing measured in {}", name),
           fmt::format("--precision {} is refused, or priced from the datasheet", name)});
  }
  const auto wide = std::ranges::count_if(
      profile.operators, [](const auto& p) { return p.seconds_p90 > kWideSpread * p.seconds_p10; });
  if (10 * as_index(wide) > profile.operators.size()) {
    findings.push_back(
        {fmt::format("{} of {} points vary by more than half", wide, profile.operators.size()),
         "the machine was busy while it measured: calibrate again when it is idle"});
  }
  if (!profile.operators.empty() && profile.composition_residual == 0) {
    findings.push_back(
        {"no whole step was held against its operations",
         "what operations lose in company is not in the prices: give --budget more time"});
  }
}

/// The Programs whose prices are judged: alone, and with each kind of group that the profile could
/// have measured.
Result<std::vector<plan::Program>> programs_of(const ModelSpec& model, model::Precision precision,
                                               int ranks) {
  const plan::UniformOptions alone{.micro_batch = 4, .global_batch = 8, .precision = precision};
  std::vector<plan::UniformOptions> all(ranks > 1 ? 3 : 1, alone);
  if (ranks > 1) {
    all[1].tp = all[2].dp = ranks;
    all[2].zero = 3;
    all[2].global_batch *= ranks;
  }
  std::vector<plan::Program> programs;
  for (const plan::UniformOptions& o : all) {
    const auto plan = plan::uniform_plan(model, "local", 1, o);
    if (!plan) continue;  // ranks do not divide this model
    TRY(plan::Program program, plan::lower(*plan, model));
    programs.push_back(std::move(program));
  }
  return programs;
}

std::string name_of(const model::SegmentShape& s, model::Phase phase) {
  std::string size = s.elements > 0 ? fmt::format("{} elements", s.elements)
                                    : fmt::format("{}x{} tokens", s.sequences, s.tokens);
  if (s.in > 0) size += fmt::format(", {} to {}", s.in, s.out);
  if (s.heads > 0) size += fmt::format(", {} heads of {}", s.heads, s.head_dim);
  return fmt::format("{} {} ({})", model::to_string(s.kind), model::to_string(phase), size);
}

struct Judged {
  std::string model;
  costmodel::Coverage coverage;
};

void judge_coverage(const Judged& judged, std::vector<Finding>& findings) {
  const costmodel::Coverage& c = judged.coverage;
  for (const auto& far : c.beyond) {
    if (far.share < kFarShare) break;
    findings.push_back(
        {fmt::format("{}: {} is beyond what was measured", judged.model,
                     name_of(far.shape, far.phase)),
         fmt::format("{:.0f} % of the compute time is extrapolated from the nearest point",
                     100 * far.share)});
  }
  for (const auto& u : c.unmeasured) {
    findings.push_back({fmt::format("{}: no times of {} over {} ranks", judged.model,
                                    model::to_string(u.op), u.size),
                        "priced from the links of the cluster, without contention of its own"});
  }
}

Result<std::vector<BlockError>> hold_out(const Options& o, const model::Profile& profile,
                                         model::Precision precision, bool& writes) {
  const bool cpu = profile.device == "cpu";
  const std::vector<executor::BlockCase> cases = held_out_blocks(cpu);
  TRY(const BlocksOutcome measured, time_blocks_here(cases, cpu ? "cpu" : "cuda", precision));
  writes = measured.writes;
  return block_errors(o, cases, measured.blocks, profile, precision);
}

constexpr std::array<const char*, costmodel::kPriceSources> kSourceNames{
    "measured", "between points", "beyond points", "layer times", "fitted surface", "datasheet"};

std::string describe_shares(const costmodel::Coverage& c) {
  std::string text;
  for (std::size_t i = 0; i < kSourceNames.size(); ++i) {
    if (c.compute[i] >= 0.0005)
      text += fmt::format("{}{:.1f} % {}", text.empty() ? "" : ", ", 100 * c.compute[i],
                          kSourceNames[i]);
  }
  return text;
}

void print_text(const model::Profile& p, const std::vector<Judged>& judged,
                const std::vector<Finding>& findings, const std::vector<BlockError>& rows) {
  fmt::print("profile   {}: {}\n", p.name, p.provenance.source);
  for (const auto& [what, text] : {std::pair{"date", &p.provenance.date},
                                   {"machine", &p.provenance.machine},
                                   {"software", &p.provenance.software},
                                   {"note", &p.provenance.note}}) {
    if (!text->empty()) fmt::print("{:<9} {}\n", what, *text);
  }
  fmt::print(
      "measured  {} operator points, {} collectives, composition factor {:.3f} with residual "
      "{:.1f} %\n",
      p.operators.size(), p.collectives.size(), p.composition_factor, 100 * p.composition_residual);
  for (const Judged& j : judged)
    fmt::print("compute   {}: {}\n", j.model, describe_shares(j.coverage));
  fmt::print("\n{}\n", findings.empty() ? "nothing is missing or stale"
                                        : fmt::format("{} finding{}:", findings.size(),
                                                      findings.size() == 1 ? "" : "s"));
  for (const Finding& f : findings) fmt::print("  {}\n      {}\n", f.what, f.effect);
  if (rows.empty()) return;
  fmt::print("\n");
  print_blocks(rows);
}

Json to_json(const model::Profile& p, const std::vector<Judged>& judged,
             const std::vector<Finding>& findings, const std::vector<BlockError>& rows) {
  Json document{
      {"schema", "orrery.profile_check/1"},
      {"profile", p.name},
      {"findings", json_list(findings,
                             [](const Finding& f) -> Json {
                               return {{"what", f.what}, {"effect", f.effect}};
                             })},
      {"coverage", json_list(judged,
                             [](const Judged& j) -> Json {
                               Json shares = Json::object();
                               for (std::size_t i = 0; i < kSourceNames.size(); ++i)
                                 shares[kSourceNames[i]] = j.coverage.compute[i];
                               return {{"model", j.model}, {"compute", shares}};
                             })},
      {"blocks", json_list(rows, [](const BlockError& r) -> Json {
         return {{"name", r.name}, {"predicted_s", r.predicted_s}, {"measured_s", r.measured_s}};
       })}};
  if (!rows.empty()) {
    const StepErrors s = summary_of(rows);
    document["mean_abs_error"] = s.mean;
    document["max_abs_error"] = s.largest;
  }
  return document;
}

}  // namespace

Result<int> check_profile(const Options& o, const Invocation& invocation) {
  const int ranks = o.count("ranks");
  if (o.flag("measure") && ranks > 1 && !launched_as_rank())
    return launch(ranks, invocation.arguments);
  const model::Precision precision = precision_of(o, "dtype");
  std::vector<std::string> names{"gpt2-tiny", "llama-tiny"};
  if (o.has("model")) names = {o.string("model")};
  TRY(const ModelSpec first, model::find_model(names.front()));
  TRY(const model::Profile profile, costmodel::find_profile(o.string("check"), first));
  std::vector<Finding> findings;
  judge_origin(profile, findings);
  judge_measurements(profile, findings);
  std::vector<Judged> judged;
  for (const std::string& name : names) {
    TRY(const ModelSpec spec, model::find_model(name));
    TRY(Topology topology, find_cluster(o.string("cluster"), 1, ranks));
    TRY(const auto cost, CostModel::make(spec, std::move(topology), profile,
                                         {.precision = precision, .sequence = spec.max_positions}));
    TRY(const auto programs, programs_of(spec, precision, ranks));
    judged.push_back({name, costmodel::coverage_of(cost, programs)});
    judge_coverage(judged.back(), findings);
  }
  bool writes = true;
  std::vector<BlockError> rows;
  if (o.flag("measure")) {
    TRY(rows, hold_out(o, profile, precision, writes));
  }
  if (!writes) return 0;
  if (o.flag("json")) {
    print_json(to_json(profile, judged, findings, rows));
  } else {
    print_text(profile, judged, findings, rows);
  }
  return 0;
}

}  // namespace orrery::cli

#include "cli/text/show.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <sstream>

#include "base/ids.h"
#include "base/numbers.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/text/partition_words.h"
#include "costmodel/memory_limit.h"
#include "search/explain/simulated_plan.h"
#include "search/proof/certificate_json.h"

namespace orrery::cli {

std::string show_time(std::int64_t ps) { return show_seconds(real(ps) * 1e-12); }
std::string show_seconds(double seconds) { return base::to_string(base::Seconds(seconds)); }
std::string show_bytes(std::int64_t bytes) { return base::to_string(base::Bytes(real(bytes))); }

namespace {

/// Of the kind of device whose memory is the limit.
std::int64_t kept_of(const CostModel& cost, std::int64_t limit_bytes) {
  const auto& kinds = cost.topology().device_models();
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const std::int64_t kept = costmodel::kept_bytes(cost, k);
    if (kinds[k].memory_bytes - kept == limit_bytes) return kept;
  }
  return 0;
}

}  // namespace

std::string memory_text(const FullestStage& stage) {
  const std::string kept =
      stage.kept_bytes == 0
          ? ""
          : fmt::format(
                "; {} of {} are kept for the driver, the context and the "
                "communication library",
                show_bytes(stage.kept_bytes), show_bytes(stage.limit_bytes + stage.kept_bytes));
  return fmt::format("{} of {} at the fullest stage{}", show_bytes(stage.peak_bytes),
                     show_bytes(stage.limit_bytes), kept);
}

FullestStage fullest_stage(const Plan& plan, const sim::SimReport& report, const CostModel& cost,
                           std::int64_t stated_bytes) {
  const costmodel::MemoryLimit limit(cost, stated_bytes);
  std::optional<FullestStage> fullest;
  for (std::size_t i = 0; i < report.stages.size(); ++i) {
    FullestStage own{report.stages[i].peak_memory_bytes, limit.of_stage(cost, plan, as_int(i))};
    if (stated_bytes == 0) own.kept_bytes = kept_of(cost, own.limit_bytes);
    if (!fullest || own.peak_bytes - own.limit_bytes > fullest->peak_bytes - fullest->limit_bytes)
      fullest = own;
  }
  return fullest.value();
}

namespace {

/// The strategy, or a partition by its products: "partitioned qkv=K,P2x2 ... mlp_out=N,N zero1".
std::string run_text(const plan::LayerRun& run) {
  if (run.partition.empty()) return plan::to_string(run.strategy);
  std::string text = "partitioned";
  for (const plan::LayerOperator op : kProducts)
    text += fmt::format(" {}={}", plan::partitioned_operators()[op],
                        plan::to_string(run.partition[op]));
  return text + plan::beyond_degrees(run.strategy);
}

/// Layers of each strategy, in order of appearance.
std::vector<std::pair<std::string, int>> strategies_of(std::span<const plan::Stage> stages) {
  std::vector<std::pair<std::string, int>> counts;
  for (const plan::Stage& s : stages) {
    for (const plan::LayerRun& r : s.runs) {
      const std::string name = run_text(r);
      const auto at = std::ranges::find(counts, name, &std::pair<std::string, int>::first);
      if (at == counts.end())
        counts.emplace_back(name, r.count);
      else
        at->second += r.count;
    }
  }
  return counts;
}

/// Runs in their order; where many take turns (blocks of several kinds), layers of each strategy.
std::string runs_text(const plan::Stage& stage) {
  constexpr std::size_t kSpelled = 4;
  std::string text;
  const auto add = [&](int count, const std::string& run) {
    text += fmt::format("{}{} × {}", text.empty() ? "" : ", ", count, run);
  };
  const auto counts = strategies_of({&stage, 1});
  if (stage.runs.size() > kSpelled && counts.size() < stage.runs.size()) {
    for (const auto& [run, count] : counts) add(count, run);
    return text + ", in turns";
  }
  for (const plan::LayerRun& run : stage.runs) add(run.count, run_text(run));
  return text;
}

/// "16 sequences × 2048 tokens", and of one rank where all layers divide the micro-batch alike.
std::string micro_batch_text(const Plan& plan) {
  std::set<int> degrees;
  for (const plan::Stage& s : plan.stages)
    for (const plan::LayerRun& r : s.runs) degrees.insert(r.partition.empty() ? r.strategy.dp : 1);
  const std::int64_t sequences = plan.micro_batch_sequences();
  const std::string rank = degrees.size() == 1 && *degrees.begin() > 1
                               ? fmt::format(" ({} a rank)", sequences / *degrees.begin())
                               : "";
  return fmt::format("{} sequence{}{} × {} tokens", sequences, sequences == 1 ? "" : "s", rank,
                     plan.sequence);
}

/// One stage under 1f1b runs micro-batch after micro-batch: nothing to name.
std::string schedule_text(const Plan& plan, const char* before) {
  return plan.pipeline_degree() == 1 && plan.schedule == plan::Schedule::k1F1B
             ? ""
             : fmt::format("{}{}", before, plan::to_string(plan.schedule));
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// "20 × tp1 dp8 zero3, 12 × tp1 dp8"; of more than two strategies the words that all have come
/// first: "tp4 dp32 zero3 sp (50 × as is, 18 × recompute=full, 12 × recompute=selective)".
std::string strategies_text(const Plan& plan) {
  constexpr std::size_t kSpelled = 2;
  const auto counts = strategies_of(plan.stages);
  if (counts.size() == 1) return counts.front().first;
  std::vector<std::string> common;
  if (counts.size() > kSpelled) common = words_of(counts.front().first);
  for (const auto& [name, count] : counts) {
    const std::vector<std::string> words = words_of(name);
    std::erase_if(common, [&](const std::string& word) {
      return std::ranges::find(words, word) == words.end();
    });
  }
  std::string rest;
  for (const auto& [name, count] : counts) {
    std::vector<std::string> words = words_of(name);
    std::erase_if(words, [&](const std::string& word) {
      return std::ranges::find(common, word) != common.end();
    });
    rest += fmt::format("{}{} × {}", rest.empty() ? "" : ", ", count,
                        words.empty() ? "as is" : fmt::format("{}", fmt::join(words, " ")));
  }
  return common.empty() ? rest : fmt::format("{} ({})", fmt::join(common, " "), rest);
}

/// "41+39" for stages of unlike length, "5×4+6" for runs of them; empty for equal ones, and where
/// virtual stages divide the layers further.
std::string cuts_text(const Plan& plan) {
  if (plan.virtual_stages > 1) {
    const auto [least, most] = std::ranges::minmax(plan.stages, {}, &plan::Stage::layers);
    return least.layers() == most.layers()
               ? ""
               : fmt::format(" ({} to {} layers)", least.layers(), most.layers());
  }
  std::vector<std::pair<int, int>> runs;  // layers, stages
  for (const plan::Stage& stage : plan.stages) {
    if (runs.empty() || runs.back().first != stage.layers()) runs.emplace_back(stage.layers(), 0);
    ++runs.back().second;
  }
  if (runs.size() < 2) return "";
  std::string text;
  for (const auto& [layers, stages] : runs)
    text +=
        fmt::format("{}{}", text.empty() ? "" : "+",
                    stages == 1 ? std::to_string(layers) : fmt::format("{}×{}", stages, layers));
  return fmt::format(" ({} layers)", text);
}

}  // namespace

std::string describe(const Plan& plan, std::int64_t devices) {
  constexpr std::size_t kAlike = 3;  // stages that share a line
  const std::string idle =
      devices > plan.world_size()
          ? fmt::format(" ({} of {} devices idle)", devices - plan.world_size(), devices)
          : "";
  const std::string chunks =
      plan.virtual_stages > 1 ? fmt::format(" ({} per pipeline rank)", plan.virtual_stages) : "";
  const std::string hosts = plan.hosts > 1 ? fmt::format(" × {} hosts", plan.hosts) : "";
  const std::string adapters = plan.adapter.rank > 0
                                   ? fmt::format(", adapters of rank {} on {}", plan.adapter.rank,
                                                 model::targets_of(plan.adapter))
                                   : "";
  std::string text =
      fmt::format("{} on {}{}, {} ranks{}: {} stage{}{}, {} micro-batch{} of {}{}, {}{}\n",
                  plan.model, plan.cluster, hosts, plan.world_size(), idle, plan.stages.size(),
                  plan.stages.size() == 1 ? "" : "s", chunks, plan.micro_batches,
                  plan.micro_batches == 1 ? "" : "es", micro_batch_text(plan),
                  schedule_text(plan, ", "), model::to_string(plan.precision), adapters);
  for (std::size_t s = 0; s < plan.stages.size();) {
    std::size_t end = s + 1;
    while (end < plan.stages.size() && plan.stages[end] == plan.stages[s]) ++end;
    if (end - s < kAlike) end = s + 1;
    text += fmt::format("  {}: {}\n",
                        end == s + 1 ? fmt::format("stage {}", s)
                                     : fmt::format("stages {} to {}, each", s, end - 1),
                        runs_text(plan.stages[s]));
    s = end;
  }
  text += fmt::format("  embedding and head: {}\n", plan::to_string(plan.vocabulary));
  if (!plan.device_order.empty())
    text += fmt::format("  devices in order: {}\n", base::join(plan.device_order, ", "));
  return text;
}

std::string one_line(const Plan& plan) {
  const std::string chunks =
      plan.virtual_stages > 1 ? fmt::format(" v{}", plan.virtual_stages) : "";
  const std::string order =
      plan.device_order.empty() ? "" : fmt::format(" | {} first", plan.device_order.front());
  return fmt::format("pp{}{}{} m{}{} | {} | vocabulary {}{}", plan.pipeline_degree(), chunks,
                     cuts_text(plan), plan.micro_batches, schedule_text(plan, " "),
                     strategies_text(plan), plan::to_string(plan.vocabulary), order);
}

namespace {

std::string_view origin_word(costmodel::Origin o) {
  return base::EnumNames<costmodel::Origin::kFitted>("datasheet", "measured", "fitted")[o];
}

}  // namespace

std::string describe(const search::CheckReport& r) {
  const auto verdict = [](bool holds) { return holds ? "ok" : "fault"; };
  std::string text;
  if (r.cost_ps > 0)
    text += fmt::format("cost    {} ({} ps)  {}\n", show_time(r.cost_ps), r.cost_ps,
                        verdict(r.cost_holds));
  for (std::size_t i = 0; i < r.memory_bytes.size(); ++i) {
    text += fmt::format(
        "memory  {} of {}{}  {}\n", show_bytes(r.memory_bytes[i]),
        show_bytes(r.stage_limit_bytes.empty() ? r.limit_bytes : r.stage_limit_bytes[i]),
        r.memory_bytes.size() > 1 ? fmt::format(" (stage {})", i) : "", verdict(r.memory_holds));
  }
  if (!r.bound_ps) return text;
  // a plan that the multipliers do not speak of (planner.h)
  const bool beyond = r.cost_ps > 0 && *r.bound_ps > r.cost_ps;
  text += fmt::format("bound   {} ({} ps) by the multipliers{}  {}\n", show_time(*r.bound_ps),
                      *r.bound_ps,
                      beyond ? ", for 1F1B and GPipe on all devices: this plan is another" : "",
                      verdict(r.bound_holds));
  if (!beyond && r.cost_ps > 0)
    text +=
        fmt::format("gap     {:.4f} % to this bound  {}\n", 100 * r.gap(), verdict(r.gap_holds));
  return text;
}

namespace {

/// Of a mixed machine those of its kinds of device, in their order.
std::string profile_names(const model::Profile& profile) {
  if (profile.kinds.empty()) return profile.name;
  std::vector<std::string> names;
  for (const model::Profile& kind : profile.kinds) names.push_back(kind.name);
  return base::join(names, ", ");
}

}  // namespace

std::string describe_origin(const CostModel& cost) {
  const auto words = [](costmodel::Origin o) {
    return base::EnumNames<costmodel::Origin::kFitted>("from datasheets", "measured",
                                                       "fitted to measurements")[o];
  };
  const costmodel::Origin compute = cost.compute_origin(),
                          communication = cost.communication_origin();
  std::string text =
      compute == communication
          ? fmt::format("computation and communication {}", words(compute))
          : fmt::format("computation {}, communication {}", words(compute), words(communication));
  if (const auto& p = cost.profile()) {
    text += fmt::format(" (profile '{}'", profile_names(*p));
    if (p->framework) text += fmt::format(", software {}", p->provenance.software);
    text += ")";
  }
  return text;
}

std::string parameters_text(std::int64_t all, std::int64_t active) {
  const std::string text = fmt::format("{} parameters", base::grouped(real(all)));
  return active == all
             ? text
             : fmt::format("{}, {} active for a token", text, base::grouped(real(active)));
}

std::string percents(const costmodel::Band& band) {
  return fmt::format("{:+.1f} %, {:+.1f} %", 100 * (band.low - 1), 100 * (band.high - 1));
}

std::string describe_band(const Doubt& doubt, std::int64_t step_ps) {
  const auto at = [&](double share) { return show_time(std::llround(real(step_ps) * share)); };
  return fmt::format("80 % band: {} to {} ({}: {})", at(doubt.band.low), at(doubt.band.high),
                     percents(doubt.band), doubt.uncertainty.source);
}

Json origin_json(const CostModel& cost) {
  Json j = {{"compute", origin_word(cost.compute_origin())},
            {"communication", origin_word(cost.communication_origin())}};
  if (const auto& p = cost.profile()) {
    j["profile"] = profile_names(*p);
    if (p->framework) j["software"] = p->provenance.software;
  }
  return j;
}

Json origin_json(const CostModel& cost, const Doubt& doubt) {
  Json j = origin_json(cost), spread = Json::object();
  for (const auto& [name, field] : model::kSpreadFields)
    spread[name] = doubt.uncertainty.spread.*field;
  j["band"] = {{"beyond", doubt.uncertainty.beyond},
               {"coverage", costmodel::kCoverage},
               {"low", doubt.band.low},
               {"high", doubt.band.high},
               {"source", doubt.uncertainty.source},
               {"spread", spread}};
  return j;
}

base::Result<Doubt> doubt_of(const Plan& plan, const CostModel& cost) {
  Doubt doubt{costmodel::uncertainty_of(cost, plan), {}};
  TRY(const costmodel::Band band, costmodel::band_of(cost, plan, doubt.uncertainty.spread));
  doubt.band = doubt.uncertainty.widened(band);
  return doubt;
}

base::Result<AnswerDoubt> doubt_of(const search::PlanAnswer& answer, const CostModel& cost) {
  constexpr std::size_t kDrawn = 3;
  const Plan& best = answer.candidates.front().plan;
  AnswerDoubt doubt{.best = {costmodel::uncertainty_of(cost, best), {}}, .share_faster = {}};
  std::vector<const Plan*> plans;
  for (const search::Candidate& c : answer.candidates) {
    // prices are drawn in one order of devices
    if (plans.size() == kDrawn || c.plan.device_order != best.device_order) break;
    plans.push_back(&c.plan);
  }
  TRY(const auto draws,
      costmodel::drawn_steps(cost, plans, costmodel::draw_errors(doubt.best.uncertainty.spread)));
  doubt.best.band = doubt.best.uncertainty.widened(costmodel::band_of(draws.front()));
  const auto step = [&](std::size_t i) {
    return costmodel::DrawnStep{answer.candidates[i].report.step_time_ps, draws[i]};
  };
  for (std::size_t i = 1; i < draws.size(); ++i)
    doubt.share_faster.push_back(costmodel::share_faster(step(i), step(0)));
  return doubt;
}

Json to_json(const search::PlanAnswer& answer, const CostModel& cost,
             const std::optional<AnswerDoubt>& doubt, std::optional<double> seconds) {
  Json j{{"schema", "orrery.answer/1"},
         {"status", search::to_string(answer.status)},
         {"origin", doubt ? origin_json(cost, doubt->best) : origin_json(cost)}};
  j["search"] = {{"states", answer.states},
                 {"problems", answer.problems},
                 {"candidates", answer.candidates.size()},
                 {"order_changes", answer.order_changes},
                 {"certificate", search::to_json(answer.certificate)}};
  if (seconds) j["search"]["seconds"] = *seconds;
  j["pruned"] = pruned_json(answer.pruned);
  if (!answer.candidates.empty()) {
    j["plan"] = plan::to_json(answer.candidates.front().plan);
    j["predicted"] = sim::to_json(answer.candidates.front().report);
    const search::Balance balance = search::balance_of(answer.candidates.front().report);
    j["balance"] = {{"time", balance.time}, {"memory", balance.memory}};
    j["alternatives"] = Json::array();
    for (std::size_t i = 1; i < answer.candidates.size(); ++i) {
      const search::Candidate& c = answer.candidates[i];
      j["alternatives"].push_back({{"plan", plan::to_json(c.plan)},
                                   {"predicted", sim::to_json(c.report)},
                                   {"closed_form_ps", c.closed_form_ps}});
      if (doubt && i <= doubt->share_faster.size())
        j["alternatives"].back()["share_faster"] = doubt->share_faster[i - 1];
    }
    j["runners_up"] = json_list(answer.runners_up, [](const search::RunnerUp& r) -> Json {
      return {{"plan", plan::to_json(r.plan)},
              {"closed_form_ps", r.closed_form_ps},
              {"expected_ps", r.expected_ps}};
    });
  }
  if (answer.status == search::Status::kInfeasible) {
    j["shortfall_bytes"] = answer.shortfall_bytes;
    j["relaxations"] = json_list(answer.relaxations, [](const search::Relaxation& r) -> Json {
      return {{"change", r.change},
              {"memory_bytes", r.memory_bytes},
              {"step_time_s", real(r.step_time_ps) * 1e-12}};
    });
  }
  return j;
}

Json pruned_json(const std::vector<search::Pruned>& pruned) {
  return json_list(pruned, [](const search::Pruned& p) -> Json {
    return {{"candidate", p.candidate}, {"reason", p.text}};
  });
}

std::string describe_seconds(std::optional<double> seconds) {
  return seconds ? fmt::format(" in {:.3f} s", *seconds) : "";
}

void print_json(const Json& document) { fmt::print("{}", base::to_text(document)); }

}  // namespace orrery::cli

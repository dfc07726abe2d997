#include "cli/show.h"

#include <cstdio>
#include <set>

#include <fmt/format.h>

#include "base/units.h"

namespace orrery::cli {

std::string show_time(std::int64_t ps) { return base::to_string(base::Seconds(static_cast<double>(ps) * 1e-12)); }
std::string show_bytes(std::int64_t bytes) { return base::to_string(base::Bytes(static_cast<double>(bytes))); }

namespace {

std::string runs_text(const plan::Stage& stage) {
  std::string text;
  for (const plan::LayerRun& run : stage.runs)
    text += fmt::format("{}{} × {}", text.empty() ? "" : ", ", run.count, plan::to_string(run.strategy));
  return text;
}

}  // namespace

std::string describe(const plan::Plan& plan, std::int64_t devices) {
  constexpr std::size_t kAlike = 3;  // stages that share a line
  const std::string idle = devices > plan.world_size() ? fmt::format(" ({} of {} devices idle)", devices - plan.world_size(), devices) : "";
  const std::string chunks = plan.virtual_stages > 1 ? fmt::format(" ({} per pipeline rank)", plan.virtual_stages) : "";
  std::string text = fmt::format("{} on {}{}, {} ranks{}: {} stage{}{}, {} micro-batch{} of {} sequences × {} tokens, {}, {}\n", plan.model, plan.cluster,
                                 plan.hosts > 1 ? fmt::format(" × {} hosts", plan.hosts) : "", plan.world_size(), idle, plan.stages.size(),
                                 plan.stages.size() == 1 ? "" : "s", chunks, plan.micro_batches, plan.micro_batches == 1 ? "" : "es",
                                 plan.micro_batch_sequences(), plan.sequence, plan::to_string(plan.schedule), model::to_string(plan.precision));
  for (std::size_t s = 0; s < plan.stages.size();) {
    std::size_t end = s + 1;
    while (end < plan.stages.size() && plan.stages[end] == plan.stages[s]) ++end;
    if (end - s < kAlike) end = s + 1;
    text += fmt::format("  {}: {}\n", end == s + 1 ? fmt::format("stage {}", s) : fmt::format("stages {} to {}, each", s, end - 1), runs_text(plan.stages[s]));
    s = end;
  }
  return text + fmt::format("  embedding and head: {}\n", plan::to_string(plan.vocabulary));
}

std::string one_line(const plan::Plan& plan) {
  std::set<std::string> strategies;
  for (const plan::Stage& s : plan.stages)
    for (const plan::LayerRun& r : s.runs) strategies.insert(plan::to_string(r.strategy));
  const std::string layers = strategies.size() == 1 ? *strategies.begin() : fmt::format("{} strategies", strategies.size());
  const std::string chunks = plan.virtual_stages > 1 ? fmt::format(" v{}", plan.virtual_stages) : "";
  return fmt::format("pp{}{} m{} {} | {} | vocabulary {}", plan.pipeline_degree(), chunks, plan.micro_batches, plan::to_string(plan.schedule), layers,
                     plan::to_string(plan.vocabulary));
}

namespace {

const char* origin_word(costmodel::Origin o) {
  switch (o) {
    case costmodel::Origin::kMeasured: return "measured";
    case costmodel::Origin::kDatasheet: return "datasheet";
  }
  return "";
}

}  // namespace

std::string describe_origin(const costmodel::CostModel& cost) {
  return fmt::format("compute {}, communication {}", origin_word(cost.compute_origin()), origin_word(cost.communication_origin()));
}

base::Json origin_json(const costmodel::CostModel& cost) {
  return {{"compute", origin_word(cost.compute_origin())}, {"communication", origin_word(cost.communication_origin())}};
}

namespace {

base::Json certificate_json(const search::Certificate& c) {
  return {{"schema", "orrery.certificate/1"},
          {"cost_s", static_cast<double>(c.cost_ps) * 1e-12},
          {"cost_ps", c.cost_ps},
          {"bound_ps", c.bound_ps},
          {"gap", c.gap},
          {"stage_peak_bytes", c.stage_peak_bytes},
          {"memory_limit_bytes", c.memory_limit_bytes},
          {"cost_model_fingerprint", c.cost_model_fingerprint}};
}

}  // namespace

base::Json to_json(const search::PlanAnswer& answer, const costmodel::CostModel& cost, double seconds) {
  base::Json j{{"schema", "orrery.answer/1"}, {"status", std::string(search::to_string(answer.status))}, {"origin", origin_json(cost)}};
  j["search"] = {{"seconds", seconds},
                 {"states", answer.states},
                 {"problems", answer.problems},
                 {"candidates", answer.candidates.size()},
                 {"order_changes", answer.order_changes},
                 {"certificate", certificate_json(answer.certificate)}};
  j["pruned"] = base::Json::array();
  for (const search::Pruned& p : answer.pruned) j["pruned"].push_back({{"candidate", p.candidate}, {"reason", p.reason}});
  if (!answer.candidates.empty()) {
    j["plan"] = plan::to_json(answer.candidates.front().plan);
    j["predicted"] = sim::to_json(answer.candidates.front().report);
    j["alternatives"] = base::Json::array();
    for (std::size_t i = 1; i < answer.candidates.size(); ++i) {
      const search::Candidate& c = answer.candidates[i];
      j["alternatives"].push_back({{"plan", plan::to_json(c.plan)}, {"predicted", sim::to_json(c.report)}, {"closed_form_ps", c.closed_form_ps}});
    }
  }
  if (answer.status == search::Status::kInfeasible) {
    j["shortfall_bytes"] = answer.shortfall_bytes;
    j["relaxations"] = base::Json::array();
    for (const search::Relaxation& r : answer.relaxations)
      j["relaxations"].push_back({{"change", r.change}, {"memory_bytes", r.memory_bytes}, {"step_time_s", static_cast<double>(r.step_time_ps) * 1e-12}});
  }
  return j;
}

void print_json(const base::Json& document) { fmt::print("{}", base::to_text(document)); }

}  // namespace orrery::cli

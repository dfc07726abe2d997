#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "search/proof/certificate_check.h"
#include "search/proof/certificate_json.h"

namespace orrery::cli {

namespace {

Result<search::CheckReport> check_solution_file(const base::Node& root, const Options& o) {
  if (!o.has("instance")) {
    return refuse(kUsage, "a solution is checked against its cost table", "--instance is missing");
  }
  TRY(const search::Instance instance, search::load_instance(o.string("instance")));
  TRY(const search::Solution solution, search::read_solution(root));
  return search::check_solution(instance, solution);
}

Result<search::CheckReport> check_one_plan(const Plan& plan, search::PlanClaim claim,
                                           const Options& o) {
  TRY(const PriceNames prices, price_names(o));
  TRY(const Scene scene,
      make_scene(plan.model, plan.cluster, plan.hosts, prices, plan.precision, plan.sequence,
                 plan.world_size(), plan.device_order, plan.adapter));
  if (o.has("memory")) claim.memory_limit_bytes = memory_of(o);
  return search::check_plan(scene.cost, plan, claim);
}

/// A certificate is of the cheapest plan by closed form, which simulation may have put further
/// down.
Result<search::CheckReport> check_answer(const base::Node& root, const Options& o) {
  base::ErrorSink sink;
  base::Reader r(root, "answer", sink);
  r.allow_unknown();
  base::Reader effort(r.required_object("search"), "search", sink);
  const search::PlanClaim claim =
      search::read_certificate(effort.required_object("certificate"), sink);
  std::vector<base::Node> plans{r.required_object("plan")};
  for (const char* list : {"alternatives", "runners_up"}) {
    for (const base::Node& other : r.optional_list(list).value_or(std::vector<base::Node>{}))
      plans.push_back(other.find("plan").value_or(base::Node()));
  }
  TRY_VOID(sink.result());
  search::PlanClaim facts = claim;
  facts.proofs.clear();
  std::optional<Plan> best;
  std::size_t fewest = 0;
  for (const base::Node& node : plans) {
    TRY(Plan plan, plan::read_plan(node));
    TRY(const search::CheckReport report, check_one_plan(plan, facts, o));
    if (best && report.faults.size() >= fewest) continue;
    fewest = report.faults.size();
    best = std::move(plan);
  }
  return check_one_plan(*best, claim, o);
}

Result<search::CheckReport> check_file(const Options& o) {
  TRY(const base::Node root, base::Node::parse_file(o.string("FILE")));
  base::ErrorSink sink;
  const std::string schema = base::Reader(root, "answer", sink).required_string("schema");
  TRY_VOID(sink.result());
  if (schema == "orrery.solution/1") return check_solution_file(root, o);
  if (schema == "orrery.answer/1") return check_answer(root, o);
  TRY(const Plan plan, plan::read_plan(root));
  return check_one_plan(plan, {}, o);
}

}  // namespace

Json to_json(const search::CheckReport& report) {
  Json json{{"schema", "orrery.check/1"},
            {"holds", report.holds()},
            {"faults", report.faults},
            {"cost_ps", report.cost_ps},
            {"verdicts",
             {{"cost", report.cost_holds},
              {"memory", report.memory_holds},
              {"bound", report.bound_holds},
              {"gap", report.gap_holds}}},
            {"memory_bytes", report.memory_bytes},
            {"limit_bytes", report.limit_bytes}};
  if (!report.stage_limit_bytes.empty()) json["stage_limit_bytes"] = report.stage_limit_bytes;
  if (report.bound_ps) json["bound_ps"] = *report.bound_ps;
  if (report.bound_ps && report.cost_ps > 0) json["gap"] = report.gap();
  return json;
}

namespace {

Result<int> run(const Options& options, const Invocation&) {
  TRY(const search::CheckReport report, check_file(options));
  if (options.flag("json"))
    print_json(to_json(report));
  else
    fmt::print("{}{}\n", describe(report),
               report.holds() ? "the answer holds" : "the answer does not hold");
  if (report.holds()) return 0;
  base::Diagnostics faults;
  for (const std::string& fault : report.faults) {
    faults.push_back(
        base::make_error(report.only_too_large() ? kInfeasible : kInconsistent, "{}", fault));
    faults.back().where.file = options.string("FILE");
  }
  if (!report.cost_holds && !options.has("profile") && !options.has("software") &&
      !options.has("instance"))
    faults.front().hint =
        "an answer that was priced with a profile, for some software or for a target is checked "
        "with the same --profile, --software ('origin' of the answer names it)";
  return base::fail(std::move(faults));
}

}  // namespace

Command check_command() {
  return {
      {.name = "check",
       .summary = "recompute an answer without the search: cost, memory, limit and bound",
       .examples = {{"orrery check solution.json --instance instance.json",
                     "what 'orrery solve instance.json --json' printed"},
                    {"orrery check answer.json --profile llama2-7b-a100-8gpu",
                     "what 'orrery plan --json' printed: its certificate"},
                    {"orrery check plan.json --memory 36GiB",
                     "a plan alone: cost and memory by closed form and by its Program"}},
       .positionals = {{.name = "FILE",
                        .help = "orrery.solution/1, orrery.answer/1 or orrery.plan/1"}},
       .options = joined(
           {{text_option("instance", "FILE", "the cost table of a solution (orrery.instance/1)"),
             memory_option("limit per device (default: the certificate's, else the "
                           "device's memory)")},
            price_options(),
            {json_option()}})},
      run};
}

}  // namespace orrery::cli

#include "base/file.h"
#include "cli/command.h"
#include "cli/html/explain_page.h"
#include "cli/html/page.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "cli/text/show_explain.h"
#include "cli/text/terminal.h"
#include "search/explain/explain.h"
#include "search/space/space_text.h"

namespace orrery::cli {

namespace {

Result<void> read_versus(const std::string& text, search::ExplainRequest& request) {
  if (text.ends_with(".json")) {
    TRY(request.versus_plan, plan::load_plan(text));
    return {};
  }
  TRY(search::Space space, search::fix_values(text, request.problem.space));
  request.versus_space = search::VersusSpace{text, space};
  return {};
}

/// Two plans are held against each other on one machine, for one batch.
Result<void> check_alike(const Plan& a, const Plan& b) {
  base::ErrorSink sink;
  const auto same = [&](const char* field, const auto& x, const auto& y) {
    if (x == y) return;
    sink.add(base::make_error(kInconsistent, "the plans differ in {}: {} and {}", field, x, y)
                 .with_hint("plans are compared for the same work"));
  };
  same("model", a.model_fingerprint, b.model_fingerprint);
  same("sequence", a.sequence, b.sequence);
  same("global_batch", a.global_batch, b.global_batch);
  same("precision", model::to_string(a.precision), model::to_string(b.precision));
  return sink.result();
}

Result<int> run(const Options& o, const Invocation&) {
  search::ExplainRequest request;
  TRY(request.plan, plan::load_plan(o.string("plan")));
  const Plan& plan = request.plan;
  search::PlanRequest& problem = request.problem;
  problem.cluster = o.string_or("cluster", plan.cluster);
  problem.hosts = o.given("hosts") ? o.count("hosts") : plan.hosts;
  problem.memory_bytes = memory_of(o);
  problem.global_batch = plan.global_batch;
  problem.top = o.count("top");
  problem.threads = threads_of(o);
  problem.multipliers = false;  // an explanation states none
  TRY(const Scene scene, scene_of(o, plan));
  problem.space = search::usual_space(plan.sequence, scene.cost.overlaps_tensor());
  problem.space.zero_bubble_v = plan.schedule == plan::Schedule::kZeroBubbleV;
  problem.space.dual_pipe_v = plan.schedule == plan::Schedule::kDualPipeV;
  if (o.has("versus")) {
    TRY_VOID(read_versus(o.string("versus"), request));
    if (request.versus_plan) TRY_VOID(check_alike(plan, *request.versus_plan));
  }
  ProgressLine progress;
  problem.on_progress = [&](const search::Progress& p) { progress(p); };
  TRY(const search::Explanation e, search::explain(scene.cost, request));
  progress.clear();
  if (o.has("html")) {
    TRY(const std::string page, page_of("explain", explanation_page(e, scene.cost)));
    TRY_VOID(base::write_file_atomic(o.string("html"), page));
    say("page written to {}: open it in a browser\n", o.string("html"));
  }
  if (o.flag("json"))
    print_json(explanation_json(e, scene.cost));
  else
    fmt::print("{}", explanation_text(e, scene.cost));
  return e.limits.fits() ? 0 : 2;
}

}  // namespace

Command explain_command() {
  return {
      {.name = "explain",
       .summary = "say why a plan is as fast as it is, what limits it, and what else there is",
       .examples = {{"orrery explain --plan plan.json --memory 36GiB",
                     "a plan that 'orrery plan' wrote"},
                    {"orrery explain --plan plan.json --versus tp=8,pp=1",
                     "why not the best plan with these values"},
                    {"orrery explain --plan plan.json --versus mine.json", "why not this plan"}},
       .options = joined(
           {price_options(),
            {required(text_option("plan", "FILE", "plan (orrery.plan/1)")),
             text_option(
                 "versus", "K=V,...|FILE",
                 "hold the plan against the best one with these values, or against a plan (a "
                 "name that ends in .json)"),
             model_option(false), cluster_option(false), hosts_option(), memory_option(),
             integer_option("top", "K", {1, 1000}, "candidates that each search simulates", "8"),
             threads_option("candidates"), text_option("html", "FILE", "write a page to look at"),
             json_option()}})},
      run};
}

}  // namespace orrery::cli

#include "base/file.h"
#include "base/numbers.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/html/html_report.h"
#include "cli/html/page.h"
#include "cli/minimise.h"
#include "cli/plan_question.h"
#include "cli/run_options.h"
#include "cli/text/show.h"
#include "cli/text/terminal.h"
#include "costmodel/energy/power.h"
#include "costmodel/memory_limit.h"
#include "model/active_parameters.h"
#include "plan/lowering/lower.h"
#include "search/proof/certificate_json.h"
#include "search/space/space_text.h"

namespace orrery::cli {

namespace {

void print_infeasible(const search::PlanAnswer& answer, std::int64_t limit) {
  if (answer.shortfall_bytes == 0) {
    say("no strategy divides this model and batch over this cluster:\n");
    for (const search::Pruned& p : search::telling_reasons(answer.pruned, 5))
      say("  {}: {}\n", p.candidate, p.text);
    say("try a global batch that its devices divide, or fewer hosts\n");
    return;
  }
  say("no plan fits {} per device: the smallest needs {} more\n", show_bytes(limit),
      show_bytes(answer.shortfall_bytes));
  for (const search::Relaxation& r : answer.relaxations)
    say("  would fit with {}{}\n", r.change,
        r.step_time_ps > 0 ? fmt::format(": {} a step", show_time(r.step_time_ps)) : "");
}

/// What the search minimises, in words.
struct CostWords {
  double joules_per_ps = 0;  // 0: costs are times
  CostWords(const search::PlanAnswer& answer, const CostModel& cost) {
    if (answer.certificate.objective == costmodel::Objective::kEnergy)
      if (const auto power = costmodel::MachinePower::of(cost.topology()))
        joules_per_ps = power->waiting(cost.topology()).raw() / 1e12;
  }
  [[nodiscard]] bool energy() const { return joules_per_ps > 0; }
  std::string operator()(std::int64_t ps) const {
    return energy() ? sim::joules_text(joules_per_ps * real(ps)) : show_time(ps);
  }
};

/// Of a runner-up that was drawn with the first.
std::string describe_share(const AnswerDoubt& doubt, std::size_t runner_up) {
  if (runner_up >= doubt.share_faster.size()) return "";
  const double share = doubt.share_faster[runner_up];
  return fmt::format(", {:.0f} % chance to be faster{}", 100 * share,
                     costmodel::within_error(share) ? ": measure both" : "");
}

/// Simulated ones (--top), and the others by their expected times.
void print_runners_up(const search::PlanAnswer& answer, const AnswerDoubt& doubt,
                      const CostWords& words) {
  if (answer.candidates.size() + answer.runners_up.size() < 2) return;
  const auto best_ps = real(answer.candidates.front().simulated_ps());
  fmt::print("\nrunners-up, the best known of each other shape:\n");
  const std::size_t columns = terminal_columns();
  bool cut = false;
  const auto line = [&](std::int64_t ps, std::int64_t energy_ps, const std::string& more,
                        const Plan& plan) {
    const std::string whole = fmt::format(
        "  {:>10}  ({:+.1f} %{}{})  {}", show_time(ps - energy_ps),
        100.0 * (real(ps) / best_ps - 1.0), words.energy() ? " energy" : "", more, one_line(plan));
    const std::string shown = cut_to(whole, columns);
    cut = cut || shown != whole;
    fmt::print("{}\n", shown);
  };
  for (std::size_t i = 1; i < answer.candidates.size(); ++i) {
    const search::Candidate& c = answer.candidates[i];
    line(c.simulated_ps(), c.energy_ps, describe_share(doubt, i - 1), c.plan);
  }
  for (const search::RunnerUp& r : answer.runners_up)
    line(r.expected_ps, r.energy_ps, " expected", r.plan);
  if (cut) fmt::print("  …: cut at {} columns; --json has all\n", columns);
}

std::string search_words(const search::PlanAnswer& answer) {
  if (answer.certificate.bound_ps == 0) return "plans with one strategy alone, nothing is proved";
  if (answer.status != search::Status::kBudget) return "optimal by its cost model";
  return fmt::format(
      "stopped at its limit of effort (the optimum of its cost model is at most {:.2f} % less)",
      100 * answer.certificate.gap);
}

/// On how many hosts, where that was searched too.
std::string hosts_words(const LeastAnswer& least, Minimise what) {
  if (what == Minimise::kTime || least.given == 1) return "";
  if (!least.met)
    return "hosts: no number of them meets the limits of the run; this is the plan on all\n";
  const std::string open =
      least.undecided == 0
          ? ""
          : fmt::format("; undecided within the limit of effort: {}", least.undecided);
  return fmt::format("hosts: {} of {} are used; any other number takes more {}{}\n", least.hosts,
                     least.given, to_string(what), open);
}

void print_answer(const LeastAnswer& least, Minimise what, const CostModel& cost,
                  const search::PlanRequest& request, const AnswerDoubt& doubt,
                  std::optional<double> seconds) {
  const search::PlanAnswer& answer = least.answer;
  const CostWords words(answer, cost);
  const search::Candidate& best = answer.candidates.front();
  fmt::print("{}\n{}\n", describe(best.plan, cost.topology().device_count()),
             sim::to_text(best.report));
  const ModelSpec& model = cost.model();
  fmt::print("model: {}{}\n", parameters_text(model.parameters(), model::active_parameters(model)),
             model.frozen() ? fmt::format(", frozen; {} of adapters",
                                          base::grouped(real(model.trained_parameters())))
                            : "");
  fmt::print("memory: {}\n",
             memory_text(fullest_stage(best.plan, best.report, cost, request.memory_bytes)));
  fmt::print("prices: {}\n{}\n", describe_origin(cost),
             describe_band(doubt.best, best.report.step_time_ps));
  const double gap = 100 * answer.certificate.gap;
  fmt::print("{}search: {}{}: {} problems, {} states\n", hosts_words(least, what),
             search_words(answer), describe_seconds(seconds), answer.problems, answer.states);
  fmt::print(
      "cost model: {} by closed form (the step time above is simulated), no plan below {}, gap "
      "{:.2f} %\n",
      words(answer.certificate.cost_ps), words(answer.certificate.bound_ps), gap);
  if (!answer.certificate.proofs.empty())
    fmt::print(
        "certificate: its multipliers alone prove {} for 1F1B and GPipe on all devices, gap {:.2f} "
        "%\n",
        words(answer.certificate.multiplier_bound_ps), 100 * answer.certificate.multiplier_gap);
  if (const auto& partitions = answer.certificate.partition_bound_ps)
    fmt::print(
        "spatial-temporal: partitioned layers, in neither bound, compute {} a step at least\n",
        show_time(*partitions));
  if (request.space.zero_bubble_v || request.space.dual_pipe_v)
    fmt::print("stages in a V: in no bound, looked at with one strategy for all layers\n");
  print_runners_up(answer, doubt, words);
}

/// The page of the best plan's step, and the others.
Result<void> write_page(const std::string& file, const search::PlanAnswer& answer,
                        const CostModel& cost, std::int64_t stated_bytes,
                        const AnswerDoubt& doubt) {
  const CostWords shown(answer, cost);
  const Plan& best = answer.candidates.front().plan;
  TRY(const plan::Program program, plan::lower(best, cost.model()));
  TRY(const sim::SimReport report, sim::simulate(program, cost, {.picture = true}));
  const StepWords words{describe_band(doubt.best, report.step_time_ps), ""};
  const search::Certificate& c = answer.certificate;
  Json data = html_data(best, cost, report,
                        fullest_stage(best, report, cost, stated_bytes).limit_bytes, words);
  const std::string proved = c.bound_ps == 0
                                 ? "nothing is proved of others"
                                 : fmt::format("it proves that none is below {} (gap {:.2f} %)",
                                               shown(c.bound_ps), 100 * c.gap);
  data["proof"] = fmt::format(
      "The search solved or ruled out {} problems. By closed form this plan takes {}, and {}; the "
      "step time above is simulated. Expected: by closed form pass by pass; of a plan whose "
      "simulation was ended as slower, no less than that.",
      base::grouped(real(answer.problems)), shown(c.cost_ps), proved);
  data["others"] = Json::array();
  const auto add = [&](std::int64_t ps, const std::string& known, const Plan& plan) {
    std::string line = one_line(plan);
    if (line == one_line(best)) line += "; layers in another order";
    data["others"].push_back({{"step_ns", real(ps) / 1e3}, {"known", known}, {"plan", line}});
  };
  for (std::size_t i = 1; i < answer.candidates.size(); ++i)
    add(answer.candidates[i].report.step_time_ps, "simulated" + describe_share(doubt, i - 1),
        answer.candidates[i].plan);
  for (const search::RunnerUp& r : answer.runners_up)
    add(r.expected_ps - r.energy_ps, "expected", r.plan);
  TRY(const std::string page, page_of("report", data));
  TRY_VOID(base::write_file_atomic(file, page));
  say("page written to {}: open it in a browser\n", file);
  return {};
}

/// The certificate is of a cheapest candidate by closed form; several may cost the same.
Result<void> check_certificate(const search::PlanAnswer& answer, const CostModel& cost) {
  const search::Certificate& c = answer.certificate;
  search::CheckReport report;
  report.fault(&search::CheckReport::cost_holds, "no candidate has the certificate's cost");
  const auto try_plan = [&](std::int64_t closed_form_ps, const Plan& plan) -> Result<void> {
    if (report.holds() || closed_form_ps != c.cost_ps) return {};
    TRY(report, search::check_plan(cost, plan, search::claim_of(c)));
    return {};
  };
  for (const search::Candidate& one : answer.candidates)
    TRY_VOID(try_plan(one.closed_form_ps, one.plan));
  for (const search::RunnerUp& one : answer.runners_up)
    TRY_VOID(try_plan(one.closed_form_ps, one.plan));
  say("{}", describe(report));
  for (const std::string& fault : report.faults) say("check: {}\n", fault);
  if (!report.holds())
    return base::fail(kMismatch, "the checker refuses the certificate; please report this request");
  say("check: the certificate holds\n");
  return {};
}

/// Of an answer's first plan.
Result<EnergyAndRun> run_of_best(const Options& options, const search::PlanAnswer& answer,
                                 const CostModel& cost) {
  if (answer.candidates.empty()) return EnergyAndRun();
  const search::Candidate& best = answer.candidates.front();
  const Topology& topology = cost.topology();
  const bool minimised = answer.certificate.objective == costmodel::Objective::kEnergy;
  TRY(const bool energy, wants_energy(options, topology, minimised));
  if (!energy || best.report.energy)
    return energy_and_run(options, best.report, topology, failures_of(options));
  TRY(const plan::Program program, plan::lower(best.plan, cost.model()));
  TRY(const sim::SimReport report, sim::simulate(program, cost, {.energy = true}));
  return energy_and_run(options, report, topology, failures_of(options));
}

/// Of devices, of the best plan.
std::vector<std::string> order_of(const search::PlanAnswer& answer) {
  if (answer.candidates.empty()) return {};
  return answer.candidates.front().plan.device_order;
}

Result<int> run(const Options& options, const Invocation&) {
  const Stopwatch watch;
  TRY_VOID(check_run_options(options));
  TRY_VOID(check_company(options, {{"mtbf", "tokens"}}));
  TRY(PlanQuestion question, question_of(options));
  const Scene& scene = question.scene;
  search::PlanRequest& request = question.request;
  request.top = options.count("top");
  request.threads = threads_of(options);
  // The certificate of a document states its multipliers; a person asks for the check.
  request.multipliers = options.flag("check") || options.flag("json");
  ProgressLine progress;
  request.on_progress = [&](const search::Progress& p) { progress(p); };
  TRY(const LeastAnswer least, least_answer(options, question));
  const search::PlanAnswer& answer = least.answer;
  progress.clear();
  std::optional<double> seconds;
  if (options.flag("timing")) seconds = watch.seconds();
  TRY(const CostModel cost, scene.cost.in_order(order_of(answer)));
  if (options.flag("check") && !answer.candidates.empty())
    TRY_VOID(check_certificate(answer, cost));
  std::optional<AnswerDoubt> doubt;
  if (!answer.candidates.empty()) {
    TRY(doubt, doubt_of(answer, cost));
  }
  TRY(const EnergyAndRun run, run_of_best(options, answer, cost));
  if (options.flag("json")) {
    Json document = to_json(answer, cost, doubt, seconds);
    if (question.minimise != Minimise::kTime)
      document["minimised"] = {{"what", to_string(question.minimise)},
                               {"hosts", least.hosts},
                               {"hosts_given", least.given},
                               {"limits_met", least.met},
                               {"undecided", least.undecided}};
    run.add_to(document);
    print_json(document);
  }
  if (answer.status == search::Status::kInfeasible) {
    print_infeasible(answer, costmodel::MemoryLimit(cost, request.memory_bytes).least());
    return 2;
  }
  if (answer.candidates.empty()) {
    say("the limit of effort ended the search before it found a plan\n");
    return 0;
  }
  if (!options.flag("json")) {
    print_answer(least, question.minimise, cost, request, *doubt, seconds);
    fmt::print("{}", run.text());
  }
  if (options.has("html"))
    TRY_VOID(write_page(options.string("html"), answer, cost, request.memory_bytes, *doubt));
  if (options.has("out")) {
    TRY_VOID(
        base::write_json(options.string("out"), plan::to_json(answer.candidates.front().plan)));
    say("plan written to {}\n", options.string("out"));
  }
  return run.exit_code();
}

}  // namespace

Command plan_command() {
  return {
      {.name = "plan",
       .summary = "find the fastest plan, with a certificate and a reason for everything",
       .examples = {{"orrery plan --model llama-2-7b --cluster dgx-a100 --memory 36GiB "
                     "--global-batch 64 --sequence-length 2048 --out plan.json",
                     "best plan on one host, written to a file"},
                    {"orrery plan --model llama-3-70b --cluster dgx-h100 --hosts 8 --global-batch "
                     "256 --json",
                     "64 GPUs, for a script"},
                    {"orrery plan --model llama-2-7b --cluster dgx-a100 --fix tp=2,recompute=none "
                     "--target megatron",
                     "the best that Megatron-LM can run with tp 2"}},
       .options = joined(
           {question_options(true),
            {integer_option("top", "K", {1, 1000},
                            "plans that are simulated in full, the answer first", "1"),
             threads_option("candidates and numbers of hosts"),
             flag_option(
                 "check",
                 "recompute the certificate by the independent checker: cost, memory, and the "
                 "bound and gap of its multipliers"),
             output_option("out", "FILE", "write the best plan (orrery.plan/1)"),
             output_option("html", "FILE", "write a page to look at: the step, and other plans"),
             timing_option(), json_option()},
            failure_options("mean time between failures of one device (with --tokens)"),
            run_options()})},
      run};
}

}  // namespace orrery::cli

#include "plan_cases_fixture.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/json.h"
#include "base/numbers.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"

namespace orrery::executor::testing {

using plan::LayerStrategy;
using plan::Plan;
using plan::Recompute;
using plan::Schedule;

namespace {

constexpr std::int64_t kSequence = 32, kGlobalBatch = 8;

Plan uniform(const model::ModelSpec& model, plan::UniformOptions options) {
  options.global_batch = kGlobalBatch;
  options.sequence =
      model.patch_features > 0 ? model.max_positions : kSequence;  // an image is whole
  options.precision = model::Precision::kFloat32;
  base::Result<Plan> made = plan::uniform_plan(model, "local", 1, options);
  if (!made) throw std::runtime_error(base::to_string(made.error()));
  return *std::move(made);
}

PlanCase simple(std::string name, plan::UniformOptions options) {
  return {std::move(name), options.tp * options.pp * options.dp,
          [options](const model::ModelSpec& model) { return uniform(model, options); }};
}

// Every option twice: as it is, and with full recomputation.
void add_both(std::vector<PlanCase>& cases, const std::string& name, plan::UniformOptions options) {
  cases.push_back(simple(name, options));
  options.recompute = Recompute::kFull;
  cases.push_back(simple(name + "_recompute", options));
}

Plan mixed(const model::ModelSpec& model) {
  Plan p = uniform(model, {.tp = 2, .dp = 2, .micro_batch = 2});
  LayerStrategy first{.tp = 2, .dp = 2}, second{.tp = 1, .dp = 4, .zero = 3};
  p.stages[0].runs = {{.count = 2, .strategy = first}, {.count = 2, .strategy = second}};
  return p;
}

Plan mixed_sequence_parallel(const model::ModelSpec& model) {
  Plan p = uniform(model, {.dp = 4, .zero = 2, .micro_batch = 1});
  LayerStrategy first{.tp = 4, .dp = 1, .sequence_parallel = true},
      second{.tp = 2, .dp = 2, .zero = 1, .recompute = Recompute::kSelective};
  p.stages[0].runs = {{.count = 1, .strategy = first}, {.count = 3, .strategy = second}};
  return p;
}

Plan reduced_per_micro_batch(const model::ModelSpec& model) {
  Plan p = uniform(model, {.dp = 2, .zero = 3, .micro_batch = 1});
  p.vocabulary.grad_reduce = p.stages[0].runs[0].strategy.grad_reduce =
      plan::GradReduce::kMicroBatch;
  return p;
}

/// States of four ranks on pairs of neighbours, copied across the pairs.
PlanCase hybrid(int zero, plan::GradReduce reduce) {
  const std::string suffix =
      reduce == plan::GradReduce::kMicroBatch ? "_reduced_per_micro_batch" : "";
  return {fmt::format("dp4_zero{}_shard2{}", zero, suffix), 4, [=](const model::ModelSpec& model) {
            Plan p = uniform(model, {.dp = 4, .zero = zero, .micro_batch = 1});
            for (LayerStrategy* s : {&p.vocabulary, &p.stages[0].runs[0].strategy})
              s->shard = 2, s->grad_reduce = reduce;
            return p;
          }};
}

/// One strategy for all layers, and one for the vocabulary, on four ranks.
PlanCase everywhere(std::string name, const LayerStrategy& vocabulary,
                    const LayerStrategy& layers) {
  return {std::move(name), vocabulary.ranks(), [=](const model::ModelSpec& model) {
            Plan p = uniform(model, {.dp = 4, .micro_batch = 1});
            p.vocabulary = vocabulary;
            p.stages[0].runs[0].strategy = layers;
            return p;
          }};
}

/// Gradients that wait for the last backward.
void add_reductions_at_the_end(std::vector<PlanCase>& cases) {
  for (const int zero : {0, 1, 3}) {
    cases.push_back(simple(
        fmt::format("pp2_dp2_zero{}_reduced_at_the_end", zero),
        {.pp = 2, .dp = 2, .zero = zero, .grad_reduce = plan::GradReduce::kEnd, .micro_batch = 1}));
  }
}

void add_groups(std::vector<PlanCase>& cases) {
  cases.push_back(hybrid(1, plan::GradReduce::kStep));
  cases.push_back(hybrid(3, plan::GradReduce::kStep));
  cases.push_back(hybrid(3, plan::GradReduce::kMicroBatch));
  const LayerStrategy strided{.tp = 2, .dp = 2, .strided = true}, consecutive{.tp = 2, .dp = 2};
  cases.push_back(everywhere("strided", strided, strided));
  cases.push_back(
      everywhere("strided_zero3_sp_between_consecutive", consecutive,
                 {.tp = 2, .dp = 2, .zero = 3, .sequence_parallel = true, .strided = true}));
}

/// Zero 3 of some operators, and in slices.
void add_operators(std::vector<PlanCase>& cases) {
  using plan::ShardedOperators;
  const LayerStrategy data{.dp = 2}, both{.tp = 2, .dp = 2};
  LayerStrategy attention{.dp = 2, .zero = 3, .operators = ShardedOperators::kAttention};
  cases.push_back(everywhere("dp2_zero3_attention_alone", data, attention));
  attention.grad_reduce = plan::GradReduce::kMicroBatch;
  attention.slices = 2;
  cases.push_back(
      everywhere("dp2_zero3_attention_alone_sliced_reduced_per_micro_batch", data, attention));
  cases.push_back(everywhere("dp2_zero3_slices4_recompute", data,
                             {.dp = 2, .zero = 3, .recompute = Recompute::kFull, .slices = 4}));
  cases.push_back(everywhere("tp2_dp2_zero3_sp_mlp_alone_sliced", both,
                             {.tp = 2,
                              .dp = 2,
                              .zero = 3,
                              .sequence_parallel = true,
                              .operators = ShardedOperators::kMlp,
                              .slices = 2}));
  PlanCase split =
      simple("pp2_dp2_zero3_slices2_zb_h1",
             {.pp = 2, .dp = 2, .zero = 3, .schedule = Schedule::kZeroBubbleH1, .micro_batch = 1});
  split.make = [make = split.make](const model::ModelSpec& model) {
    Plan p = make(model);
    for (plan::Stage& stage : p.stages) {
      stage.runs[0].strategy.slices = 2;
      stage.runs[0].strategy.grad_reduce = plan::GradReduce::kMicroBatch;
    }
    return p;
  };
  cases.push_back(split);
}

/// Collectives of the tensor group in pieces beside products.
void add_pieces(std::vector<PlanCase>& cases) {
  const LayerStrategy pair{.tp = 2};
  cases.push_back(
      everywhere("tp2_sp_pieces2", pair, {.tp = 2, .sequence_parallel = true, .tensor_pieces = 2}));
  cases.push_back(everywhere(
      "tp4_sp_pieces4_recompute", {.tp = 4},
      {.tp = 4, .sequence_parallel = true, .recompute = Recompute::kFull, .tensor_pieces = 4}));
  cases.push_back(
      everywhere("tp2_sp_pieces2_dp2_zero3", {.tp = 2, .dp = 2},
                 {.tp = 2, .dp = 2, .zero = 3, .sequence_parallel = true, .tensor_pieces = 2}));
  cases.push_back(everywhere("tp2_sp_pieces2_cp2", {.tp = 2, .cp = 2},
                             {.tp = 2, .sequence_parallel = true, .cp = 2, .tensor_pieces = 2}));
  cases.push_back(simple("tp2_sp_pieces4_pp2_zb_h1", {.tp = 2,
                                                      .pp = 2,
                                                      .sequence_parallel = true,
                                                      .tensor_pieces = 4,
                                                      .schedule = Schedule::kZeroBubbleH1,
                                                      .micro_batch = 2}));
}

void add_recomputation_by_operator(std::vector<PlanCase>& cases) {
  constexpr Recompute kOperator = Recompute::kOperator;
  cases.push_back(
      everywhere("dp2_zero3_operator", {.dp = 2}, {.dp = 2, .zero = 3, .recompute = kOperator}));
  cases.push_back(
      everywhere("tp2_sp_pieces2_operator", {.tp = 2},
                 {.tp = 2, .sequence_parallel = true, .recompute = kOperator, .tensor_pieces = 2}));
  cases.push_back(simple("tp2_pp2_zb_h1_operator", {.tp = 2,
                                                    .pp = 2,
                                                    .recompute = kOperator,
                                                    .schedule = Schedule::kZeroBubbleH1,
                                                    .micro_batch = 2}));
}

/// Zig-zag order of eight chunks: rings of four and two ranks, Ulysses, and whole attention.
Plan mixed_context(const model::ModelSpec& model) {
  Plan p = uniform(model, {.dp = 4, .micro_batch = 1});
  const LayerStrategy ulysses{.dp = 2, .cp = 2, .context = plan::ContextKind::kUlysses};
  p.vocabulary = {.dp = 2, .cp = 2};
  p.stages[0].runs = {{.count = 1, .strategy = {.cp = 4}},
                      {.count = 1, .strategy = {.dp = 2, .recompute = Recompute::kFull, .cp = 2}},
                      {.count = 1, .strategy = ulysses},
                      {.count = 1, .strategy = {.dp = 4}}};
  return p;
}

void add_context(std::vector<PlanCase>& cases) {
  const LayerStrategy ring{.dp = 2, .cp = 2},
      ulysses{.dp = 2, .cp = 2, .context = plan::ContextKind::kUlysses};
  cases.push_back(everywhere("cp4_ring", {.cp = 4}, {.cp = 4}));
  cases.push_back(everywhere("cp2_ring_dp2_zero1", ring,
                             {.dp = 2, .zero = 1, .recompute = Recompute::kSelective, .cp = 2}));
  cases.push_back(
      everywhere("tp2_sp_cp2_ring_recompute", {.tp = 2, .cp = 2},
                 {.tp = 2, .sequence_parallel = true, .recompute = Recompute::kFull, .cp = 2}));
  cases.push_back(
      everywhere("cp4_ulysses", {.cp = 4}, {.cp = 4, .context = plan::ContextKind::kUlysses}));
  cases.push_back(everywhere("cp2_ulysses_between_dp4", {.dp = 4}, ulysses));
  cases.push_back({"cp4_and_cp2_rings_ulysses_and_whole", 4, mixed_context});
  cases.push_back(everywhere("cp2_ring_between_cp4", {.cp = 4}, ring));
  cases.push_back(everywhere("tp2_strided_cp2_ulysses_recompute",
                             {.tp = 2, .cp = 2, .strided = true},
                             {.tp = 2,
                              .recompute = Recompute::kFull,
                              .cp = 2,
                              .context = plan::ContextKind::kUlysses,
                              .strided = true}));
}

/// Stages placed as a V: on two ranks, on four, and with fewer micro-batches than a V has room for.
void add_v_shaped(std::vector<PlanCase>& cases) {
  for (const Schedule schedule : {Schedule::kZeroBubbleV, Schedule::kDualPipeV}) {
    const std::string suffix = schedule == Schedule::kZeroBubbleV ? "_zb_v" : "_dualpipe_v";
    add_both(cases, "pp2" + suffix, {.pp = 2, .schedule = schedule, .micro_batch = 2});
    cases.push_back(simple("pp4" + suffix, {.pp = 4, .schedule = schedule, .micro_batch = 1}));
    cases.push_back(simple("pp4_two_micro_batches" + suffix,
                           {.pp = 4, .schedule = schedule, .micro_batch = 4}));
    for (std::size_t i = cases.size() - 2; i < cases.size(); ++i) cases[i].layers = 8;
    cases.push_back(simple("pp2_dp2_zero2" + suffix,
                           {.pp = 2, .dp = 2, .zero = 2, .schedule = schedule, .micro_batch = 1}));
    cases.push_back(simple(
        "tp2_sp_pp2" + suffix,
        {.tp = 2, .pp = 2, .sequence_parallel = true, .schedule = schedule, .micro_batch = 1}));
  }
  cases.push_back(
      simple("pp2_dp2_zero3_zb_v",
             {.pp = 2, .dp = 2, .zero = 3, .schedule = Schedule::kZeroBubbleV, .micro_batch = 1}));
}

Plan uneven(const model::ModelSpec& model) {
  Plan p = uniform(model, {.pp = 2, .micro_batch = 2});
  p.stages[0].runs[0].count = 1;
  p.stages[1].runs[0].count = 3;
  return p;
}

std::vector<PlanCase> make_cases() {
  std::vector<PlanCase> cases;
  add_both(cases, "alone_micro_batches", {.micro_batch = 2});
  add_both(cases, "dp2", {.dp = 2, .micro_batch = 2});
  add_both(cases, "dp4", {.dp = 4, .micro_batch = 2});
  add_both(cases, "dp2_zero1", {.dp = 2, .zero = 1, .micro_batch = 2});
  add_both(cases, "dp2_zero2", {.dp = 2, .zero = 2, .micro_batch = 2});
  add_both(cases, "dp2_zero3", {.dp = 2, .zero = 3, .micro_batch = 2});
  cases.push_back(simple("dp2_zero2_one_micro_batch", {.dp = 2, .zero = 2, .micro_batch = 4}));
  cases.push_back({"dp2_zero3_reduced_per_micro_batch", 2, reduced_per_micro_batch});
  add_both(cases, "tp2", {.tp = 2, .micro_batch = 4});
  add_both(cases, "tp4", {.tp = 4, .micro_batch = 4});
  add_both(cases, "tp2_sp", {.tp = 2, .sequence_parallel = true, .micro_batch = 4});
  cases.push_back(simple(
      "tp2_sp_selective",
      {.tp = 2, .sequence_parallel = true, .recompute = Recompute::kSelective, .micro_batch = 4}));
  for (const Schedule schedule : {Schedule::kGPipe, Schedule::k1F1B}) {
    const std::string suffix = "_" + std::string(plan::to_string(schedule));
    add_both(cases, "pp2" + suffix, {.pp = 2, .schedule = schedule, .micro_batch = 2});
    add_both(cases, "pp4" + suffix, {.pp = 4, .schedule = schedule, .micro_batch = 1});
  }
  add_groups(cases);
  add_reductions_at_the_end(cases);
  add_context(cases);
  add_operators(cases);
  add_pieces(cases);
  add_recomputation_by_operator(cases);
  add_both(cases, "pp2_interleaved",
           {.pp = 2, .schedule = Schedule::kInterleaved, .micro_batch = 2, .virtual_stages = 2});
  add_both(cases, "pp2_zb_h1", {.pp = 2, .schedule = Schedule::kZeroBubbleH1, .micro_batch = 2});
  add_both(cases, "pp4_zb_h1", {.pp = 4, .schedule = Schedule::kZeroBubbleH1, .micro_batch = 1});
  cases.push_back(simple("tp2_sp_pp2_zb_h1", {.tp = 2,
                                              .pp = 2,
                                              .sequence_parallel = true,
                                              .schedule = Schedule::kZeroBubbleH1,
                                              .micro_batch = 2}));
  cases.push_back(
      simple("pp2_dp2_zero3_zb_h1",
             {.pp = 2, .dp = 2, .zero = 3, .schedule = Schedule::kZeroBubbleH1, .micro_batch = 1}));
  cases.push_back(simple("pp2_dp2_zero2_interleaved", {.pp = 2,
                                                       .dp = 2,
                                                       .zero = 2,
                                                       .schedule = Schedule::kInterleaved,
                                                       .micro_batch = 1,
                                                       .virtual_stages = 2}));
  add_v_shaped(cases);
  cases.push_back({"pp2_uneven", 2, uneven});
  add_both(cases, "tp2_pp2", {.tp = 2, .pp = 2, .micro_batch = 2});
  add_both(cases, "tp2_dp2_zero3", {.tp = 2, .dp = 2, .zero = 3, .micro_batch = 2});
  add_both(cases, "pp2_dp2_zero1", {.pp = 2, .dp = 2, .zero = 1, .micro_batch = 2});
  cases.push_back({"mixed_tp2_then_dp4_zero3", 4, mixed});
  cases.push_back({"mixed_tp4_sp_then_tp2", 4, mixed_sequence_parallel});
  cases.push_back(simple(
      "tp2_pp2_dp2_zero3_recompute",
      {.tp = 2, .pp = 2, .dp = 2, .zero = 3, .recompute = Recompute::kFull, .micro_batch = 2}));
  for (auto* more : {&partition_cases, &offload_cases})
    for (PlanCase& c : more()) cases.push_back(std::move(c));
  return cases;
}

}  // namespace

const std::vector<PlanCase>& plan_cases() {
  static const std::vector<PlanCase> cases = make_cases();
  return cases;
}

const PlanCase& plan_case(const std::string& name) {
  for (const PlanCase& c : plan_cases()) {
    if (c.name == name) return c;
  }
  throw std::runtime_error("no plan case '" + name + "'");
}

model::ModelSpec small_model(const std::string& family) {
  model::ModelSpec m;
  m.name = "small " + family;
  m.layers = 4;
  m.hidden = 64;
  m.heads = 4;
  m.head_dim = 16;
  m.vocab = 259;
  m.max_positions = 48;
  if (family == "gpt2") {
    m.kv_heads = 4;
    m.ffn = 256;
    return m;
  }
  m.family = model::Family::kLlama;
  m.kv_heads = 4;
  m.heads = 8;
  m.head_dim = 8;
  m.ffn = 160;
  m.norm = model::NormKind::kRmsNorm;
  m.activation = model::Activation::kSilu;
  m.gated_mlp = true;
  m.qkv_bias = m.projection_bias = m.mlp_bias = false;
  m.tied_embeddings = false;
  m.position = model::PositionKind::kRotary;
  return m;
}

model::ModelSpec model_of(const PlanCase& plan_case, const std::string& family) {
  model::ModelSpec m = small_model(family);
  m.layers = plan_case.layers;
  return m;
}

plan::Program lowered(const model::ModelSpec& model, plan::UniformOptions options) {
  return lowered(model, options, [](plan::Plan&) {});
}

plan::Program lowered(const model::ModelSpec& model, plan::UniformOptions options,
                      const std::function<void(plan::Plan&)>& change) {
  Plan plan = uniform(model, options);
  change(plan);
  base::Result<plan::Program> program = plan::lower(plan, model);
  if (!program) throw std::runtime_error(base::to_string(program.error()));
  return *std::move(program);
}

double expect_stated_bytes(const plan::Program& program,
                           const std::vector<std::int64_t>& peak_bytes) {
  double largest = 0;
  for (std::size_t stage = 0; stage < program.classes.size(); ++stage) {
    const auto stated =
        static_cast<double>(plan::static_memory(program, program.classes[stage]).peak_bytes);
    const double error = static_cast<double>(peak_bytes[stage]) / stated - 1;
    EXPECT_NEAR(error, 0, 0.05) << "stage " << stage;
    if (std::abs(error) > std::abs(largest)) largest = error;
  }
  return largest;
}

plan::Program lowered(const PlanCase& plan_case, const model::ModelSpec& model) {
  base::Result<plan::Program> program = plan::lower(plan_case.make(model), model);
  if (!program) throw std::runtime_error(base::to_string(program.error()));
  return *std::move(program);
}

RunOptions training() {
  RunOptions options;
  options.steps = 30;
  options.seed = 7;
  options.optimizer.learning_rate = 3e-4;
  options.device = "cpu";
  return options;
}

int steps_together() {
  const char* asked = std::getenv("ORRERY_TEST_STEPS");
  return asked != nullptr ? std::clamp(std::stoi(asked), 3, training().steps) : 8;
}

std::map<int, std::vector<std::string>> order_of(const plan::Program& program,
                                                 const plan::Timeline& timeline) {
  std::map<int, std::vector<std::string>> order;
  for (const plan::Span& s : plan::canonical(timeline).spans) {
    const plan::Op& op = program.templates[plan::TemplateId(s.template_id)].ops[s.template_index];
    if (op.kind == plan::OpKind::kExchange && std::ranges::all_of(op.legs, &plan::Leg::send))
      continue;
    order[s.rank].push_back(fmt::format("{} {}.{} layer {} micro-batch {}", s.name, s.template_id,
                                        s.template_index, s.layer, s.micro_batch));
  }
  return order;
}

const Curve& trained_once(const std::string& key, const std::function<Curve()>& train) {
  static std::map<std::string, Curve> known;
  const auto at = known.find(key);
  return at != known.end() ? at->second : known.emplace(key, train()).first->second;
}

Curve train_alone(const model::ModelSpec& model) {
  return trained_once(model.fingerprint(), [&] {
    at::set_num_threads(1);  // as the ranks have; threads that spin beside them would slow both
    const PlanCase alone = simple("alone", {.micro_batch = kGlobalBatch});
    RunOptions options = training();
    options.backend = "self";
    base::Result<RunReport> report = run(lowered(alone, model), options);
    if (!report) throw std::runtime_error(base::to_string(report.error()));
    Curve curve{.losses = {}, .peak_memory_bytes = report->peak_memory_bytes, .order = {}};
    for (const StepResult& s : report->steps) curve.losses.push_back(s.loss);
    return curve;
  });
}

base::Json train_over_mpi(const plan::Program& program, int steps) {
  RunOptions options = training();
  options.steps = steps;
  options.backend = "mpi";
  const base::Result<RunReport> report = run(program, options);
  if (!report) {
    ADD_FAILURE() << base::to_string(report.error());
    return {};
  }
  std::vector<double> losses;
  for (const StepResult& s : report->steps) losses.push_back(s.loss);
  return {{"losses", losses}, {"peaks", report->peak_memory_bytes}};
}

void expect_trained_like_one(const model::ModelSpec& model, const plan::Program& program,
                             const base::Json& found, const char* layout, const char* name) {
  const auto faults = plan::check(program);
  ASSERT_TRUE(faults.empty()) << faults.front().message;
  const Curve alone = train_alone(model);
  EXPECT_LT(alone.losses.back(), 0.95 * alone.losses.front()) << "the model does not learn";
  const double difference =
      difference_of_first(found.at("losses").get<std::vector<double>>(), alone.losses);
  EXPECT_LE(difference, 1e-6);
  const double bytes =
      expect_stated_bytes(program, found.at("peaks").get<std::vector<std::int64_t>>());
  std::printf("%-38s loss %.1e  memory %+.2f %%  %s\n", layout, difference, 100 * bytes, name);
}

std::vector<Curve> train_ranks(const PlanCase& plan_case) {
  std::vector<RankCase> cases;
  for (const PlanCase& c : plan_cases()) cases.push_back({c.name, c.ranks});
  const std::optional<base::Json> json =
      found_by_ranks("Rank.Trains", {plan_case.name, plan_case.ranks}, cases);
  if (!json) return {};
  std::vector<Curve> curves;
  for (const char* family : kFamilies) {
    const base::Json& j = json->at(family);
    curves.push_back(
        {j.at("losses").get<std::vector<double>>(), j.at("peaks").get<std::vector<std::int64_t>>(),
         j.at("order").get<decltype(Curve::order)>(), j.at("in_arena").get<std::vector<double>>()});
  }
  return curves;
}

double difference_of_first(const std::vector<double>& losses, std::vector<double> alone) {
  EXPECT_GE(losses.size(), as_index(steps_together()));
  alone.resize(std::min(alone.size(), losses.size()));
  return largest_relative_difference(losses, alone);
}

double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return worst;
}

}  // namespace orrery::executor::testing

// Low-rank adapters train like one process: AdamW steps in fp32, losses equal to 1e-6, under
// every parallel dimension alone and in mixtures. Frozen weights stay as they are, and B = 0 at
// first is the model without adapters.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "base/json.h"
#include "executor/runtime/interpreter.h"
#include "executor/state/data.h"
#include "plan/check/check.h"
#include "plan_cases_fixture.h"
#include "tests/support/rank_body.h"

namespace orrery::executor::testing {
namespace {

using model::ModelSpec;
using plan::Recompute;
using plan::Schedule;

ModelSpec adapted(const ModelSpec& m, const char* targets) {
  return model::with_adapter(m, model::adapter_of(4, targets).value()).value();
}

struct Kind {
  const char* name;
  const char* family;
  const char* targets;
  bool sinks = false;  // and biases, norms of queries and keys
};
constexpr Kind kKinds[] = {{"llama", "llama", "all-linear"},
                           {"gpt2", "gpt2", "all-linear"},
                           {"queries, keys and values alone", "llama", "qkv"},
                           {"the MLP of a model with sinks", "llama", "mlp", true}};

ModelSpec model_of(const Kind& kind) {
  ModelSpec m = small_model(kind.family);
  if (kind.sinks) {
    m.sinks = m.qkv_bias = m.projection_bias = true;
    m.qk_norm = model::QkNorm::kHead;
  }
  return adapted(m, kind.targets);
}

using Options = plan::UniformOptions;
const NamedOptions& plans() {
  static const NamedOptions kPlans{
      {"tp2", {.tp = 2}},
      {"tp2_sp", {.tp = 2, .sequence_parallel = true}},
      {"tp2_sp_pieces2", {.tp = 2, .sequence_parallel = true, .tensor_pieces = 2}},
      {"dp2", {.dp = 2}},
      {"dp2_zero2", {.dp = 2, .zero = 2}},
      {"dp2_zero3", {.dp = 2, .zero = 3}},
      {"pp2", {.pp = 2}},
      {"pp2_zb_h1", {.pp = 2, .schedule = Schedule::kZeroBubbleH1}},
      {"cp2", {.cp = 2}},
      {"tp2_sp_pp2_recompute",
       {.tp = 2, .pp = 2, .sequence_parallel = true, .recompute = Recompute::kFull}},
      {"tp2_dp2_zero3_selective",
       {.tp = 2, .dp = 2, .zero = 3, .recompute = Recompute::kSelective}}};
  return kPlans;
}
bool runs(const Kind& kind, const Options& o) { return !kind.sinks || o.cp == 1; }

plan::Program program_of(const ModelSpec& m, Options o) {
  o.micro_batch = o.dp * o.cp == 1 ? 4 : 2;
  return lowered(m, o);
}

/// Adapters take larger steps than whole models.
RunOptions fine_tuning() {
  RunOptions options = training();
  options.optimizer.learning_rate = 2e-3;
  return options;
}

std::vector<double> losses_of(const ModelSpec& m, const Options& o, const char* backend) {
  RunOptions options = fine_tuning();
  options.backend = backend;
  if (options.backend != "self") options.steps = steps_together();
  const auto report = run(program_of(m, o), options);
  if (!report) throw std::runtime_error(base::to_string(report.error()));
  std::vector<double> losses;
  for (const StepResult& s : report->steps) losses.push_back(s.loss);
  return losses;
}

TEST(AdaptersAlone, BeginAsTheModelWithoutThemAndLearn) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const ModelSpec m = model_of(kind);
    ModelSpec base = m;
    base.adapter = {};
    const std::vector<double> with = losses_of(m, {}, "self"),
                              without = losses_of(base, {}, "self");
    EXPECT_EQ(with.front(), without.front());
    EXPECT_NE(with.back(), without.back());
    EXPECT_LT(with.back(), with.front());
  }
}

TEST(AdaptersAlone, MoveAndFrozenWeightsDoNot) {
  const plan::Program program = program_of(model_of(kKinds[0]), {});
  RunOptions options = fine_tuning();
  Site site = open_site("cpu", "self", 1).value();
  const TokenData data = TokenData::open("", program.spec.vocab, program.sequence).value();
  const auto trained =
      Interpreter::create(program, *site.communicator, &data, site, options).value();
  std::map<std::pair<std::uint32_t, std::int64_t>, at::Tensor> before;
  const auto& states = program.classes[0].persistent;
  for (const auto& s : states)
    before[{s.buffer.raw(), s.layer}] = trained->persistent(s.buffer, s.layer).clone();
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(trained->step(step, false));
  int frozen = 0;
  for (const auto& s : states) {
    const plan::BufferDecl& decl = program.buffers[s.buffer];
    if (decl.category != plan::BufferCategory::kParameter) continue;
    const bool still =
        trained->persistent(s.buffer, s.layer).equal(before.at({s.buffer.raw(), s.layer}));
    EXPECT_EQ(still, program.units[*decl.unit].frozen) << decl.name << " of layer " << s.layer;
    frozen += still ? 1 : 0;
  }
  EXPECT_EQ(frozen, 4 + 3);  // layers; embedding, head, final norm
}

class Adapters : public ::testing::TestWithParam<std::size_t> {};

std::vector<double> losses_alone(const ModelSpec& m) {
  return trained_once(m.fingerprint(),
                      [&] {
                        return Curve{losses_of(m, {}, "self"), {}, {}};
                      })
      .losses;
}

TEST_P(Adapters, TrainLikeOneProcess) {
  const auto& [name, options] = plans()[GetParam()];
  const std::optional<base::Json> json =
      found_by_ranks("AdapterRank.Trains", rank_case(plans()[GetParam()]), rank_cases(plans()));
  ASSERT_TRUE(json);
  for (const Kind& kind : kKinds) {
    if (!runs(kind, options)) continue;
    SCOPED_TRACE(kind.name);
    const ModelSpec m = model_of(kind);
    const auto faults = plan::check(program_of(m, options));
    ASSERT_TRUE(faults.empty()) << faults.front().message;
    const double difference =
        difference_of_first(json->at(kind.name).get<std::vector<double>>(), losses_alone(m));
    EXPECT_LE(difference, 1e-6);
    std::printf("%-24s loss %.1e  %s\n", name.c_str(), difference, kind.name);
  }
}
INSTANTIATE_TEST_SUITE_P(Plans, Adapters, ::testing::Range(std::size_t{0}, plans().size()),
                         [](const auto& tested) { return plans()[tested.param].first; });

// Not a test of its own: what each rank of the test above runs.
RANK_BODY(AdapterRank, Trains) {
  find_for_cases([](const std::string& name) {
    const Options& options =
        std::ranges::find(plans(), name, &NamedOptions::value_type::first)->second;
    base::Json out;
    for (const Kind& kind : kKinds)
      if (runs(kind, options)) out[kind.name] = losses_of(model_of(kind), options, "mpi");
    return out;
  });
}

}  // namespace
}  // namespace orrery::executor::testing

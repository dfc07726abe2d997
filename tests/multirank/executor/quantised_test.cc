// Training with products below bf16, on one process and on several. The tensors that are quantised
// are the same ones: micro-batches are of as many sequences on every data rank, and tensor ranks
// hold whole blocks. Data and pipeline ranks add the same numbers in the same order. Tensor ranks
// round partial sums to bf16, which moves losses by as much as another order of summation in one
// process does: a bit of a sum becomes a code, which is a 16th or a quarter.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "base/json.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "plan_cases_fixture.h"
#include "tests/support/rank_body.h"

namespace orrery::executor::testing {
namespace {

using model::Precision;

struct Layout {
  const char* name;
  plan::UniformOptions options;
  [[nodiscard]] int ranks() const { return options.tp * options.pp * options.dp; }
};
const Layout kAlone{"alone", {.micro_batch = 4}};
const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      {"pp2_dp2_zero1", {.pp = 2, .dp = 2, .zero = 1, .micro_batch = 4}},
      {"tp2", {.tp = 2, .micro_batch = 4}},
      {"tp2_sp_dp2_zero3",
       {.tp = 2, .dp = 2, .zero = 3, .sequence_parallel = true, .micro_batch = 4}}};
  return all;
}

/// Wide enough that tensor ranks hold whole blocks of 128.
model::ModelSpec wide_model(const std::string& family) {
  model::ModelSpec m = small_model(family);
  m.layers = 2;
  m.hidden = 256;
  m.heads = m.kv_heads = 8;
  m.head_dim = 32;
  m.ffn = 512;
  return m;
}

plan::Program program_of(const Layout& layout, Precision precision, const model::ModelSpec& model) {
  plan::UniformOptions options = layout.options;
  options.global_batch = 8;
  options.sequence = 32;
  options.precision = precision;
  base::Result<plan::Plan> plan = plan::uniform_plan(model, "local", 1, options);
  if (!plan) throw std::runtime_error(base::to_string(plan.error()));
  base::Result<plan::Program> program = plan::lower(*plan, model);
  if (!program) throw std::runtime_error(base::to_string(program.error()));
  return *std::move(program);
}

Curve curve_of(const RunReport& report) {
  Curve curve{.losses = {}, .peak_memory_bytes = report.peak_memory_bytes, .order = {}};
  for (const StepResult& s : report.steps) curve.losses.push_back(s.loss);
  return curve;
}

Curve alone(Precision precision, const std::string& family) {
  return trained_once(fmt::format("{} {}", to_string(precision), family), [&] {
    at::set_num_threads(1);
    RunOptions options = training();
    options.backend = "self";
    base::Result<RunReport> report =
        run(program_of(kAlone, precision, wide_model(family)), options);
    if (!report) throw std::runtime_error(base::to_string(report.error()));
    return curve_of(*report);
  });
}

constexpr Precision kPrecisions[] = {Precision::kFp8Delayed, Precision::kFp8Current,
                                     Precision::kFp8Block, Precision::kMxFp8, Precision::kNvFp4};
std::string case_name(Precision precision, const Layout& layout) {
  return fmt::format("{} {}", to_string(precision), layout.name);
}
std::vector<RankCase> rank_cases_of_all() {
  std::vector<RankCase> all;
  for (const Precision precision : kPrecisions)
    for (const Layout& layout : layouts())
      all.push_back({case_name(precision, layout), layout.ranks()});
  return all;
}

/// Both families, by kFamilies.
std::vector<Curve> together(const Layout& layout, Precision precision) {
  const std::optional<base::Json> json = found_by_ranks(
      "Quantised.Trains", {case_name(precision, layout), layout.ranks()}, rank_cases_of_all());
  if (!json) return {};
  std::vector<Curve> curves;
  for (const char* family : kFamilies)
    curves.push_back({json->at(family).at("losses").get<std::vector<double>>(),
                      json->at(family).at("peaks").get<std::vector<std::int64_t>>(),
                      {}});
  return curves;
}

/// How far losses may be from those in bf16, and on tensor ranks from those on one process: twice
/// to three times what was measured. Another order of summation in one process (2 and 3 threads)
/// moves them by 2.6e-4 to 8.9e-4 in fp8, by 2.2e-3 in nvfp4.
struct Tolerance {
  Precision precision;
  double unquantised, tensor_ranks;
};
constexpr double kSameOrder = 1e-6;  // as Exactness has it in fp32

class QuantisedTraining : public ::testing::TestWithParam<Tolerance> {};

void expect_like(const Curve& one, const Curve& several, const Layout& layout, double tolerance,
                 const std::string& family, Precision precision) {
  SCOPED_TRACE(fmt::format("{} {} {}", to_string(precision), layout.name, family));
  const plan::Program program = program_of(layout, precision, wide_model(family));
  const auto faults = plan::check(program);
  ASSERT_TRUE(faults.empty()) << faults.front().message;
  const double difference = difference_of_first(several.losses, one.losses);
  EXPECT_LE(difference, tolerance);
  const double memory = expect_stated_bytes(program, several.peak_memory_bytes);
  std::printf("%-12s %-18s %-6s loss %.1e memory %+.2f%%\n", to_string(precision).data(),
              layout.name, family.c_str(), difference, 100 * memory);
}

TEST_P(QuantisedTraining, LossesOfAnyRanksAreThoseOfOneProcessAndNearTheUnquantised) {
  const Tolerance t = GetParam();
  std::vector<Curve> ones;
  for (const char* family : kFamilies) {
    SCOPED_TRACE(family);
    ones.push_back(alone(t.precision, family));
    const Curve plain = alone(Precision::kBFloat16, family);
    EXPECT_LT(ones.back().losses.back(), 0.9 * ones.back().losses.front());
    const double difference = largest_relative_difference(ones.back().losses, plain.losses);
    std::printf("%-12s %-18s %-6s loss %.1e\n", to_string(t.precision).data(), "bf16", family,
                difference);
    EXPECT_GT(difference, 0);
    EXPECT_LE(difference, t.unquantised);
  }
  for (const Layout& layout : layouts()) {
    const std::vector<Curve> curves = together(layout, t.precision);
    ASSERT_EQ(curves.size(), kFamilies.size());
    const double tolerance = layout.options.tp > 1 ? t.tensor_ranks : kSameOrder;
    for (std::size_t i = 0; i < curves.size(); ++i)
      expect_like(ones[i], curves[i], layout, tolerance, kFamilies[i], t.precision);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantisedTraining,
                         ::testing::Values(Tolerance{Precision::kFp8Delayed, 5e-3, 2e-3},
                                           Tolerance{Precision::kFp8Current, 5e-3, 2e-3},
                                           Tolerance{Precision::kFp8Block, 5e-3, 2e-3},
                                           Tolerance{Precision::kMxFp8, 5e-3, 2e-3},
                                           Tolerance{Precision::kNvFp4, 2e-2, 1e-2}),
                         [](const auto& tested) {
                           std::string name{to_string(tested.param.precision)};
                           std::erase(name, '-');
                           return name;
                         });

// Not a test of its own: what each rank of together() runs.
RANK_BODY(Quantised, Trains) {
  find_for_cases([](const std::string& name) {
    base::Json out;
    for (const Precision precision : kPrecisions) {
      for (const Layout& layout : layouts()) {
        if (case_name(precision, layout) != name) continue;
        const int steps = precision == Precision::kFp8Delayed ? training().steps : steps_together();
        for (const char* family : kFamilies)
          out[family] = train_over_mpi(program_of(layout, precision, wide_model(family)), steps);
      }
    }
    return out;
  });
}

}  // namespace
}  // namespace orrery::executor::testing

// Mixtures of experts train like one process: AdamW steps in fp32, losses equal to 1e-6, bytes
// those of the Program. A router's capacity counts tokens of one sequence on one rank; so where
// ranks share the tokens of a sequence, capacity is such that nothing is dropped.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/json.h"
#include "plan_cases_fixture.h"
#include "tests/support/rank_body.h"
#include "tests/support/small_kinds.h"

namespace orrery::executor::testing {
namespace {

using model::ModelSpec;

struct Mixture {
  const char* name;
  ModelSpec (*make)();
  [[nodiscard]] bool drops() const {
    const ModelSpec m = make();
    for (int k = 0; k < m.kinds(); ++k)
      if (const ModelSpec kind = m.of_kind(k); kind.experts > 0 && kind.expert_capacity(32) < 32)
        return true;
    return false;
  }
};

ModelSpec mixture(std::int64_t experts, double capacity_factor) {
  ModelSpec m = small_model("llama");
  m.ffn = 48;
  m.experts = experts;
  m.experts_per_token = 2;
  m.capacity_factor = capacity_factor;
  return m;
}

ModelSpec undropped(const char* name) {
  ModelSpec m = model::find_model(name).value();
  m.capacity_factor = 2;
  return m;
}

const Mixture kMixtures[] = {
    {"4 experts, balanced capacity", [] { return mixture(4, 1); }},
    {"8 experts, a gated shared one",
     [] {
       ModelSpec m = mixture(8, 1.25);
       m.shared_ffn = 64;
       return m;
     }},
    {"4 experts, nothing dropped", [] { return mixture(4, 2); }},
    {"8 experts, a gated shared one, nothing dropped",
     [] {
       ModelSpec m = mixture(8, 4);
       m.shared_ffn = 64;
       return m;
     }},
    {"GPT-OSS: biases, a clamped gate, nothing dropped",
     [] {
       ModelSpec m = mixture(4, 2);
       m.activation = model::Activation::kClampedSwiglu;
       m.sinks = m.qkv_bias = m.projection_bias = m.expert_bias = true;
       return m;
     }},
    {"DeepSeek-V2: two of four groups, gates as they are",
     [] {
       ModelSpec m = mixture(8, 1.25);
       m.routing = {.groups = 4, .groups_per_token = 2, .normalised = false, .scale = 4};
       return m;
     }},
    {"DeepSeek-V3: sigmoids, two of four groups, a shared expert, nothing dropped",
     [] {
       ModelSpec m = mixture(8, 4);
       m.shared_gate = false;
       m.shared_ffn = 48;
       m.routing = {.sigmoid = true, .groups = 4, .groups_per_token = 2, .scale = 2.5};
       return m;
     }},
    {"Llama 4: sigmoids of one choice weight what experts read, nothing dropped",
     [] { return tests::small_llama4(); }},
    {"experts in a latent, a shared one outside it, nothing dropped",
     [] {
       ModelSpec m = mixture(8, 4);
       m.expert_hidden = 24;
       m.shared_gate = false;
       m.shared_ffn = 48;
       return m;
     }},
    {"Nemotron-H: Mamba-2, attention, MLPs and mixtures, nothing dropped",
     [] { return undropped("nemotron-h-tiny"); }},
    {"Qwen3-Next: gated DeltaNet and attention, each before a mixture, nothing dropped",
     [] { return undropped("qwen3-next-tiny"); }},
    {"a dense block, then mixtures with a shared expert, nothing dropped", [] {
       ModelSpec m = mixture(8, 4);
       m.shared_gate = false;
       m.shared_ffn = 48;
       model::BlockShape dense = m, routed = m;
       dense.experts = dense.experts_per_token = dense.shared_ffn = 0;
       dense.ffn = 160;
       m.runs = {{"dense", 2, dense}, {"mixture", 2, routed}};
       return m;
     }}};

struct Layout {
  const char* name;
  plan::UniformOptions options;
  [[nodiscard]] int ranks() const { return options.tp * options.pp * options.dp * options.cp; }
  [[nodiscard]] bool shares_tokens() const { return options.folded || options.cp > 1; }
};
const std::vector<Layout>& layouts() {
  using plan::Recompute;
  static const std::vector<Layout> all{
      {"dp2", {.dp = 2, .zero = 1}},
      {"dp4_ep2_zero3", {.dp = 4, .ep = 2, .zero = 3}},
      {"dp4_ep4_recompute", {.dp = 4, .ep = 4, .recompute = Recompute::kFull}},
      {"tp2_dp2_ep2", {.tp = 2, .dp = 2, .ep = 2, .zero = 1}},
      {"tp2_sp_dp2_ep2_selective",
       {.tp = 2, .dp = 2, .ep = 2, .sequence_parallel = true, .recompute = Recompute::kSelective}},
      {"tp2_sp_dp2_ep4_folded",
       {.tp = 2, .dp = 2, .ep = 4, .zero = 1, .folded = true, .sequence_parallel = true}},
      {"tp2_sp_dp4_ep4_folded_zero3_recompute",
       {.tp = 2,
        .dp = 4,
        .ep = 4,
        .zero = 3,
        .folded = true,
        .sequence_parallel = true,
        .recompute = Recompute::kFull}},
      {"cp2_dp2_ep4", {.dp = 2, .ep = 4, .zero = 1, .cp = 2}},
      {"pp2_dp2_ep2_zero_bubble",
       {.pp = 2, .dp = 2, .ep = 2, .zero = 1, .schedule = plan::Schedule::kZeroBubbleH1}},
      {"pp2_dp2_ep2_dualpipe_v",
       {.pp = 2, .dp = 2, .ep = 2, .zero = 1, .schedule = plan::Schedule::kDualPipeV}},
      {"tp2_pp2_dp2_ep2_interleaved",
       {.tp = 2,
        .pp = 2,
        .dp = 2,
        .ep = 2,
        .schedule = plan::Schedule::kInterleaved,
        .virtual_stages = 2}}};
  return all;
}

/// Sinks are no part of attention in rings, nor scans of any split of tokens; these schedules are
/// for blocks of one kind.
bool runs(const Mixture& mixture, const Layout& layout) {
  const bool hybrid = mixture.make().scans();
  if (hybrid && (layout.options.cp > 1 || layout.options.pp > 1)) return false;
  if (layout.options.cp > 1 && mixture.make().sinks) return false;
  return !(mixture.drops() && layout.shares_tokens());
}

plan::Program program_of(const ModelSpec& m, plan::UniformOptions o) {
  o.micro_batch = 8 / o.dp / (o.pp > 1 ? 2 : 1);
  return lowered(m, o);
}

class Mixtures : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Mixtures, TrainLikeOneProcess) {
  const Layout& layout = layouts()[GetParam()];
  const std::optional<base::Json> found =
      found_by_ranks("MixtureRank.Trains", {layout.name, layout.ranks()}, rank_cases(layouts()));
  ASSERT_TRUE(found);
  for (const Mixture& mixture : kMixtures) {
    if (!runs(mixture, layout)) continue;
    SCOPED_TRACE(mixture.name);
    expect_trained_like_one(mixture.make(), program_of(mixture.make(), layout.options),
                            found->at(mixture.name), layout.name, mixture.name);
  }
}
INSTANTIATE_TEST_SUITE_P(Layouts, Mixtures, ::testing::Range(std::size_t{0}, layouts().size()),
                         [](const auto& tested) { return layouts()[tested.param].name; });

// Not a test of its own: what each rank of the test above runs.
RANK_BODY(MixtureRank, Trains) {
  find_for_cases([](const std::string& name) {
    const Layout& layout = *std::ranges::find(layouts(), name, &Layout::name);
    base::Json found;
    for (const Mixture& mixture : kMixtures)
      if (runs(mixture, layout))
        found[mixture.name] = train_over_mpi(program_of(mixture.make(), layout.options));
    return found;
  });
}

}  // namespace
}  // namespace orrery::executor::testing

// Activations and optimizer states on the host: plans train like one process, AdamW steps in fp32,
// losses equal to 1e-6, and hold on the device what their Programs state. Copies change nothing:
// not a bit.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "plan/program/memory.h"
#include "plan_cases_fixture.h"
#include "tests/support/rank_body.h"

namespace orrery::executor::testing {
namespace {

using model::ModelSpec;
using plan::Recompute;
using plan::Schedule;

struct Case {
  const char* name;
  plan::UniformOptions options;
  const char* model = "llama";
  // some layers keep all, or run again
  bool mixed = false;
  // with masters, which are on the host too: alike, but not like one process
  bool bf16 = false;
  [[nodiscard]] int ranks() const { return options.tp * options.pp * options.dp * options.cp; }
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"one", {.micro_batch = 4}, "gpt2"},
      {"dp2", {.dp = 2, .zero = 1, .micro_batch = 2}},
      {"tp2_sp", {.tp = 2, .sequence_parallel = true, .micro_batch = 4}},
      {"dp2_zero3", {.dp = 2, .zero = 3, .micro_batch = 1}},
      {"dp4_zero3_reduced_per_micro_batch",
       {.dp = 4, .zero = 3, .grad_reduce = plan::GradReduce::kMicroBatch, .micro_batch = 1},
       "gpt2"},
      {"cp2_dp2", {.dp = 2, .micro_batch = 2, .cp = 2}},
      {"pp2_four_micro_batches", {.pp = 2, .micro_batch = 2}},
      {"pp2_dp2_gpipe_zero2",
       {.pp = 2, .dp = 2, .zero = 2, .schedule = Schedule::kGPipe, .micro_batch = 1}},
      {"pp2_interleaved",
       {.pp = 2, .schedule = Schedule::kInterleaved, .micro_batch = 2, .virtual_stages = 2}},
      {"pp2_zb_h1", {.pp = 2, .schedule = Schedule::kZeroBubbleH1, .micro_batch = 2}},
      {"pp2_zb_v", {.pp = 2, .schedule = Schedule::kZeroBubbleV, .micro_batch = 2}},
      {"tp2_dp2_mixed", {.tp = 2, .dp = 2, .zero = 3, .micro_batch = 1}, "gpt2", true},
      {"dp4_ep2_experts", {.dp = 4, .ep = 2, .zero = 1, .micro_batch = 1}, "mixture"},
      {"dp2_zero3_bf16", {.dp = 2, .zero = 3, .micro_batch = 2}, "gpt2", false, true}};
  return all;
}

ModelSpec model_of(const Case& c) {
  const std::string name = c.model;
  ModelSpec m = small_model(name == "gpt2" ? "gpt2" : "llama");
  if (name == "mixture") {
    m.ffn = 48;
    m.experts = 4;
    m.experts_per_token = 2;
    m.capacity_factor = 2;
  }
  return m;
}

plan::Program program_of(const Case& c, Recompute recompute,
                         plan::States states = plan::States::kDevice) {
  plan::UniformOptions o = c.options;
  o.recompute = recompute;
  o.states = states;
  return lowered(model_of(c), o, [&](plan::Plan& p) {
    if (c.bf16) p.precision = model::Precision::kBFloat16;
    if (!c.mixed) return;
    plan::LayerRun one = p.stages[0].runs[0];
    one.count = 1;
    p.stages[0].runs = {one, one, one, one};
    p.stages[0].runs[1].strategy.recompute = Recompute::kNone;
    p.stages[0].runs[2].strategy.recompute = Recompute::kFull;
    p.stages[0].runs[3].strategy.states = p.vocabulary.states = plan::States::kDevice;
  });
}

class Offload : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Offload, TrainsLikeOneProcessAndChangesNothing) {
  const Case& c = cases()[GetParam()];
  const std::optional<base::Json> found =
      found_by_ranks("OffloadRank.Trains", {c.name, c.ranks()}, rank_cases(cases()));
  ASSERT_TRUE(found);
  const plan::Program keeps = program_of(c, Recompute::kNone);
  for (const plan::States states : {plan::States::kDevice, plan::States::kHost}) {
    const plan::Program offloads = program_of(c, Recompute::kOffload, states);
    const std::string name = "states on the " + std::string(to_string(states));
    SCOPED_TRACE(name);
    if (!c.bf16) expect_trained_like_one(model_of(c), offloads, found->at(name), c.name, "offload");
    EXPECT_EQ(found->at(name).at("losses"), found->at("none").at("losses"));
    for (std::size_t s = 0; s < offloads.classes.size(); ++s) {
      const auto there = plan::static_memory(offloads, offloads.classes[s]);
      EXPECT_GT(there.host_bytes, 0);
      if (c.options.pp > 1 || c.mixed) continue;  // no more than the three that are on the device
      EXPECT_LT(there.peak_bytes, plan::static_memory(keeps, keeps.classes[s]).peak_bytes);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, Offload, ::testing::Range(std::size_t{0}, cases().size()),
                         [](const auto& tested) { return cases()[tested.param].name; });

// Not a test of its own: what each rank of the test above runs.
RANK_BODY(OffloadRank, Trains) {
  find_for_cases([](const std::string& name) {
    const Case& c = *std::ranges::find(cases(), name, &Case::name);
    base::Json found;
    for (const plan::States states : {plan::States::kDevice, plan::States::kHost})
      found["states on the " + std::string(to_string(states))] =
          train_over_mpi(program_of(c, Recompute::kOffload, states));
    found["none"] = train_over_mpi(program_of(c, Recompute::kNone));
    return found;
  });
}

}  // namespace
}  // namespace orrery::executor::testing

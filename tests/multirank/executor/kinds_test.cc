// Models whose blocks or objectives are not those of a decoder train like one process: AdamW
// steps in fp32, losses equal to 1e-6, on one to eight ranks, over every layout that they take; and
// they hold the bytes that their Programs state.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "plan_cases_fixture.h"
#include "tests/support/rank_body.h"
#include "tests/support/small_kinds.h"

namespace orrery::executor::testing {
namespace {

using model::ModelSpec;
using plan::LayerStrategy;
using plan::Recompute;
using plan::Schedule;

struct Kind {
  const char* name;
  ModelSpec (*make)();
};
const Kind kKinds[] = {
    {"vit", tests::small_vit},
    {"t5", tests::small_t5},
    {"swin", tests::small_swin},
    {"mamba2", [] { return model::find_model("mamba2-tiny").value(); }},
    {"nemotron_h", [] { return model::find_model("nemotron-h-tiny").value(); }},
    {"qwen3_next", [] { return model::find_model("qwen3-next-tiny").value(); }},
    {"minimax", [] { return model::find_model("minimax-tiny").value(); }},
};

/// Which models take a layout: encoder-decoders no stages in turn, blocks of several kinds neither
/// slices nor split backwards nor stages as a V, blocks with scans no slices (docs/limits.md).
enum class Taken { kByAll, kByOneStack, kByEqualBlocks, kByPlainBlocks };

void as_planned(plan::Plan&) {}

struct Layout {
  const char* name;
  plan::UniformOptions options;
  void (*change)(plan::Plan&) = as_planned;  // what the options do not say
  Taken taken = Taken::kByAll;
  [[nodiscard]] int ranks() const { return options.tp * options.pp * options.dp; }
};

template <class Change>
void each_strategy(plan::Plan& p, Change change) {
  change(p.vocabulary);
  for (plan::Stage& stage : p.stages)
    for (plan::LayerRun& run : stage.runs) change(run.strategy);
}

std::vector<Layout> usual_layouts() {
  constexpr Recompute kFull = Recompute::kFull, kSelective = Recompute::kSelective,
                      kOperator = Recompute::kOperator;
  return {{"alone_micro_batches", {.micro_batch = 2}},
          {"alone_recompute", {.recompute = kFull, .micro_batch = 4}},
          {"dp2", {.dp = 2, .micro_batch = 2}},
          {"dp2_zero1_selective", {.dp = 2, .zero = 1, .recompute = kSelective, .micro_batch = 2}},
          {"dp4_zero2", {.dp = 4, .zero = 2, .micro_batch = 1}},
          {"dp4_zero3_recompute", {.dp = 4, .zero = 3, .recompute = kFull, .micro_batch = 1}},
          {"dp2_operator_recompute", {.dp = 2, .recompute = kOperator, .micro_batch = 2}},
          {"tp2", {.tp = 2, .micro_batch = 4}},
          {"tp2_sp_selective",
           {.tp = 2, .sequence_parallel = true, .recompute = kSelective, .micro_batch = 4}},
          {"tp4_sp_recompute",
           {.tp = 4, .sequence_parallel = true, .recompute = kFull, .micro_batch = 4}},
          {"tp4", {.tp = 4, .micro_batch = 2}},
          {"pp2", {.pp = 2, .micro_batch = 2}},
          {"pp2_gpipe_recompute",
           {.pp = 2, .recompute = kFull, .schedule = Schedule::kGPipe, .micro_batch = 2}},
          {"pp4", {.pp = 4, .micro_batch = 1}},
          {"tp2_dp2_zero3", {.tp = 2, .dp = 2, .zero = 3, .micro_batch = 2}},
          {"tp2_sp_dp2_zero1",
           {.tp = 2, .dp = 2, .zero = 1, .sequence_parallel = true, .micro_batch = 1}},
          {"tp2_sp_pp2", {.tp = 2, .pp = 2, .sequence_parallel = true, .micro_batch = 2}},
          {"pp2_dp2_zero2", {.pp = 2, .dp = 2, .zero = 2, .micro_batch = 1}}};
}

std::vector<Layout> further_layouts() {
  return {{"dp4_behind_tp2_sp",
           {.dp = 4, .micro_batch = 1},
           [](plan::Plan& p) {
             std::vector<plan::LayerRun>& runs = p.stages[0].runs;
             const LayerStrategy first{.tp = 2, .dp = 2, .zero = 3, .sequence_parallel = true};
             runs = {{.count = 2, .strategy = first},
                     {.count = runs[0].count - 2, .strategy = runs[0].strategy}};
           }},
          {"dp2_zero3_reduced_per_micro_batch",
           {.dp = 2, .zero = 3, .micro_batch = 1},
           [](plan::Plan& p) {
             each_strategy(p,
                           [](LayerStrategy& s) { s.grad_reduce = plan::GradReduce::kMicroBatch; });
           }},
          {"dp4_zero3_shard2",
           {.dp = 4, .zero = 3, .micro_batch = 1},
           [](plan::Plan& p) { each_strategy(p, [](LayerStrategy& s) { s.shard = 2; }); }},
          {"tp2_dp2_zero1_strided",
           {.tp = 2, .dp = 2, .zero = 1, .micro_batch = 2},
           [](plan::Plan& p) { each_strategy(p, [](LayerStrategy& s) { s.strided = true; }); }},
          {"tp2_sp_pieces2",
           {.tp = 2, .sequence_parallel = true, .tensor_pieces = 2, .micro_batch = 2}},
          {"pp2_dp2_reduced_at_the_end",
           {.pp = 2, .dp = 2, .zero = 1, .grad_reduce = plan::GradReduce::kEnd, .micro_batch = 1}},
          {"dp2_zero3_attention_alone_slices2",
           {.dp = 2, .zero = 3, .micro_batch = 2},
           [](plan::Plan& p) {
             for (plan::LayerRun& run : p.stages[0].runs) {
               run.strategy.operators = plan::ShardedOperators::kAttention;
               run.strategy.slices = 2;
             }
           },
           Taken::kByPlainBlocks},
          {"tp2_pp2_dp2_zero3_recompute",
           {.tp = 2, .pp = 2, .dp = 2, .zero = 3, .recompute = Recompute::kFull, .micro_batch = 2}},
          {"dp8_zero3", {.dp = 8, .zero = 3, .micro_batch = 1}},
          {"pp2_zb_h1",
           {.pp = 2, .schedule = Schedule::kZeroBubbleH1, .micro_batch = 2},
           as_planned,
           Taken::kByEqualBlocks},
          {"pp2_zb_v",
           {.pp = 2, .schedule = Schedule::kZeroBubbleV, .micro_batch = 2},
           as_planned,
           Taken::kByEqualBlocks},
          {"pp2_interleaved",
           {.pp = 2, .schedule = Schedule::kInterleaved, .micro_batch = 2, .virtual_stages = 2},
           as_planned,
           Taken::kByOneStack}};
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> kLayouts = [] {
    std::vector<Layout> all = usual_layouts();
    for (Layout& l : further_layouts()) all.push_back(l);
    return all;
  }();
  return kLayouts;
}

/// The norm of lightning attention is over all heads, so these are not split.
bool splits_heads(const Layout& l) {
  return std::string_view(l.name).find("tp") != std::string_view::npos;
}

bool runs(const ModelSpec& m, const Layout& l) {
  if (m.family == model::Family::kMinimax && splits_heads(l)) return false;
  if (l.taken == Taken::kByPlainBlocks) return m.runs.empty() && m.plain_attention();
  return l.taken == Taken::kByAll || m.runs.empty() ||
         (l.taken == Taken::kByOneStack && !m.encoder_decoder());
}

plan::Program program_of(const ModelSpec& m, const Layout& l) {
  return lowered(m, l.options, l.change);
}

class Kinds : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Kinds, TrainLikeOneProcess) {
  const Layout& layout = layouts()[GetParam()];
  const std::optional<base::Json> found =
      found_by_ranks("KindRank.Trains", {layout.name, layout.ranks()}, rank_cases(layouts()));
  ASSERT_TRUE(found);
  for (const Kind& kind : kKinds) {
    const ModelSpec m = kind.make();
    if (!runs(m, layout)) continue;
    SCOPED_TRACE(kind.name);
    expect_trained_like_one(m, program_of(m, layout), found->at(kind.name), layout.name, kind.name);
  }
}
INSTANTIATE_TEST_SUITE_P(Layouts, Kinds, ::testing::Range(std::size_t{0}, layouts().size()),
                         [](const auto& tested) { return layouts()[tested.param].name; });

// Not a test of its own: what each rank of the test above runs.
RANK_BODY(KindRank, Trains) {
  find_for_cases([](const std::string& name) {
    const Layout& layout = *std::ranges::find(layouts(), name, &Layout::name);
    base::Json found;
    for (const Kind& kind : kKinds) {
      const ModelSpec m = kind.make();
      if (runs(m, layout)) found[kind.name] = train_over_mpi(program_of(m, layout));
    }
    return found;
  });
}

}  // namespace
}  // namespace orrery::executor::testing

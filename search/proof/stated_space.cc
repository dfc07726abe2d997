#include "search/proof/stated_space.h"

#include <algorithm>
#include <type_traits>

#include "base/numbers.h"

namespace orrery::search {
namespace {

using plan::LayerStrategy;

constexpr int kMaxTensorDegree = 16, kMaxContextDegree = 64, kMaxSlices = 16;

const std::vector kStates{plan::States::kDevice, plan::States::kHost};

/// Every strategy of `all` with every value of one more field.
template <class Field>
void vary(std::vector<LayerStrategy>& all, Field LayerStrategy::*field,
          const std::type_identity_t<std::vector<Field>>& values) {
  std::vector<LayerStrategy> more;
  for (LayerStrategy s : all) {
    for (const Field value : values) {
      s.*field = value;
      more.push_back(s);
    }
  }
  all = std::move(more);
}

std::vector<int> powers_of_two(int largest) {
  std::vector<int> powers;
  for (int n = 1; n <= largest; n *= 2) powers.push_back(n);
  return powers;
}

/// tp, cp and dp over all devices.
std::vector<LayerStrategy> degrees(int devices, int max_tp, int max_cp) {
  std::vector<LayerStrategy> all{{}};
  vary(all, &LayerStrategy::tp, powers_of_two(std::min(devices, max_tp)));
  vary(all, &LayerStrategy::cp, powers_of_two(std::min(devices, max_cp)));
  std::erase_if(all, [&](const LayerStrategy& s) { return devices % (s.tp * s.cp) != 0; });
  for (LayerStrategy& s : all) s.dp = devices / (s.tp * s.cp);
  return all;
}

bool names_zero(const Space& space, const LayerStrategy& s) {
  const bool named[] = {space.data, space.zero1, space.zero2, space.zero3};
  return s.replicas() == 1 ? s.zero == 0 : named[s.zero];
}

/// The whole data group, or the part of it inside a host.
bool names_shard(const Space& space, const LayerStrategy& s, int devices_per_host) {
  const int inside = devices_per_host / (s.strided ? 1 : s.tp);
  return s.shard == 0 || (space.hybrid && s.shard == inside && inside > 1 && inside < s.replicas());
}

bool names_reduction(const Space& space, const LayerStrategy& s, std::int64_t micro_batches) {
  // one micro-batch reduces once either way, and one rank not at all
  const bool chooses = s.zero >= 2 && micro_batches > 1, reduces = s.replicas() > 1;
  switch (s.grad_reduce) {
    case plan::GradReduce::kEnd: return reduces && space.reduce_at_end;
    case plan::GradReduce::kMicroBatch: return chooses && space.reduce_per_micro_batch;
    case plan::GradReduce::kStep: break;
  }
  return !reduces || space.reduce_per_step || (!chooses && space.reduce_per_micro_batch);
}

/// What zero 3 shards of a block, and in how many slices its products run.
bool names_operators(const Space& space, const LayerStrategy& s) {
  if (s.zero != 3 || s.shard_ranks() == 1)
    return s.operators == plan::ShardedOperators::kAll && s.slices == 1;
  if (space.fix_operators ? s.operators != *space.fix_operators
                          : s.operators != plan::ShardedOperators::kAll && !space.operators)
    return false;
  return space.fix_slices ? s.slices == *space.fix_slices : s.slices == 1 || space.slices;
}

bool names_states(const Space& space, const LayerStrategy& s) {
  return s.states == plan::States::kHost ? space.states_on_host : space.states_on_device;
}

bool names_pieces(const Space& space, const LayerStrategy& s) {
  if (!s.sequence_parallel) return s.tensor_pieces == 1;
  return space.fix_tensor_pieces ? s.tensor_pieces == *space.fix_tensor_pieces
                                 : s.tensor_pieces == 1 || space.tensor_overlap;
}

/// `experts`: of the block.
bool names_experts(const Space& space, const LayerStrategy& s, std::int64_t experts) {
  if (experts == 0) return s.ep == 1 && !s.folded;
  if (!s.folded && !space.unfolded) return false;
  if (s.folded && !(space.expert && space.folding && s.tp > 1 && s.sequence_parallel)) return false;
  return (s.ep == 1 || space.expert) && space.fix_ep.value_or(s.ep) == s.ep;
}

bool names(const Space& space, const LayerStrategy& s, const Family& family, int devices_per_host) {
  const bool recomputes[] = {space.recompute_none, space.recompute_selective,
                             space.recompute_operator, space.recompute_full,
                             space.recompute_offload};
  const plan::Plan& f = family.frame;
  if (space.fix_tp.value_or(s.tp) != s.tp || space.fix_cp.value_or(s.cp) != s.cp ||
      space.fix_dp.value_or(s.dp) != s.dp)
    return false;
  if (space.fix_micro_batch && *space.fix_micro_batch * s.dp != f.micro_batch_sequences())
    return false;
  if (s.tp == 1
          ? s.sequence_parallel || s.strided
          : !space.tensor || !(s.sequence_parallel ? space.sequence_parallel : space.tensor_alone))
    return false;
  if (s.cp == 1 ? s.context != plan::ContextKind::kRing
                : !(s.context == plan::ContextKind::kRing ? space.ring : space.ulysses))
    return false;
  if (s.strided && (!space.strided || s.replicas() == 1)) return false;
  if (s.slices > 1 &&
      (s.recompute == plan::Recompute::kOperator || s.recompute == plan::Recompute::kOffload))
    return false;
  return names_zero(space, s) && names_shard(space, s, devices_per_host) &&
         names_reduction(space, s, f.micro_batches) && names_operators(space, s) &&
         names_pieces(space, s) && names_states(space, s) && recomputes[as_index(s.recompute)];
}

/// All layers alike in one stage.
bool legal(const Family& family, const LayerStrategy& layer, const LayerStrategy& vocabulary,
           const model::ModelSpec& model) {
  plan::Plan plan = family.frame;
  plan.schedule = plan::Schedule::k1F1B;
  plan.virtual_stages = 1;
  plan.stages = {{{{as_int(model.layers), layer}}}};
  plan.vocabulary = vocabulary;
  return plan::validate(plan, model).empty();
}

/// Those of one kind of block.
std::vector<LayerStrategy> of_block(const Space& stated, const Family& of_model,
                                    const model::ModelSpec& block, int per_host) {
  Family family = of_model;
  family.frame.model_fingerprint = block.fingerprint();
  Space space = stated;
  if (block.experts > 0) {  // sharded as a whole
    space.operators = space.slices = false;
    space.fix_operators.reset();
    space.fix_slices.reset();
  }
  std::vector<int> shards{0};
  for (const int tp : powers_of_two(space.hybrid ? kMaxTensorDegree : 0)) {
    if (per_host / tp > 1) shards.push_back(per_host / tp);
  }
  // degrees by degrees: of all at once there are too many before most are struck out
  std::vector<LayerStrategy> all;
  for (const LayerStrategy& of : degrees(family.devices, kMaxTensorDegree,
                                         space.ring || space.ulysses ? kMaxContextDegree : 1)) {
    std::vector<LayerStrategy> some{of};
    vary(some, &LayerStrategy::sequence_parallel, {false, true});
    vary(some, &LayerStrategy::strided,
         space.strided ? std::vector{false, true} : std::vector{false});
    vary(some, &LayerStrategy::context, {plan::ContextKind::kRing, plan::ContextKind::kUlysses});
    vary(some, &LayerStrategy::zero, {0, 1, 2, 3});
    vary(some, &LayerStrategy::ep, powers_of_two(block.experts > 0 ? family.devices : 1));
    if (block.experts > 0 && space.folding) vary(some, &LayerStrategy::folded, {false, true});
    vary(some, &LayerStrategy::shard, shards);
    vary(some, &LayerStrategy::recompute,
         {plan::Recompute::kNone, plan::Recompute::kSelective, plan::Recompute::kOperator,
          plan::Recompute::kFull, plan::Recompute::kOffload});
    vary(some, &LayerStrategy::grad_reduce,
         {plan::GradReduce::kStep, plan::GradReduce::kMicroBatch, plan::GradReduce::kEnd});
    vary(some, &LayerStrategy::states, kStates);
    vary(some, &LayerStrategy::tensor_pieces,
         space.tensor_overlap ? std::vector{1, space.fix_tensor_pieces.value_or(kTensorPieces)}
                              : std::vector{1});
    if (space.operators || space.fix_operators)
      vary(some, &LayerStrategy::operators,
           {plan::ShardedOperators::kAll, plan::ShardedOperators::kAttention,
            plan::ShardedOperators::kMlp});
    if (space.slices || space.fix_slices)
      vary(some, &LayerStrategy::slices,
           space.fix_slices.value_or(1) > 1 ? std::vector{1, *space.fix_slices}
                                            : powers_of_two(kMaxSlices));
    std::erase_if(some, [&](const LayerStrategy& s) {
      return !names(space, s, family, per_host) || !names_experts(space, s, block.experts) ||
             !legal(family, s, {.tp = s.tp, .dp = s.dp, .cp = s.cp}, block);
    });
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace

std::vector<Family> stated_families(const Space& space, const plan::Plan& plan,
                                    const costmodel::CostModel& cost) {
  const auto devices = as_int(cost.topology().device_count());
  std::vector<Family> all;
  for (int ranks = 1; ranks <= std::min<std::int64_t>(devices, cost.model().layers); ++ranks) {
    if (devices % ranks != 0 || space.fix_pp.value_or(ranks) != ranks ||
        !(ranks > 1 ? space.pipeline : space.single_stage))
      continue;
    if (space.even_stages && cost.model().layers % ranks != 0) continue;
    for (std::int64_t m = 1; m <= plan.global_batch; ++m) {
      if (plan.global_batch % m != 0 || space.fix_micro_batches.value_or(m) != m) continue;
      Family family{ranks, devices / ranks, plan};
      family.frame.stages.clear();
      family.frame.micro_batches = m;
      family.frame.virtual_stages = 1;
      for (const auto schedule : {plan::Schedule::kGPipe, plan::Schedule::k1F1B}) {
        family.frame.schedule = schedule;
        if (schedule == plan::Schedule::kGPipe ? space.gpipe : space.one_f_one_b)
          all.push_back(family);
      }
    }
  }
  return all;
}

std::vector<std::vector<LayerStrategy>> stated_strategies(const Space& space, const Family& family,
                                                          const costmodel::CostModel& cost) {
  std::vector<std::vector<LayerStrategy>> all;
  for (int k = 0; k < cost.model().kinds(); ++k) {
    model::ModelSpec block = cost.model().of_kind(k);
    block.runs.clear();
    all.push_back(of_block(space, family, block, as_int(cost.topology().devices_per_host())));
    if (all.back().empty()) return {};
  }
  return all;
}

std::vector<LayerStrategy> stated_vocabularies(const Space& space, const Family& family,
                                               const costmodel::CostModel& cost) {
  const model::ModelSpec& model = cost.model();
  std::vector<LayerStrategy> all = degrees(family.devices, family.devices, 1);
  vary(all, &LayerStrategy::zero, {0, 1, 2, 3});
  using enum plan::GradReduce;
  vary(all, &LayerStrategy::grad_reduce, {kStep, kMicroBatch, kEnd});
  vary(all, &LayerStrategy::states, kStates);
  const bool one_way = space.vocabulary_like_layers && !space.reduce_per_step;
  std::erase_if(all, [&](const LayerStrategy& v) {
    const bool chooses = v.dp > 1 && v.zero >= 2 && family.frame.micro_batches > 1;
    const bool every = chooses && one_way && space.reduce_per_micro_batch && !space.reduce_at_end;
    if (every != (v.grad_reduce == kMicroBatch)) return true;
    const bool at_end = v.dp > 1 && space.reduce_at_end,
               only = at_end && !space.reduce_per_step && !space.reduce_per_micro_batch;
    if (v.grad_reduce == kEnd ? !at_end : only) return true;
    const bool fixed = space.vocabulary_like_layers && space.fix_tp.value_or(v.tp) != v.tp;
    return fixed || (v.tp > 1 && !space.tensor) || !names_states(space, v) || v.tp > model.vocab ||
           !names_zero(space, v) || family.frame.micro_batch_sequences() % v.dp != 0;
  });
  return all;
}

}  // namespace orrery::search

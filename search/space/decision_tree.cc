#include "search/space/decision_tree.h"

#include <algorithm>

#include "plan/program/block_degrees.h"

namespace orrery::search {

namespace {

/// Kinds of data parallelism of a group of `dp` ranks, as ZeRO stages.
std::vector<int> zero_stages(const Space& space, int dp) {
  if (dp == 1) return {0};
  std::vector<int> stages;
  if (space.data) stages.push_back(0);
  if (space.zero1) stages.push_back(1);
  if (space.zero2) stages.push_back(2);
  if (space.zero3) stages.push_back(3);
  return stages;
}

/// Wider products than this never pay: the tensor collectives of a layer stay on its critical path.
constexpr int kMaxTensorDegree = 16;
constexpr int kMaxContextDegree = 64;  // beyond, a ring's steps are many and small

/// Why degrees cannot be used.
Refusal refuse_degrees(const model::ModelSpec& model, const Space& space,
                       const TreeContext& context, int tp, int cp) {
  const int dp = context.devices / tp / cp;
  const auto fixed = [](const char* name, int value) {
    return Refusal{Reason::kFixed, fmt::format("{} is fixed to {}", name, value)};
  };
  const auto divide = [](std::string text) {
    return Refusal{Reason::kDoesNotDivide, std::move(text)};
  };
  if (tp > 1 && !space.tensor) return {Reason::kOff, "tensor parallelism is off"};
  if (space.fix_tp && *space.fix_tp != tp) return fixed("tp", *space.fix_tp);
  if (tp > kMaxTensorDegree)
    return {Reason::kUnsupported,
            fmt::format("tp {} is beyond the planner's {}", tp, kMaxTensorDegree)};
  for (const auto& [size, of] : plan::tensor_extents(model))
    if (size % tp != 0) return divide(fmt::format("tp {} does not divide {} {}", tp, size, of));
  if (const auto whole = plan::unsplit_by_tensor(model); tp > 1 && !whole.empty())
    return {Reason::kUnsupported, fmt::format("tp {} would split {}", tp, whole)};
  if (const auto whole = plan::unsplit_by_context(model); cp > 1 && !whole.empty())
    return {Reason::kUnsupported, fmt::format("cp {} would split {}", cp, whole)};
  if (cp > 1 && !space.ring && !space.ulysses) return {Reason::kOff, "context parallelism is off"};
  if (space.fix_cp && *space.fix_cp != cp) return fixed("cp", *space.fix_cp);
  if (cp > kMaxContextDegree)
    return {Reason::kUnsupported,
            fmt::format("cp {} is beyond the planner's {}", cp, kMaxContextDegree)};
  if (cp > 1 && (model.patch_features > 0 || model.encoder_decoder())) {
    return {Reason::kUnsupported,
            fmt::format("cp is not supported for family {}", to_string(model.family))};
  }
  if (context.sequence % cp != 0)
    return divide(fmt::format("cp {} does not divide {} tokens", cp, context.sequence));
  if (space.fix_dp && *space.fix_dp != dp) return fixed("dp", *space.fix_dp);
  if (context.micro_batch_sequences % dp != 0) {
    return divide(fmt::format("dp {} does not divide a micro-batch of {} sequences", dp,
                              context.micro_batch_sequences));
  }
  if (space.fix_micro_batch && *space.fix_micro_batch != context.micro_batch_sequences / dp) {
    return {Reason::kFixed, fmt::format("a micro-batch is fixed to {} sequences on a rank",
                                        *space.fix_micro_batch)};
  }
  return {};
}

/// Sizes of the group that states are sharded over, 0: the whole data group. Hybrid: the part of it
/// inside a host.
std::vector<int> shard_sizes(const Space& space, const TreeContext& context,
                             const plan::LayerStrategy& s) {
  std::vector<int> sizes{0};
  const int inside = context.devices_per_host / (s.strided ? 1 : s.tp);
  const bool hybrid = space.hybrid && s.zero > 0 && s.ep == 1 && !s.folded && inside > 1 &&
                      inside < s.replicas() && s.replicas() % inside == 0;
  if (hybrid) sizes.push_back(inside);
  return sizes;
}

std::vector<plan::ContextKind> context_kinds(const model::ModelSpec& model, const Space& space,
                                             std::int64_t sequence, int tp, int cp) {
  if (cp == 1) return {plan::ContextKind::kRing};
  std::vector<plan::ContextKind> kinds;
  if (space.ring && !model.unlike_flash() && sequence % (model.causal ? 2 * cp : cp) == 0)
    kinds.push_back(plan::ContextKind::kRing);
  if (space.ulysses && model.heads % (tp * cp) == 0 && model.kv_heads % (tp * cp) == 0)
    kinds.push_back(plan::ContextKind::kUlysses);
  return kinds;
}

/// Expert-parallel degrees of a group of `dp` ranks.
std::vector<int> expert_degrees(const model::ModelSpec& model, const Space& space,
                                const std::string& name, int dp, std::vector<Pruned>& pruned) {
  std::vector<int> degrees;
  if (space.fix_ep.value_or(1) == 1) degrees.push_back(1);
  for (int ep = 2; ep <= dp && dp % ep == 0; ep *= 2) {
    if (space.fix_ep.value_or(ep) != ep) {
      pruned.push_back({fmt::format("{} ep{}", name, ep),
                        fmt::format("ep is fixed to {}", *space.fix_ep), Reason::kFixed});
      continue;
    }
    if (space.expert && model.experts % ep == 0) {
      degrees.push_back(ep);
      continue;
    }
    pruned.push_back({fmt::format("{} ep{}", name, ep),
                      space.expert
                          ? fmt::format("ep {} does not divide {} experts", ep, model.experts)
                          : std::string("expert parallelism is off")});
  }
  if (degrees.empty() && (*space.fix_ep > dp || dp % *space.fix_ep != 0))
    pruned.push_back(
        {fmt::format("{} ep{}", name, *space.fix_ep),
         fmt::format("ep {} does not divide {} ranks of the data group", *space.fix_ep, dp),
         Reason::kFixed});
  return degrees;
}

/// How experts are spread: their degree, and whether over the tensor group as well, for which
/// tokens must be split over it.
struct ExpertSplit {
  int degree = 1;
  bool folded = false;
};
std::vector<ExpertSplit> expert_splits(const model::ModelSpec& model, const Space& space,
                                       const std::string& name, const plan::LayerStrategy& s,
                                       bool sequence_parallel, std::vector<Pruned>& pruned) {
  std::vector<ExpertSplit> splits;
  if (model.experts == 0) return {{}};
  if (space.unfolded) {
    for (const int ep : expert_degrees(model, space, name, s.replicas(), pruned))
      splits.push_back({ep, false});
  }
  if (!space.expert || !space.folding || !sequence_parallel) return splits;
  std::vector<Pruned> same;
  for (const int ep : expert_degrees(model, space, name, s.ranks(), same))
    splits.push_back({ep, true});
  return splits;
}

std::vector<plan::States> allowed_states(const Space& space) {
  std::vector<plan::States> all;
  for (const plan::States where : {plan::States::kDevice, plan::States::kHost})
    if (space.*kStatesFlags[as_index(where)]) all.push_back(where);
  return all;
}

/// All leaves below (tp, zero, sp, operators, slices).
void add_leaves(const Space& space, std::int64_t micro_batches, plan::LayerStrategy strategy,
                std::vector<plan::LayerStrategy>& leaves) {
  for (std::size_t i = 0; i < kRecomputeFlags.size(); ++i) {
    strategy.recompute = static_cast<plan::Recompute>(i);
    if (!(space.*kRecomputeFlags[i])) continue;
    const bool in_slices = strategy.slices > 1;
    if (strategy.recompute == plan::Recompute::kOperator && in_slices) continue;
    if (strategy.recompute == plan::Recompute::kOffload && in_slices) continue;
    // One micro-batch reduces once either way.
    const bool chooses = strategy.zero >= 2 && micro_batches > 1, reduces = strategy.replicas() > 1;
    const auto add = [&](plan::GradReduce when) {
      strategy.grad_reduce = when;
      for (const plan::States where : allowed_states(space)) {
        strategy.states = where;
        leaves.push_back(strategy);
      }
    };
    if (!reduces || space.reduce_per_step || (!chooses && space.reduce_per_micro_batch))
      add(plan::GradReduce::kStep);
    if (chooses && space.reduce_per_micro_batch) add(plan::GradReduce::kMicroBatch);
    if (reduces && space.reduce_at_end) add(plan::GradReduce::kEnd);
  }
}

/// Finer slices gain next to nothing: beside 1/16 of a product other memory decides.
constexpr int kMaxSlices = 16;

/// The fixed number, or powers of two, if they divide what every sharded product contracts on a
/// rank. Products in pieces of the tokens are not sliced.
std::vector<int> slice_counts(const model::ModelSpec& model, const Space& space,
                              const plan::LayerStrategy& s) {
  const std::int64_t heads =
      s.operators == plan::ShardedOperators::kMlp ? 0 : model.heads * model.head_dim / s.tp;
  const std::int64_t ffn = s.operators == plan::ShardedOperators::kAttention ? 0 : model.ffn / s.tp;
  const auto divides = [&](int g) {
    return model.hidden % g == 0 && heads % g == 0 && ffn % g == 0;
  };
  if (s.tensor_pieces > 1)
    return space.fix_slices.value_or(1) == 1 ? std::vector{1} : std::vector<int>{};
  if (space.fix_slices)
    return divides(*space.fix_slices) && (*space.fix_slices == 1 || space.slices)
               ? std::vector<int>{*space.fix_slices}
               : std::vector<int>{};
  std::vector<int> counts{1};
  for (int g = 2; space.slices && g <= kMaxSlices && divides(g); g *= 2) counts.push_back(g);
  return counts;
}

/// What of a block zero 3 shards, then all leaves below. Experts, and blocks with more than
/// attention and MLP, are sharded as a whole.
void add_sharded(const model::ModelSpec& model, const Space& space, const TreeContext& context,
                 plan::LayerStrategy strategy, std::vector<plan::LayerStrategy>& leaves) {
  const bool plain = model.experts == 0 && model.window == 0 && !model.cross_attention &&
                     model.entry == model::BlockEntry::kNone && model.plain_attention();
  if (strategy.zero < 3 || strategy.shard_ranks() == 1 || !plain)
    return add_leaves(space, context.micro_batches, strategy, leaves);
  for (const auto operators : {plan::ShardedOperators::kAll, plan::ShardedOperators::kAttention,
                               plan::ShardedOperators::kMlp}) {
    if (operators != plan::ShardedOperators::kAll && !space.operators) continue;
    if (space.fix_operators && operators != *space.fix_operators) continue;
    strategy.operators = operators;
    for (const int slices : slice_counts(model, space, strategy)) {
      strategy.slices = slices;
      add_leaves(space, context.micro_batches, strategy, leaves);
    }
  }
}

/// In how many pieces collectives run beside products, of those that divide a rank's tokens.
std::vector<int> piece_counts(const Space& space, std::int64_t tokens, bool ring) {
  if (ring) return space.fix_tensor_pieces.value_or(1) == 1 ? std::vector{1} : std::vector<int>{};
  std::vector<int> counts;
  for (const int n : {1, kTensorPieces, space.fix_tensor_pieces.value_or(1)}) {
    const bool wanted =
        space.fix_tensor_pieces ? n == *space.fix_tensor_pieces : n == 1 || space.tensor_overlap;
    if (wanted && tokens % n == 0 && std::ranges::find(counts, n) == counts.end())
      counts.push_back(n);
  }
  return counts;
}

/// All leaves of one (tp, cp).
void grow_strategies(const model::ModelSpec& model, const Space& space, const TreeContext& context,
                     int tp, int cp, const std::string& name, StrategyTree& tree) {
  plan::LayerStrategy strategy{.tp = tp, .dp = context.devices / tp / cp, .cp = cp};
  const std::vector<int> stages = zero_stages(space, strategy.replicas());
  if (stages.empty()) tree.pruned.push_back({name, "data parallelism is off"});
  const std::vector<plan::ContextKind> contexts =
      context_kinds(model, space, context.sequence, tp, cp);
  const auto refuse = [&](plan::ContextKind kind, bool allowed, std::string why) {
    if (cp > 1 && allowed && std::ranges::count(contexts, kind) == 0)
      tree.pruned.push_back({name, std::move(why)});
  };
  refuse(plan::ContextKind::kRing, space.ring,
         fmt::format("ring: {} chunks do not divide {} tokens", 2 * cp, context.sequence));
  refuse(plan::ContextKind::kUlysses, space.ulysses,
         fmt::format("ulysses: tp cp = {} does not divide {} heads", tp * cp, model.kv_heads));
  const std::int64_t tokens = context.sequence / model.token_share;
  const bool sequence_parallel = tp > 1 && space.sequence_parallel && tokens % (tp * cp) == 0;
  const std::vector<ExpertSplit> experts =
      expert_splits(model, space, name, strategy, sequence_parallel, tree.pruned);
  if (sequence_parallel && space.fix_tensor_pieces && !stages.empty() &&
      tokens / (tp * cp) % *space.fix_tensor_pieces != 0) {
    tree.pruned.push_back(
        {name + " sp", fmt::format("tensor_pieces {} does not divide {} tokens",
                                   *space.fix_tensor_pieces, tokens / (tp * cp))});
  }
  if (tp > 1 && space.sequence_parallel && !sequence_parallel && !stages.empty()) {
    tree.pruned.push_back(
        {name + " sp", fmt::format("tp cp = {} does not divide {} tokens", tp * cp, tokens)});
  }
  for (const bool strided : {false, true}) {
    if (strided && (!space.strided || tp == 1 || strategy.replicas() == 1)) continue;
    strategy.strided = strided;
    for (const int zero : stages) {
      for (const auto& [ep, folded] : experts) {
        if ((ep > 1 || folded) && strided) continue;
        strategy.zero = zero;
        strategy.ep = ep;
        strategy.folded = folded;
        for (const int shard : shard_sizes(space, context, strategy)) {
          strategy.shard = shard;
          for (const plan::ContextKind kind : contexts) {
            strategy.context = kind;
            strategy.sequence_parallel = false;
            strategy.tensor_pieces = 1;
            if ((tp == 1 || space.tensor_alone) && !folded)
              add_sharded(model, space, context, strategy, tree.leaves);
            strategy.sequence_parallel = true;
            for (const int pieces : piece_counts(space, tokens / (tp * cp),
                                                 cp > 1 && kind == plan::ContextKind::kRing)) {
              strategy.tensor_pieces = pieces;
              if (sequence_parallel) add_sharded(model, space, context, strategy, tree.leaves);
            }
          }
        }
      }
    }
  }
}

}  // namespace

StrategyTree layer_strategies(const model::ModelSpec& model, const Space& space,
                              const TreeContext& context) {
  StrategyTree tree;
  for (int tp = 1; tp <= context.devices && context.devices % tp == 0; tp *= 2) {
    for (int cp = 1; tp * cp <= context.devices && context.devices % (tp * cp) == 0; cp *= 2) {
      const std::string name = fmt::format(
          "tp{}{} dp{}", tp, cp > 1 ? fmt::format(" cp{}", cp) : "", context.devices / tp / cp);
      if (const Refusal why = refuse_degrees(model, space, context, tp, cp); why.refused()) {
        tree.pruned.push_back({name, why.text, why.reason});
      } else {
        grow_strategies(model, space, context, tp, cp, name, tree);
      }
    }
  }
  if (!model.frozen()) return tree;
  const std::size_t cut = std::erase_if(tree.leaves, [](const plan::LayerStrategy& s) {
    return s.recompute == plan::Recompute::kOperator;
  });
  if (cut > 0 && tree.leaves.empty())
    tree.pruned.insert(tree.pruned.begin(),
                       {"recompute=operator", "low-rank adapters are not recomputed by operator",
                        Reason::kUnsupported});
  return tree;
}

namespace {

/// Gradients of embedding and head are reduced once a step, beside the backward or at the end; or
/// every micro-batch, as those of the layers, where one strategy holds for all.
std::vector<plan::GradReduce> vocabulary_reductions(const Space& space, const TreeContext& context,
                                                    int replicas, int zero) {
  const bool chooses = replicas > 1 && zero >= 2 && context.micro_batches > 1;
  if (chooses && space.vocabulary_like_layers && space.reduce_per_micro_batch &&
      !space.reduce_per_step && !space.reduce_at_end)
    return {plan::GradReduce::kMicroBatch};
  std::vector<plan::GradReduce> all;
  const bool at_end = replicas > 1 && space.reduce_at_end;
  if (!at_end || space.reduce_per_step || space.reduce_per_micro_batch)
    all.push_back(plan::GradReduce::kStep);
  if (at_end) all.push_back(plan::GradReduce::kEnd);
  return all;
}

}  // namespace

std::vector<plan::LayerStrategy> partition_shardings(const Space& space,
                                                     std::int64_t micro_batches) {
  constexpr int kSome = 2;  // devices of a block
  Space whole = space;      // layers run again as a whole, or not at all
  whole.recompute_selective = whole.recompute_operator = whole.recompute_offload = false;
  whole.states_on_host = false;
  std::vector<int> stages = zero_stages(space, kSome);
  if (stages.empty()) stages = {0};
  std::vector<plan::LayerStrategy> all;
  for (const int zero : stages) add_leaves(whole, micro_batches, {.dp = kSome, .zero = zero}, all);
  for (plan::LayerStrategy& s : all) s.dp = 1;
  return all;
}

StrategyTree vocabulary_strategies(const model::ModelSpec& model, const Space& space,
                                   const TreeContext& context) {
  StrategyTree tree;
  for (int tp = 1; tp <= context.devices; tp *= 2) {
    if (context.devices % tp != 0) break;
    const int dp = context.devices / tp;
    const std::string name = fmt::format("vocabulary tp{} dp{}", tp, dp);
    if (tp > 1 && !space.tensor) {
      tree.pruned.push_back({name, "tensor parallelism is off", Reason::kOff});
    } else if (space.vocabulary_like_layers && space.fix_tp && *space.fix_tp != tp) {
      tree.pruned.push_back(
          {name, fmt::format("tp is fixed to {}", *space.fix_tp), Reason::kFixed});
    } else if (tp > model.vocab) {
      tree.pruned.push_back({name, fmt::format("{} rows of vocabulary", model.vocab)});
    } else if (context.micro_batch_sequences % dp != 0) {
      tree.pruned.push_back(
          {name, fmt::format("dp {} does not divide a micro-batch of {} sequences", dp,
                             context.micro_batch_sequences)});
    } else {
      for (const int zero : zero_stages(space, dp)) {
        for (const plan::GradReduce when : vocabulary_reductions(space, context, dp, zero))
          for (const plan::States where : allowed_states(space))
            tree.leaves.push_back(
                {.tp = tp, .dp = dp, .zero = zero, .grad_reduce = when, .states = where});
      }
    }
  }
  return tree;
}

}  // namespace orrery::search

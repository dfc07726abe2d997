#pragma once
#include "base/result.h"
#include "model/spec.h"
#include "plan/program/plan.h"
#include "plan/program/program.h"

namespace orrery::plan {

/// Lowers a plan to a Program. Errors: those of validate(). A lowered Program passes check().
base::Result<Program> lower(const Plan& plan, const model::ModelSpec& model);

/// Templates of one layer under one strategy, alone: what closed forms price, the same that lower()
/// emits.
///
///  * `forward`, `backward`: once per micro-batch. The head does its backward at once after its
///    forward (its `backward` is empty): the gradient [b,s,h] is kept instead of the logits
///    [b,s,v].
///  * `weight`: with split_backward only (else invalid): the weight gradients of the products
///    between norms and activations; `backward` then has all the rest (gradients of norms and
///    biases too, which share most of their work with the input's gradient).
///  * `gather`: ZeRO-3 only (else no operations): before every forward and every backward; they
///    write gathered weights that the compute template frees; `gather_backward` is the same for the
///    backward's buffers.
///  * `sync`: reduction of gradients over data parallelism, on the data stream: after the last
///    micro-batch's backward (its `weight`, if it has operations) (`reduces_per_micro_batch`
///    false), or after every one.
///  * `sync_last`: what is reduced after the last micro-batch beside a `sync` after every one
///    (replicated operators next to sharded ones); in place, so it takes no memory. Else invalid.
///  * `zero_gradient`, `update` (AdamW): once per step, at its start and end. Parameters of ZeRO-1
///    and ZeRO-2 are gathered on the data stream at the start of the next step, beside its first
///    forward. With grad_reduce `end` they are behind AdamW, and what `sync` holds is in front of
///    it.
struct LayerTemplates {
  // buffers, segments, groups, units and the templates below; one class without a body that lists
  // the persistent state
  Program program;
  TemplateId forward, backward, weight, gather_forward, gather_backward, zero_gradient, sync,
      sync_last, update;
  bool reduces_per_micro_batch = false;
};
struct LayerContext {
  model::Precision precision = model::Precision::kBFloat16;
  std::int64_t sequence = 0;
  std::int64_t micro_batch_sequences = 0;  // of the whole stage: global_batch / micro_batches
  std::int64_t micro_batches = 1;
  std::int64_t global_batch = 0;
  // of the zig-zag order of tokens (plan::token_chunks); of no interest to prices
  int token_chunks = 1;
  // pipeline ranks from the embedding's to the head's; > 1: a tied head keeps a copy of the table
  int stages = 1;
  int prefetch_depth = 1;
  // zero-bubble schedules: weight gradients have a pass of their own
  bool split_backward = false;
  // of the model's kinds of blocks: that of lower_block, of the block before lower_reshard
  int kind = 0;
  // lower_reshard: what follows reads the residual stream alone, no companion (lower_parts.h)
  bool before_head = false;
  // quantised copies of the weights are there, whatever the strategy gathers: of a body alone
  bool keeps_copies = false;
};
LayerTemplates lower_block(const model::ModelSpec& model, const LayerStrategy& strategy,
                           const LayerContext& context);
LayerTemplates lower_partitioned(const model::ModelSpec& model, const LayerRun& run,
                                 const LayerContext& context);
/// The part that depends on weights alone: gathers, sync, zero_gradient, update and the persistent
/// state are those of lower_block; forward and backward only read the weights.
LayerTemplates lower_block_weights(const model::ModelSpec& model, const LayerStrategy& strategy,
                                   const LayerContext& context);
/// Embedding (first stage) and head (last stage) likewise.
LayerTemplates lower_embedding_weights(const model::ModelSpec& model,
                                       const LayerStrategy& vocabulary,
                                       const LayerContext& context);
LayerTemplates lower_head_weights(const model::ModelSpec& model, const LayerStrategy& vocabulary,
                                  const LayerContext& context);
LayerTemplates lower_embedding(const model::ModelSpec& model, const LayerStrategy& vocabulary,
                               const LayerContext& context);
LayerTemplates lower_head(const model::ModelSpec& model, const LayerStrategy& vocabulary,
                          const LayerContext& context);

/// Change of layout between neighbouring layers: `forward` carries the activation (and its
/// companion), `backward` their gradients; the rest is empty.
LayerTemplates lower_reshard(const model::ModelSpec& model, const LayerStrategy& from,
                             const LayerStrategy& to, const LayerContext& context);
LayerTemplates lower_reshard(const model::ModelSpec& model, const LayerRun& from,
                             const LayerRun& to, const LayerContext& context);

}  // namespace orrery::plan

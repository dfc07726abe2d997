#pragma once
/// Any schedule on equal stages made by hand: a forward, a backward and a weight pass of one
/// operation each, for plan::pass_order.

#include <utility>
#include <vector>

#include "plan/program/schedule.h"
#include "tests/unit/sim/step_maker.h"

namespace orrery::sim::testing {

struct ScheduledOptions {
  plan::Schedule schedule = plan::Schedule::k1F1B;
  int ranks = 2, chunks = 1;
  std::int64_t micro_batches = 4;
  // of one stage
  std::int64_t forward_ps = kMicrosecond, backward_ps = kMicrosecond, weight_ps = kMicrosecond;
  std::int64_t message_bytes = 4;
};

/// Messages between stages: activations x, gradients dx, by layer (= stage).
class ScheduledStep {
 public:
  explicit ScheduledStep(const ScheduledOptions& o)
      : maker(o.ranks),
        o_(o),
        x_(maker.buffer("x", o.message_bytes, plan::Scope::kLayerMicroBatch)),
        dx_(maker.buffer("dx", o.message_bytes, plan::Scope::kLayerMicroBatch)),
        kept_(maker.buffer("kept", 4, plan::Scope::kLayerMicroBatch)) {
    maker.stages(o.ranks, 1);
    maker.program.micro_batches = maker.program.global_batch = o.micro_batches;
    const plan::Op forward = maker.compute("forward", o.forward_ps),
                   backward = maker.compute("backward", o.backward_ps);
    const plan::Op weight = maker.compute("weight", o.weight_ps);
    for (int r = 0; r < o.ranks; ++r) {
      plan::RankClass& k = maker.program.classes[static_cast<std::size_t>(r)];
      k.first_layer = r;
      k.end_layer = plan::stage_of(o.schedule, r, o.chunks - 1, o.ranks) + 1;
      std::vector<plan::StagePasses> passes;
      for (int v = 0; v < o.chunks; ++v) {
        const int s = plan::stage_of(o.schedule, r, v, o.ranks);
        if (!k.chunks.empty() && k.chunks.back().end == s)
          k.chunks.back().end = s + 1;
        else
          k.chunks.push_back({s, s + 1});
        passes.push_back(
            {.forward = {call("forward", forward_ops(s, forward), s)},
             .backward = {call("backward", backward_ops(s, backward), s)},
             .backward_last = {},
             .weight = {call("weight", {freeing(reading(weight, {kept_}), {kept_})}, s)},
             .weight_last = {}});
        passes.back().backward_last = passes.back().backward;
        passes.back().weight_last = passes.back().weight;
      }
      k.body = plan::schedule_nodes(
          plan::pass_order(o.schedule, r, o.ranks, o.chunks, o.micro_batches), passes);
    }
  }

  StepMaker maker;

 private:
  [[nodiscard]] int stages() const { return o_.ranks * o_.chunks; }
  static plan::BufferRef at(plan::BufferRef r, int layer_offset) {
    return {r.buffer, layer_offset};
  }
  plan::PassCall call(const std::string& name, std::vector<plan::Op> ops, int s) {
    return {maker.add(name, std::move(ops)), s};
  }
  [[nodiscard]] int rank_of(int s) const { return plan::rank_of(o_.schedule, s, o_.ranks); }
  // distance of the rank of stage s + 1
  [[nodiscard]] int next(int s) const { return rank_of(s + 1) - rank_of(s); }
  // whether a message goes from stage s to stage s + 1
  [[nodiscard]] bool sends(int s) const { return s >= 0 && s + 1 < stages() && next(s) != 0; }
  [[nodiscard]] plan::Stream stream(int s, plan::Stream first, plan::Stream second) const {
    return plan::is_v_shaped(o_.schedule) && s >= o_.ranks ? second : first;
  }

  std::vector<plan::Op> forward_ops(int s, plan::Op op) {
    using enum plan::Stream;
    std::vector<plan::Op> ops;
    if (s > 0) {
      if (sends(s - 1))
        ops.push_back(maker.exchange("receive", stream(s, kForwardReceive, kSecondForwardReceive),
                                     {{false, -next(s - 1), x_}}));
      op = freeing(reading(op, {x_}), {x_});
    }
    if (plan::splits_backward(o_.schedule)) op = writing(op, {kept_});
    if (s + 1 < stages()) op = writing(op, {at(x_, 1)});
    ops.push_back(op);
    if (sends(s))
      ops.push_back(freeing(maker.exchange("send", stream(s, kForwardSend, kSecondForwardSend),
                                           {{true, next(s), at(x_, 1)}}),
                            {at(x_, 1)}));
    return ops;
  }
  std::vector<plan::Op> backward_ops(int s, plan::Op op) {
    using enum plan::Stream;
    std::vector<plan::Op> ops;
    if (s + 1 < stages()) {
      if (sends(s))
        ops.push_back(maker.exchange("receive", stream(s, kBackwardReceive, kSecondBackwardReceive),
                                     {{false, next(s), at(dx_, 1)}}));
      op = freeing(reading(op, {at(dx_, 1)}), {at(dx_, 1)});
    }
    if (s > 0) op = writing(op, {dx_});
    ops.push_back(op);
    if (sends(s - 1))
      ops.push_back(freeing(maker.exchange("send", stream(s, kBackwardSend, kSecondBackwardSend),
                                           {{true, -next(s - 1), dx_}}),
                            {dx_}));
    return ops;
  }

  ScheduledOptions o_;
  plan::BufferRef x_, dx_, kept_;
};

}  // namespace orrery::sim::testing

#pragma once
/// Programs, clusters and price lists made by hand: prices are what a test says, to the picosecond.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/cost_model.h"
#include "plan/program/program.h"
#include "sim/simulate.h"
#include "topologies/builder.h"

namespace orrery::sim::testing {

inline constexpr std::int64_t kMicrosecond = 1'000'000;  // ps

/// The kind of device that hand-made clusters have.
inline auto test_device(topologies::TopologyBuilder& b) {
  topologies::DeviceModel model;
  model.name = "test device";
  model.peak_fp32 = model.peak_bf16 = base::FlopsPerSecond(1e12);
  model.memory_bandwidth = base::BytesPerSecond(1e12);
  model.memory_bytes = std::int64_t{1} << 34;
  model.source = "made up";
  return b.add_model(model);
}

/// `n` devices on one host, each with one link up to a switch and one down: a message crosses two
/// links.
inline topologies::Topology star(int n, std::int64_t bytes_per_second,
                                 std::int64_t link_latency_ns) {
  using base::Seconds;
  topologies::TopologyBuilder b("star");
  const auto index = test_device(b);
  const auto hub = b.add_vertex(topologies::VertexKind::kSwitch, "hub", 0);
  for (int i = 0; i < n; ++i) {
    const auto device = b.add_device(fmt::format("gpu[{}]", i), 0, index);
    b.add_duplex(device, hub, bytes_per_second, Seconds(static_cast<double>(link_latency_ns) / 1e9),
                 "link");
  }
  auto made = std::move(b).build();
  ORRERY_CHECK(made.has_value());
  return *std::move(made);
}

/// Builds a Program operation by operation, and the cost model that prices it.
class StepMaker {
 public:
  plan::Program program;
  model::Profile profile;

  explicit StepMaker(int world_size) {
    program.model = "hand-made";
    program.spec.name = "hand-made";
    program.spec.layers = 1;
    program.spec.hidden = program.spec.heads = program.spec.kv_heads = program.spec.head_dim = 1;
    program.spec.ffn = program.spec.vocab = program.spec.max_positions = 1;
    program.precision = model::Precision::kFloat32;
    program.sequence = 1;
    program.global_batch = 1;
    program.world_size = program.devices_per_stage = world_size;
    profile.name = "hand-made";
  }

  /// Classes of `count` ranks each, one layer, in order.
  void stages(int number, int count) {
    program.devices_per_stage = count;
    for (int i = 0; i < number; ++i) {
      plan::RankClass k;
      k.stage = i;
      k.first_rank = i * count;
      k.count = count;
      k.first_layer = 0;
      k.end_layer = 1;
      program.classes.push_back(k);
    }
  }
  plan::BufferRef buffer(const std::string& name, std::int64_t bytes,
                         plan::Scope scope = plan::Scope::kMicroBatch) {
    plan::BufferDecl d;
    d.name = name;
    d.shape = {bytes / 4};
    d.scope = scope;
    return {program.buffers.push_back(std::move(d)), 0};
  }
  plan::GroupId group(int size, int stride) {
    return program.groups.push_back({"group", size, stride});
  }

  /// A computation that takes exactly `ps` alone.
  plan::Op compute(const std::string& name, std::int64_t ps,
                   plan::Stream stream = plan::Stream::kCompute) {
    model::SegmentShape shape;
    shape.kind = model::SegmentKind::kResidual;
    shape.sequences = 1;
    shape.tokens = static_cast<std::int64_t>(program.segments.size()) + 1;
    shape.in = shape.out = 1;
    model::OperatorPoint point;
    point.shape = shape;
    point.seconds_median = point.seconds_p10 = point.seconds_p90 = static_cast<double>(ps) / 1e12;
    point.samples = 1;
    profile.operators.push_back(point);
    plan::Op op;
    op.kind = plan::OpKind::kCompute;
    op.name = name;
    op.stream = stream;
    op.segment = program.segments.push_back(shape);
    return op;
  }
  plan::Op all_reduce(const std::string& name, plan::GroupId group, std::int64_t bytes,
                      plan::Stream stream = plan::Stream::kTensor) {
    plan::Op op;
    op.kind = plan::OpKind::kCollective;
    op.name = name;
    op.stream = stream;
    op.collective = plan::Collective::kAllReduce;
    op.group = group;
    op.bytes = bytes;
    return op;
  }
  /// Leg lists: (send, peer offset, buffer); the buffers are read or written.
  plan::Op exchange(const std::string& name, plan::Stream stream, std::vector<plan::Leg> legs) {
    plan::Op op;
    op.kind = plan::OpKind::kExchange;
    op.name = name;
    op.stream = stream;
    for (const plan::Leg& leg : legs) (leg.send ? op.reads : op.writes).push_back(leg.buffer);
    op.legs = std::move(legs);
    return op;
  }

  plan::TemplateId add(const std::string& name, std::vector<plan::Op> ops) {
    return program.templates.push_back({name, std::move(ops)});
  }
  void call(int stage, plan::TemplateId id, std::int64_t micro_batch = 0) {
    plan::Node n;
    n.call = id;
    n.micro_batch = micro_batch;
    program.classes[static_cast<std::size_t>(stage)].body.push_back(n);
  }
  /// One template with these operations, called once.
  void run_once(int stage, std::vector<plan::Op> ops) { call(stage, add("once", std::move(ops))); }

  [[nodiscard]] costmodel::CostModel cost(topologies::Topology topology) const {
    auto made =
        costmodel::CostModel::make(program.spec, std::move(topology), profile,
                                   {.precision = program.precision, .sequence = program.sequence});
    if (!made) fmt::print(stderr, "{}\n", base::to_string(made.error()));
    ORRERY_CHECK(made.has_value());
    return *std::move(made);
  }
  [[nodiscard]] SimReport run(topologies::Topology topology, bool timeline = false) const {
    auto report = simulate(program, cost(std::move(topology)), {.timeline = timeline});
    if (!report) fmt::print(stderr, "{}\n", base::to_string(report.error()));
    ORRERY_CHECK(report.has_value());
    return *std::move(report);
  }
};

inline plan::Op reading(plan::Op op, std::vector<plan::BufferRef> refs) {
  op.reads.insert(op.reads.end(), refs.begin(), refs.end());
  return op;
}
inline plan::Op writing(plan::Op op, std::vector<plan::BufferRef> refs) {
  op.writes.insert(op.writes.end(), refs.begin(), refs.end());
  return op;
}
inline plan::Op freeing(plan::Op op, std::vector<plan::BufferRef> refs) {
  op.frees.insert(op.frees.end(), refs.begin(), refs.end());
  return op;
}

/// A pipeline of equal stages: forward takes f, backward b, messages are `message_bytes`, each
/// micro-batch in flight keeps `stash_bytes`.
struct PipelineOptions {
  int stages = 2;
  int micro_batches = 4;
  std::int64_t forward_ps = kMicrosecond, backward_ps = 2 * kMicrosecond;
  std::int64_t message_bytes = 0, stash_bytes = 0;
  bool one_f_one_b = true;
};

inline StepMaker pipeline(const PipelineOptions& o) {
  StepMaker m(o.stages);
  m.stages(o.stages, 1);
  m.program.micro_batches = m.program.global_batch = o.micro_batches;
  const auto x = m.buffer("x", o.message_bytes), y = m.buffer("y", o.message_bytes);
  const auto dx = m.buffer("dx", o.message_bytes), dy = m.buffer("dy", o.message_bytes);
  const auto stash = m.buffer("stash", o.stash_bytes);
  const plan::Op forward = m.compute("forward", o.forward_ps),
                 backward = m.compute("backward", o.backward_ps);
  for (int s = 0; s < o.stages; ++s) {
    const bool first = s == 0, last = s == o.stages - 1;
    std::vector<plan::Op> f, b;
    if (!first) f.push_back(m.exchange("receive", plan::Stream::kForwardReceive, {{false, -1, x}}));
    plan::Op op = writing(forward, {stash});
    if (!first) op = freeing(reading(op, {x}), {x});
    if (!last) op = writing(op, {y});
    f.push_back(op);
    if (!last)
      f.push_back(freeing(m.exchange("send", plan::Stream::kForwardSend, {{true, 1, y}}), {y}));
    if (!last) b.push_back(m.exchange("receive", plan::Stream::kBackwardReceive, {{false, 1, dy}}));
    op = freeing(reading(backward, {stash}), {stash});
    if (!last) op = freeing(reading(op, {dy}), {dy});
    if (!first) op = writing(op, {dx});
    b.push_back(op);
    if (!first)
      b.push_back(freeing(m.exchange("send", plan::Stream::kBackwardSend, {{true, -1, dx}}), {dx}));
    const auto forwards = m.add("forward", f), backwards = m.add("backward", b);
    const int warm = o.one_f_one_b ? std::min(o.stages - s - 1, o.micro_batches) : o.micro_batches;
    for (int i = 0; i < warm; ++i) m.call(s, forwards, i);
    for (int i = 0; i < o.micro_batches - warm; ++i) {
      m.call(s, forwards, warm + i);
      m.call(s, backwards, i);
    }
    for (int i = o.micro_batches - warm; i < o.micro_batches; ++i) m.call(s, backwards, i);
  }
  return m;
}

}  // namespace orrery::sim::testing

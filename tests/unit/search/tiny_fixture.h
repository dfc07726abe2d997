#pragma once
/// A cluster and a model so small that whole plans can be enumerated.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "model/spec.h"
#include "topologies/topology.h"

namespace orrery::search {

inline topologies::Topology tiny_cluster(int devices) {
  const std::string text = fmt::format(R"(schema: orrery.topology/1
name: tiny
description: {0} devices on one switch
device_models:
  - name: device
    peak_fp32: 10 TFLOP/s
    peak_bf16: 100 TFLOP/s
    memory_bandwidth: 1000 GB/s
    memory: 1 GiB
    power: 500 W
    launch_overhead: 1 us
    source: made up
host:
  source: made up
  devices:
    - {{name: gpu, model: device, count: {0}}}
  switches:
    - {{name: switch}}
  links:
    - from: gpu
      to: switch
      kind: nvlink
      bandwidth_per_direction: 20 GB/s
      latency: 1 us
      source: made up
)",
                                       devices);
  auto topology = topologies::parse_topology(text, "tiny.yaml");
  if (!topology) ADD_FAILURE() << base::to_string(topology.error());
  return *std::move(topology);
}

inline model::ModelSpec tiny_model(int layers) {
  model::ModelSpec m;
  m.name = "tiny";
  m.family = model::Family::kLlama;
  m.layers = layers;
  m.hidden = 256;
  m.heads = m.kv_heads = 4;
  m.head_dim = 64;
  m.ffn = 512;
  m.vocab = 512;
  m.max_positions = 128;
  m.norm = model::NormKind::kRmsNorm;
  m.activation = model::Activation::kSilu;
  m.gated_mlp = true;
  m.qkv_bias = m.projection_bias = m.mlp_bias = false;
  m.tied_embeddings = false;
  m.position = model::PositionKind::kRotary;
  return m;
}

inline costmodel::CostModel tiny_cost(int devices, int layers) {
  auto cost = costmodel::CostModel::make(tiny_model(layers), tiny_cluster(devices), std::nullopt,
                                         {model::Precision::kBFloat16, 128});
  if (!cost) ADD_FAILURE() << base::to_string(cost.error());
  return *std::move(cost);
}

}  // namespace orrery::search

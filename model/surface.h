#pragma once
/// \file
/// What a profile says of a device beyond single measured points: surfaces fitted to many of them,
/// with few parameters, and how a framework runs the segments on it. Formulas:
/// costmodel/compute/surface.h; where each number comes from: the profile's provenance.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/json_fwd.h"
#include "model/dtype.h"

namespace orrery::model {

/// Log-linear correction of products: ln(measured / formula) at the knots of a grid over (m, n, k),
/// m slowest.
struct ProductCorrection {
  std::vector<double> m = {}, n = {}, k = {};  // ascending sizes; all empty: none
  std::vector<double> ln = {};                 // m.size() * n.size() * k.size()
  bool operator==(const ProductCorrection&) const = default;
};

/// Matrix products. Efficiencies are fractions of the device's datasheet numbers, so that a variant
/// of the device (40 GB, 80 GB) can share them.
struct ProductSurface {
  std::int64_t units = 1;     // streaming multiprocessors, compute units
  double efficiency = 0.8;    // of the peak: the largest tile on all units, no prologue
  double launch_seconds = 0;  // of a kernel without work
  // k0: what a tile costs beside its products, as contracted features
  double prologue_features = 0;
  double half_tile = 1;     // rate of a tile of half the area over that of the whole one
  double quantisation = 1;  // 1: units wait for the last wave of tiles, 0: they never do
  // memory traffic of partial sums, against reading and writing them once in fp32
  double split_traffic = 1;
  double memory_efficiency = 0.8;  // of the memory bandwidth
  double throttle = 0;             // exponent: how sustained work lowers clocks
  ProductCorrection correction = {};
  bool operator==(const ProductSurface&) const = default;
};

/// Flash attention.
struct AttentionSurface {
  double efficiency = 0.6;  // of the peak, over the scores that a causal mask leaves
  double launch_seconds = 0;
  double seconds_per_token = 0;  // one block of queries walks along its keys by itself
  // of the memory bandwidth, for queries, output, keys and values
  double memory_efficiency = 0.5;
  double key_weight = 1;             // traffic of keys and values over reading them once
  double backward_efficiency = 0.8;  // rate of backward over that of forward
  // FlashAttention-2's kernels, forward and backward; 0: those of the numbers above
  double flash2_efficiency = 0;
  // of `efficiency`, for heads of these sizes (ascending), linear in the logarithm between; none: 1
  std::vector<double> head_sizes = {}, head_factors = {};
  // of a window or a chunk, a query and a head: what the blocks at its edges cost
  double window_seconds = 0;
  bool operator==(const AttentionSurface&) const = default;
};

/// Everything else is a stream through memory.
struct StreamSurface {
  double efficiency = 0.8;  // of the memory bandwidth
  // times that, for the backward of a norm: it sums over tokens and over features
  double norm_backward = 1;
  bool operator==(const StreamSurface&) const = default;
};

/// What arithmetic draws at the clocks that the surface was measured at (docs/models/compute.md).
struct PowerSurface {
  double idle_watts = 0;       // P0: without arithmetic
  double limit_watts = 0;      // of the device measured
  double joules_per_flop = 0;  // e; 0: power is no limit
  double exponent = 2;         // γ: power goes with the clock to the γ
  bool operator==(const PowerSurface&) const = default;
};

/// Products of operands that are quantised already.
struct FormatSurface {
  std::vector<Format> formats = {};
  double peak = 0;  // of the device measured, in these formats, FLOP/s
  ProductSurface product = {};
  double residual = 0;
  bool operator==(const FormatSurface&) const = default;
};

struct ComputeSurface {
  DType dtype = DType::kBFloat16;
  // datasheet of the device measured, FLOP/s and bytes/s: which devices are like it; 0: not said
  double peak = 0, memory_bandwidth = 0;
  ProductSurface product = {};
  AttentionSurface attention = {};
  StreamSurface stream = {};
  PowerSurface power = {};
  std::vector<FormatSurface> formats = {};
  // 80 % of the points that were fitted to, or held back, lie within ± this share of the formula
  double residual = 0;
  bool operator==(const ComputeSurface&) const = default;
};

/// The best fused kernel that a device has; FlashAttention-2, older than Hopper; scores written
/// out.
enum class AttentionKernel : std::uint8_t { kFlash, kFlash2, kExplicit };
std::string_view to_string(AttentionKernel kernel);

/// How a framework runs the segments; the default is one fused kernel each, launched ahead of time.
struct Framework {
  std::string name = {};
  // explicit: scores, softmax and dropout are passes through memory
  AttentionKernel attention = AttentionKernel::kFlash;
  bool dropout = false;  // after attention's softmax and before each residual
  // collectives of sequence parallelism run beside their products, in pieces
  bool tensor_overlap = false;
  // a token goes once to each rank that has experts of its choice, over a network once to each host
  // (DeepEP, HybridEP); else a copy for each choice
  bool tokens_sent_once = false;
  // exchanges of experts run beside the computation of another micro-batch
  bool expert_overlap = false;
  // the host needs this long for a kernel, with all that it does around one: a layer takes no less
  // than that for each of its kernels
  double kernel_seconds = 0;
  // passes over logits of 16 bits that forward and backward of the loss make together; 0:
  // those of the segments
  double loss_passes = 0;
  // memory traffic over that of one fused kernel: 1 where there is one
  double norm_passes = 1, activation_passes = 1, rotary_passes = 1;
  // biases of experts' outputs, weighted by the gate and added row by row: bytes through memory of
  // an output element, forward and backward; 0: added by the product
  double expert_bias_bytes = 0, expert_bias_gradient_bytes = 0;
  // what clamps the inputs of a gated activation in front of its kernel: bytes through memory of an
  // output element, forward and backward; 0: that kernel
  double clamp_bytes = 0, clamp_gradient_bytes = 0;
  // of a gradient element that replicas sum, on the wire; 0: those of its buffer
  double gradient_bytes = 0;
  // sharded parameters: bytes through memory, on the compute stream, for each that a gather brings
  // and for each that a reduction takes
  double gather_copies = 0, reduce_copies = 0;
  // of a logit, that the loss holds beside the logits and their gradient
  double loss_bytes = 0;
  // what the allocator reserves over what tensors take
  double reserved_share = 1;
  // of a device's memory that no process gets; of a process beside its tensors (context, kernels,
  // handles of libraries); of a communicator with several ranks
  double driver_share = 0, context_bytes = 0, communicator_bytes = 0;
  bool operator==(const Framework&) const = default;
};

/// Strict readers for a profile's members `surfaces[i]` and `framework`; faults go to the sink.
/// What a framework does not state is as that of `like`.
ComputeSurface read_surface(const base::Node& node, const std::string& what, base::ErrorSink& sink);
Framework read_framework(const base::Node& node, const std::optional<Framework>& like,
                         base::ErrorSink& sink);
base::Json to_json(const ComputeSurface& surface);
base::Json to_json(const Framework& framework);

}  // namespace orrery::model

#pragma once
/// \file
/// A Program made ready for the clock: expanded classes, prices looked up once per template
/// operation, peers resolved to channels.
///
/// Classes meet in two ways:
///  * an exchange leg from class a to class b goes through the *channel* (a, b, stream pair, rank
///    distance): its n-th send meets its n-th receive, where the pair of a send stream is the
///    receive stream of the same direction, any other stream its own;
///  * a collective whose group reaches beyond its class goes through a *crossing* (its classes,
///    group, stream, operation, bytes): the n-th of each class meets. It is priced over all of its
///    classes: the largest latency, the smallest rate, all links.
#include <array>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"
#include "base/result.h"
#include "costmodel/closed_form/layer_form.h"
#include "costmodel/cost_model.h"
#include "plan/program/expand.h"
#include "sim/network/flow_network.h"
#include "sim/step/fused_program.h"
#include "sim/step/lifetimes.h"
#include "sim/step/time_part.h"

namespace orrery::sim {

inline constexpr std::uint32_t kNone = ~std::uint32_t{0};

/// What an operation occupies its rank with, for the accounts of a report.
enum class Activity : std::uint8_t { kCompute, kTensor, kData, kPipeline };
inline constexpr int kActivities = 4;

struct PricedLeg {
  bool send = false;
  std::uint32_t channel = 0;
  FlowNetwork::TransferIndex transfer = kNone;  // of a send
};

/// One operation of a template as one class runs it.
struct PricedOp {
  const plan::Op* op = nullptr;  // null: this class has not met it
  plan::OpKind kind = plan::OpKind::kCompute;
  std::uint8_t stream = 0;
  Activity activity = Activity::kCompute;
  TimePart part = TimePart::kForward;
  bool send_only = false;  // exchange without a receive
  bool optimizer = false, recomputed = false;
  // who waits for it goes on when it begins (CostModel::overlaps_experts)
  bool holds_nobody = false;
  costmodel::DeviceKinds kinds = 0;  // whose pace it is
  std::int64_t compute_ps = 0;       // of a copy its own
  std::int64_t host_wait_ps = 0;     // of it, what the device waits for the host
  std::int64_t written_bytes = 0, transient_bytes = 0, freed_bytes = 0;  // lifetimes.h
  FlowNetwork::TransferIndex transfer = kNone;  // collective inside the class
  std::uint32_t crossing = kNone;               // collective beyond it
  std::uint32_t first_leg = 0, legs = 0;
};

struct PreparedClass {
  const plan::RankClass* rank_class = nullptr;
  plan::Expansion expansion;
  std::vector<std::uint32_t> priced;                  // [op] into ops
  std::vector<std::uint32_t> next;                    // [op] next of its stream, kNone at the end
  std::array<std::uint32_t, plan::kStreams> first{};  // of each stream
  std::vector<PricedOp> ops;                          // [template offset + index]
  Lifetimes lifetimes;
  [[nodiscard]] std::uint32_t op_count() const { return as_u32(priced.size()); }
  [[nodiscard]] const PricedOp& price(std::uint32_t op) const { return ops[priced[op]]; }
};

struct Crossing {
  std::vector<std::uint32_t> classes;  // ascending
  plan::Group group;
  plan::Collective collective = plan::Collective::kAllReduce;
  std::int64_t bytes = 0;
  std::uint8_t stream = 0;
  bool in_pieces = false;            // beside a product
  const plan::Op* stated = nullptr;  // that states its messages: like no other
  costmodel::Ranks part = {};        // whose pace it is, inside a class
  FlowNetwork::TransferIndex transfer = kNone;
  [[nodiscard]] bool same(const Crossing& o) const {
    return group == o.group && collective == o.collective && bytes == o.bytes &&
           stream == o.stream && in_pieces == o.in_pieces && stated == o.stated && part == o.part &&
           classes == o.classes;
  }
};

struct Channel {
  std::uint32_t sender = 0, receiver = 0;  // classes
  plan::Stream sending_end = plan::Stream::kForwardSend;
  int offset = 0;  // receiver's rank - sender's
  bool operator==(const Channel&) const = default;
};

/// A lane of the network for a class's stream, and leg of an exchange: the stream runs one
/// operation at a time.
inline std::uint32_t lane_of(std::uint32_t c, std::uint8_t stream, std::uint32_t leg) {
  constexpr std::uint32_t kLegLanes = 64;
  ORRERY_CHECK(leg < kLegLanes, "{} legs in one exchange", leg);
  return (c * plan::kStreams + stream) * kLegLanes + leg;
}

struct PreparedStep {
  std::vector<PreparedClass> classes;
  std::vector<PricedLeg> legs;
  std::vector<Channel> channels;
  std::vector<Crossing> crossings;
};

/// Registers every transfer in `network` and freezes it. Program and cost must outlive the result.
/// Without `fold` transfers name the links of every host; times are the same (class_loads.h).
/// Errors: kInconsistent for a peer or group member outside the world.
base::Result<PreparedStep> prepare(const plan::Program& program, const costmodel::CostModel& cost,
                                   FlowNetwork& network, bool fold = true);
/// As if every rank were on a device of this one kind.
base::Result<PreparedStep> prepare_on(costmodel::DeviceKinds kind, const plan::Program& program,
                                      const costmodel::CostModel& cost, FlowNetwork& network);
/// Of a Program with runs (fused_program.h): times of the step alone are right, not its memory.
base::Result<PreparedStep> prepare(const FusedProgram& fused, const costmodel::CostModel& cost,
                                   FlowNetwork& network);

}  // namespace orrery::sim

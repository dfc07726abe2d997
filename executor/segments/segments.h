#pragma once
/// Segments on LibTorch tensors: the arithmetic of model/segment.h, phase by phase, without
/// autograd and without any knowledge of parallelism. The interpreter and the calibration both call
/// `run_segment`, so that what is timed is what runs.
///
/// Temporaries are few and stated in model/sizes.cc (`PhaseWork::transient_bytes`); outputs are
/// dense tensors of the declared shape with storage of their own, so that counted bytes equal the
/// Program's.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/result.h"
#include "executor/segments/adamw.h"
#include "executor/segments/rotary_frequencies.h"
#include "executor/state/tensor.h"
#include "model/segment.h"
#include "plan/program/launches.h"
#include "plan/program/program.h"

namespace orrery::executor {

class TokenData;
struct Quantisation;

/// An output: shape and dtype as declared; `make()` gives it its place or allocates it, or a
/// segment assigns a tensor of its own making (fills_outputs()).
struct Output {
  std::vector<std::int64_t> shape;
  model::DType dtype = model::DType::kFloat32;
  at::Device device{at::kCPU};
  at::Tensor tensor = {};
  at::Tensor place = {};  // undefined: none
  at::Tensor& make() {
    tensor = place.defined() ? place : empty(shape, dtype, device);
    return tensor;
  }
};

/// Operands of one phase in the order of the table in model/segment.h. Weights and gradients are
/// the w(...) and dw(...): views of the unit's flat storage; gradients are fp32 and contributions
/// are added to them.
struct Operands {
  std::vector<at::Tensor> reads;
  std::vector<Output> writes;
  std::vector<at::Tensor> updates;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> gradients;
};

/// cos and sin of the rotary embedding, [tokens, head_dim / 2] fp32 each, made once per shape
/// (framework bytes, not the Program's).
class RotaryTables {
 public:
  struct Table {
    at::Tensor cos, sin;
  };
  RotaryTables() = default;
  explicit RotaryTables(LongRopeFactors factors) : factors_(std::move(factors)) {}
  /// Of the whole sequence, in the order in which the model keeps its tokens.
  const Table& get(const model::SegmentShape& shape, const at::Device& device);

 private:
  struct Key {
    std::int64_t tokens, head_dim;
    double theta;
    int chunks;
    model::Rope rope;
    bool operator==(const Key&) const = default;
  };
  std::deque<std::pair<Key, Table>> tables_;  // few
  LongRopeFactors factors_;
};

/// An operation of which the launch of the one before does a part or all (plan/program/launches.h).
/// Its operands have no reads: the first is what that one writes, others nobody needs for it.
/// Whoever launches takes it from the context.
struct Joining {
  plan::Joined what = plan::Joined::kNo;
  const model::SegmentShape* shape = nullptr;
  model::Phase phase = model::Phase::kF;
  Operands operands;
};

/// What a segment may know beside its operands.
struct SegmentContext {
  int local_rank = 0;                  // in the stage: which part a slice takes
  std::int64_t layer = 0, layers = 1;  // which block of how many: decay of lightning attention
  /// Which share of its sequences' tokens this rank holds.
  [[nodiscard]] std::int64_t token_part(const model::SegmentShape& s) const {
    return (local_rank / s.token_stride) % s.token_parts;
  }
  // this rank's shard holds rows [shard * out, (shard + 1) * out) of the vocabulary
  std::int64_t vocabulary_shard = 0;
  double loss_scale = 1.0;  // 1 / (targets of the global batch)
  // kLoadTokens, kLoadTargets
  const TokenData* data = nullptr;
  std::uint64_t seed = 0;
  std::int64_t step = 0, global_batch = 0, first_sequence = 0;
  // kAdamW
  AdamW optimizer;
  std::int64_t update = 1;  // 1 for the first update
  const plan::ParameterUnit* unit = nullptr;
  std::int64_t shard_begin = 0;  // first element of the owned shard in the unit's flat storage
  RotaryTables* rotary = nullptr;
  Quantisation* quantisation = nullptr;  // of shapes with a format
  Joining* behind = nullptr;             // what this operation's launch does as well
  bool bias_is_done = false;             // its bias gradient, by the launch before
  at::Tensor arrived;                    // of device::Arrivals, made when it is asked for
};

/// An update of a unit: AdamW's operands, and what it knows of the context.
struct UnitUpdate {
  const model::SegmentShape* shape = nullptr;
  const plan::ParameterUnit* unit = nullptr;
  std::int64_t shard_begin = 0;
  Operands operands;
};
/// Several in one launch of a device: at most device::kMostUnits.
void update_units(std::vector<UnitUpdate>& updates, const SegmentContext& context);

/// Runs one phase. Errors: kUnsupported (a segment without an implementation), those of the token
/// data. A violated shape is our bug; LibTorch's own exceptions pass through.
base::Result<void> run_segment(const model::SegmentShape& shape, model::Phase phase,
                               Operands& operands, SegmentContext& context);

/// Whether `run_segment` implements the phase; asked of every operation before step 0.
bool has_segment(const model::SegmentShape& shape, model::Phase phase);

/// Whether all results are written where Output::make() says; what LibTorch returns is where it
/// made it.
bool fills_outputs(const model::SegmentShape& shape, model::Phase phase, const at::Device& device);

}  // namespace orrery::executor

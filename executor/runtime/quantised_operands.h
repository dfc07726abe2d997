#pragma once
/// \file
/// What products of quantised operands keep between the operations of a rank: scales of whole
/// tensors, by buffer instance; copies of weights, in the Program's buffers of them; and the
/// largest numbers that scales are taken from.
///
/// A tensor whose features or tokens are split over tensor ranks has one scale: that of the largest
/// number on any of them, which they find together (four bytes beside each such tensor, which the
/// Program does not state). Data ranks and micro-batches have tensors of their own.
///
/// Delayed scales are taken from the largest number of the last kHistory steps, over micro-batches
/// and all ranks of the stage, which find it together behind each step; in the first one as current
/// scales are (Transformer Engine's DelayedScaling, whose first scale is 1).
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "executor/quantised/quantised.h"
#include "executor/transport/communicator.h"
#include "plan/program/expand.h"
#include "plan/program/program.h"

namespace orrery::executor {

/// Why the executor cannot run a shape with a format; empty: it can. Sizes on a rank are whole
/// blocks, so that bytes are the Program's and blocks those of any other plan.
std::string quantised_fault(const model::SegmentShape& shape);

class QuantisedOperands {
 public:
  /// All of it outlives this.
  QuantisedOperands(const plan::Program& program, const plan::InstanceMap& instances,
                    Communicator& communicator);
  /// Error: kCollective.
  base::Result<void> open_channels();
  /// Bytes of the copies of a unit's weights.
  void keep_copies(plan::UnitId unit, std::int64_t layer, const at::Tensor& bytes);

  /// What an operation needs beside its operands. Valid until the next call.
  Quantisation& enter(const plan::Op& op, std::int64_t layer, std::int64_t micro_batch);
  /// It has run. Error: kCollective, of the maxima that it asked for.
  base::Result<void> leave(const plan::Op& op, std::int64_t layer, std::int64_t micro_batch);
  /// A collective has moved codes, whose scale is that of all its ranks.
  void moved(const plan::Op& op, std::int64_t layer, std::int64_t micro_batch);
  /// A step has ended. Error: kCollective.
  base::Result<void> end_step();

 private:
  static constexpr std::size_t kHistory = 1024;
  struct Largest {
    float now = 0;             // in this step
    std::deque<float> before;  // steps, the latest last
  };
  struct UnitCopies {
    at::Tensor bytes;
    std::map<std::int64_t, WeightCopies> of_view;  // by the view's offset
  };

  float largest(ProductOperand operand, float own);
  [[nodiscard]] plan::GroupId tensor_group(const plan::Op& op) const;
  WeightCopies* copies_of(const plan::Op& op, std::int64_t layer);
  /// A view of the bytes of a weight's copy by rows, or of the one by columns.
  [[nodiscard]] at::Tensor copy_bytes(const plan::ParameterUnit& unit,
                                      const plan::ParameterView& view, const at::Tensor& bytes,
                                      bool by_columns) const;

  const plan::Program& program_;
  const plan::InstanceMap& instances_;
  Communicator& communicator_;
  Quantisation quantisation_;
  std::vector<float> scales_;  // of whole tensors, by instance
  std::map<std::pair<plan::UnitId, std::int64_t>, UnitCopies> copies_;
  std::map<const plan::Op*, plan::UnitId> readers_;  // of results without weights: who reads them
  std::map<plan::GroupId, Channel> channels_;
  Channel stage_;  // of delayed scales
  // by layer, operation and operand: in one order on all ranks of the stage
  std::map<std::tuple<std::int64_t, std::string, ProductOperand>, Largest> history_;
  const plan::Op* op_ = nullptr;
  std::int64_t layer_ = 0;
  const Channel* channel_ = nullptr;  // of the operation's tensor group; null: it is alone
  base::Result<void> outcome_;
};

}  // namespace orrery::executor

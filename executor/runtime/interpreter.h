#pragma once
/// Runs one rank of a Program: one thread, operations in the total issue order of
/// plan::for_each_op, tensors by buffer instance.
///
/// Collectives block where they stand. A send is posted and left; it is waited for before the next
/// operation of its stream is issued, and its tensor lives until then (plan/program/memory.h counts
/// it so). A receive is posted and waited for where it stands. Between operations pending sends are
/// polled, because MPI moves data only inside its calls. No deadlock for a Program that passes
/// plan::check: a send never blocks the rank that posts it before its peer could have reached the
/// one before it on the same stream.
///
/// On a device one launch does several operations (plan/program/launches.h), but in a recorded
/// step, where each has its own time, and sums of biases another order: the later ones find done at
/// their turn what is theirs.
///
/// Over a transport that issues and goes on (transport/streams.h) nothing blocks here: every
/// operation is issued on the device stream of its Program stream, behind the marks of what it
/// depends on, and the host waits at the end of the step, and for memory (late_frees.h) that is not
/// in the arena; there operations wait for each other (plan/program/arena.h).
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/numbers.h"
#include "base/result.h"
#include "executor/runtime/late_frees.h"
#include "executor/runtime/quantised_operands.h"
#include "executor/runtime/site.h"
#include "executor/runtime/stream_order.h"
#include "executor/segments/segments.h"
#include "executor/state/data.h"
#include "executor/transport/redistribution.h"
#include "plan/program/arena.h"
#include "plan/program/expand.h"
#include "plan/program/launches.h"
#include "plan/program/trace.h"

namespace orrery::executor {

class Interpreter {
 public:
  /// Unrolls the class of `communicator.rank()`, opens its channels and makes its persistent state.
  /// Of `options` seed and optimizer count. Everything else passed by reference must outlive the
  /// interpreter, and `data`, which is null of a Program that reads none. Errors: kUnsupported,
  /// kCollective.
  static base::Result<std::unique_ptr<Interpreter>> create(const plan::Program& program,
                                                           Communicator& communicator,
                                                           const TokenData* data, Site& site,
                                                           const RunOptions& options);

  /// One training step. Errors carry a note that names rank, layer, micro-batch and operation.
  base::Result<void> step(std::int64_t index, bool record);

  /// This rank's part of the step's loss: the global loss is the sum over the ranks that have a
  /// part (the last stage's, one per data-parallel share); nothing elsewhere.
  [[nodiscard]] double loss_part() const;

  /// What this rank holds between steps. @pre the buffer is persistent.
  [[nodiscard]] const at::Tensor& persistent(plan::BufferId buffer, std::int64_t layer) const {
    return tensors_[instances_.at({buffer, 0}, layer, 0)];
  }

  /// Of the last recorded step; times from its beginning.
  [[nodiscard]] const std::vector<plan::Span>& spans() const { return spans_; }
  [[nodiscard]] const std::vector<plan::MemorySample>& memory() const { return memory_; }

 private:
  /// One operation of the unrolled step, with what depends on the rank worked out.
  struct Step {
    const plan::Op* op = nullptr;
    std::size_t number = 0;
    std::int32_t layer = 0, micro_batch = 0;
    std::uint32_t template_id = 0, index = 0;
    std::int64_t vocabulary_shard = 0, first_sequence = 0, shard_begin = 0;
  };

  Interpreter(const plan::Program& program, Communicator& communicator, const TokenData* data,
              Site& site, const RunOptions& options);
  base::Result<void> compile();
  void place(Step& step) const;
  /// Of the owned part of a unit's flat storage, where a buffer of `elements` is that part.
  [[nodiscard]] std::int64_t shard_begin(plan::UnitId unit, std::int64_t elements) const;
  base::Result<void> open_channels();
  base::Result<void> open_pairs();
  void make_state();
  at::Tensor make_persistent(const plan::BufferDecl& decl, std::int64_t layer, bool parameters);
  [[nodiscard]] at::Tensor& tensor(const plan::BufferRef& ref, const Step& step);
  base::Result<void> run(std::size_t number, bool record);
  base::Result<void> begin(std::size_t number);
  base::Result<void> perform(std::size_t number);
  base::Result<void> end(std::size_t number);
  base::Result<void> compute(std::size_t number);
  base::Result<void> compute_with(std::size_t number, Joining* behind);
  void place_outputs(const Step& step, Operands& operands);
  void make_arena(const plan::Expansion& expansion);
  /// What an operation writes: its place in the arena, if it has one, and else a new tensor.
  [[nodiscard]] at::Tensor place_of(const Step& step, std::size_t write) const;
  [[nodiscard]] bool in_arena(const at::Tensor& tensor) const;
  [[nodiscard]] at::Tensor fresh(const Step& step, std::size_t write) const;
  void update_units_of(std::size_t number);
  [[nodiscard]] plan::Joined joined(std::size_t number) const {
    return joins_ && !recording_ ? launches_.joined[number] : plan::Joined::kNo;
  }
  /// What the launch of an operation does as well.
  [[nodiscard]] std::span<const std::uint32_t> joined_with(std::size_t number) const;
  base::Result<void> collective(const Step& step);
  base::Result<void> redistribution(const Step& step);
  base::Result<void> collective_piece(const Step& step, const Channel& channel);
  /// View of an operation's piece: of a tensor rank's tokens (`ranks` 1), or of those of all.
  static at::Tensor piece_of(const at::Tensor& all, const plan::Op& op, std::int64_t ranks);
  /// Ranks whose pieces a buffer of a product holds; 0: it is of one piece.
  [[nodiscard]] std::int64_t ranks_in(const plan::BufferRef& ref, const plan::Op& op) const;
  base::Result<void> exchange(const Step& step);
  void copy(const Step& step);
  base::Result<void> drain(plan::Stream stream);
  base::Result<void> poll();
  Operands operands_of(const Step& step, bool with_reads = true);
  base::Diagnostics located(base::Diagnostics diagnostics, const Step& step) const;
  void record_span(const Step& step);
  void finish_record();

  const plan::Program& program_;
  Communicator& communicator_;
  Site& site_;
  const plan::RankClass& class_;
  int local_rank_ = 0;

  std::vector<Step> steps_;
  Streams* streams_ = nullptr;  // of the transport; null: its calls have ended when they return
  bool joins_ = false, has_arena_ = false, recording_ = false;
  plan::Launches launches_;                                        // where it joins
  std::map<std::size_t, std::vector<std::uint32_t>> joined_with_;  // by who launches
  Operands done_behind_;              // of the next operation, by the launch before
  plan::Arena arena_;                 // without offsets: none
  at::Tensor block_;                  // its bytes
  std::vector<at::Tensor> places_;    // views of it, by number of the write; undefined: elsewhere
  std::int64_t alive_in_block_ = 0;   // bytes
  std::vector<bool> awaited_;         // [operation] whether one of another stream waits for it
  std::optional<StreamOrder> order_;  // with streams
  std::optional<LateFrees> late_frees_;
  plan::InstanceMap instances_;
  std::vector<at::Tensor> tensors_;  // by instance; undefined when not alive
  at::Tensor loss_;                  // updated by kLoss, zeroed by the Program
  bool reports_loss_ = false;
  std::vector<std::vector<Channel>> channels_;      // by group, by stream
  std::vector<std::unique_ptr<Transfer>> pending_;  // by stream
  std::vector<at::Tensor> copied_;                  // last to the host, until the next copy begins
  std::map<plan::RedistributionId, Redistributor> redistributors_;
  RotaryTables rotary_;
  std::optional<QuantisedOperands> quantised_;  // of a Program with such products
  SegmentContext context_;

  std::int64_t current_step_ = 0;
  DeviceMemory device_memory_;
  // of a recorded step: its beginning, then beginning and end of every operation
  DeviceMarks marks_;
  std::vector<std::int64_t> live_bytes_;  // after every operation
  std::vector<plan::Span> spans_;
  std::vector<plan::MemorySample> memory_;
};

}  // namespace orrery::executor

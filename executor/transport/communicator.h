#pragma once
/// What the interpreter asks of a transport. Four implementations stand behind one factory (below),
/// and a fifth is made for a replay:
///
///   self   one process alone; every group has one rank
///   mpi    CPU tensors over MPI
///   nccl   CUDA tensors, one NCCL communicator per channel, one CUDA stream per Program stream
///   stub   one process plays any rank of any plan: communication costs nothing, and what would
///          arrive is made up (an all-gather repeats the own part, a receive is noise), so that
///          compute times and memory of a large plan can be measured on one device
///   replay a stub whose operations take the time predicted for them; on CUDA with streams
///
/// One thread. Collectives are blocking for the caller's program order: when a call returns,
/// tensors may be read or written (on CUDA: by work issued afterwards on the current stream, which
/// streams() chooses). All
/// ranks of a channel make the same calls in the same order. Tensors are dense; `whole` and `part`
/// obey whole.size(dim) = group size * part.size(dim), and `part` may be the caller's own slot of
/// `whole` (dim 0). Errors: kCollective.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "executor/launch/launch.h"
#include "executor/transport/place.h"
#include "executor/transport/streams.h"
#include "plan/program/program.h"

namespace orrery::executor {

/// A group of ranks on one stream; created once per (rank set, stream).
struct Channel {
  int id = -1;
  int index = 0;  // this rank's place in the group
  int size = 1;
};

/// One leg of an exchange. `lane` tells directions apart: the n-th send of a lane matches the n-th
/// receive at the peer.
struct TransferLeg {
  bool send = false;
  int peer = 0;  // world rank
  int lane = 0;
  at::Tensor tensor;
};

/// Legs under way; keeps their tensors alive. Destroyed only after wait() (or after a failure).
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// True when all legs have ended; makes progress.
  virtual base::Result<bool> test() = 0;
  virtual base::Result<void> wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world_size() const { return world_size_; }

  /// The channel of `ranks` (ascending world ranks, this one among them) on `stream`. Ranks that
  /// share several channels ask for them in the same order.
  virtual base::Result<Channel> channel(std::span<const int> ranks, plan::Stream stream) = 0;

  virtual base::Result<void> all_reduce(const Channel& channel, at::Tensor& tensor,
                                        plan::Reduce reduce) = 0;
  virtual base::Result<void> all_gather(const Channel& channel, const at::Tensor& part,
                                        at::Tensor& whole, int dim) = 0;
  virtual base::Result<void> reduce_scatter(const Channel& channel, const at::Tensor& whole,
                                            at::Tensor& part, int dim) = 0;
  /// Block i of `in` (along dimension 0) goes to rank i, block i of `out` comes from it.
  virtual base::Result<void> all_to_all(const Channel& channel, const at::Tensor& in,
                                        at::Tensor& out) = 0;
  /// `in` goes to the next rank of the group, the last one's to the first; `out` comes from the
  /// rank before.
  virtual base::Result<void> shift(const Channel& channel, const at::Tensor& in,
                                   at::Tensor& out) = 0;
  virtual base::Result<void> broadcast(const Channel& channel, at::Tensor& tensor,
                                       int root_index) = 0;

  /// Makes ready what posts of a lane to (or from) a peer need, so that none of them stops for it.
  /// Ranks that share several ask for them in the same order.
  virtual base::Result<void> open_pair(int /*peer*/, int /*lane*/, bool /*sends*/) { return {}; }
  /// Posts all legs at once.
  virtual base::Result<std::unique_ptr<Transfer>> post(std::vector<TransferLeg> legs) = 0;

  /// Of a transport that issues and goes on; null: every call has ended when it returns.
  virtual Streams* streams() { return nullptr; }

  /// Where the rank stands from now on.
  virtual void at(const Place&) {}
  /// The failure of the job, once some rank has failed and this one knows.
  virtual base::Result<void> healthy() { return {}; }
  /// This rank has failed: the others are to know why.
  virtual void report(const base::Diagnostics&) {}
  /// Called from another thread when this rank does not come out of a wait although the job has
  /// failed.
  virtual void when_stuck(std::function<void(const base::Diagnostics&)>) {}

  // Over the world.
  virtual base::Result<void> barrier() = 0;
  /// The texts of all ranks, in order, on rank 0; elsewhere nothing.
  virtual base::Result<std::vector<std::string>> gather(const std::string& text) = 0;
  /// Rank 0's text, everywhere.
  virtual base::Result<std::string> broadcast(const std::string& text) = 0;
  /// Asks the transport to end every rank of the job; this process may or may not survive the call.
  virtual void abort(int exit_code) = 0;

 protected:
  int rank_ = 0, world_size_ = 1;
};

/// The channel of this rank's group.
base::Result<Channel> channel_of(Communicator& communicator, const plan::Group& group,
                                 plan::Stream stream);

/// A whole tensor as [outer, group, inner]: slot i of a group along `dim` is inner contiguous
/// elements in each of outer rows.
struct Slots {
  std::int64_t outer = 1, inner = 1;
};
Slots slots_of(const at::Tensor& whole, int dim, int group);

/// Name of the transport for a device: the argument itself, or for "auto" self when alone, else
/// nccl for "cuda" and mpi for "cpu".
std::string resolve_backend(const std::string& backend, const std::string& device,
                            const Launch& launch);

/// Makes a transport by name. `world_size` is that of the Program: `stub` plays `launch.rank` of
/// it. Errors: kBadValue for an unknown name (with "did you mean"), kMissingFeature for one this
/// build lacks, kCollective when it does not start.
base::Result<std::unique_ptr<Communicator>> make_communicator(
    const std::string& backend, const Launch& launch, int world_size,
    c10::Device device = c10::Device(c10::kCPU));

// One per file communicator_<name>.cc.
std::unique_ptr<Communicator> make_self_communicator();
std::unique_ptr<Communicator> make_stub_communicator(int rank, int world_size);
/// `ps`: what every operation of the rank's step takes, in issue order; the interpreter says by
/// at() which one it is at. Error: kDevice.
base::Result<std::unique_ptr<Communicator>> make_replay_communicator(int rank, int world_size,
                                                                     std::vector<std::int64_t> ps,
                                                                     c10::Device device);
base::Result<std::unique_ptr<Communicator>> make_mpi_communicator();
/// Of tensors on `device`. communicator_nccl.cc, or nccl_absent.cc in a build without NCCL.
base::Result<std::unique_ptr<Communicator>> make_nccl_communicator(const Launch& launch,
                                                                   c10::Device device);
/// "host:port" of rank 0, the same on all ranks of MPI's world.
base::Result<std::string> mpi_rendezvous();

}  // namespace orrery::executor

#pragma once
/// Collectives whose messages the Program states one by one, over posted sends and receives.
#include <ATen/core/Tensor.h>

#include <vector>

#include "base/result.h"
#include "executor/transport/communicator.h"
#include "plan/program/program.h"

namespace orrery::executor {

/// The shift of an operation with `senders`: `in` goes to whom this rank sends, `out` comes from
/// its sender. Errors: kCollective.
base::Result<void> shift_by_senders(Communicator& communicator, const plan::Group& group,
                                    const plan::Op& op, const at::Tensor& in, at::Tensor& out);

/// One rank's part of a change of layout: which cells it copies, sends and receives.
class Redistributor {
 public:
  /// `first_rank`: of the stage.
  Redistributor(const plan::Redistribution& redistribution, int first_rank, int rank);

  /// Fills `to` from `from` and what the other ranks send, one message for each pair of ranks.
  /// Errors: kCollective.
  base::Result<void> run(Communicator& communicator, int lane, const std::vector<at::Tensor>& from,
                         std::vector<at::Tensor>& to) const;
  template <class Visit>  // void(int peer, bool sends)
  void each_peer(Visit&& visit) const {
    for (const Peer& peer : sends_) visit(peer.rank, true);
    for (const Peer& peer : receives_) visit(peer.rank, false);
  }

 private:
  struct Cell {
    std::size_t tensor = 0;  // of the redistribution
    plan::Extents4 held{}, wanted{};
  };
  struct Peer {
    int rank = 0;
    std::vector<Cell> cells;  // in the order of the receiver's block
  };
  [[nodiscard]] at::Tensor source(const Cell& cell, const std::vector<at::Tensor>& from) const;
  [[nodiscard]] at::Tensor target(const Cell& cell, const std::vector<at::Tensor>& to) const;
  [[nodiscard]] std::int64_t elements(const Peer& peer) const;

  const plan::Redistribution& redistribution_;
  std::vector<Cell> own_;
  std::vector<Peer> sends_, receives_;
};

}  // namespace orrery::executor

#include "executor/transport/redistribution.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::executor {

base::Result<void> shift_by_senders(Communicator& communicator, const plan::Group& group,
                                    const plan::Op& op, const at::Tensor& in, at::Tensor& out) {
  const int base = group.base(communicator.rank()), own = group.index(communicator.rank());
  const auto receiver = std::ranges::find(op.senders, own);
  ORRERY_CHECK(receiver != op.senders.end(), "'{}' sends to nobody", op.name);
  const int to = as_int(receiver - op.senders.begin()), from = op.senders[as_index(own)];
  if (from == own) {
    out.copy_(in);
    return {};
  }
  const int lane = as_int(op.stream);
  TRY(std::unique_ptr<Transfer> transfer,
      communicator.post(
          {{.send = true, .peer = group.member(base, to), .lane = lane, .tensor = in},
           {.send = false, .peer = group.member(base, from), .lane = lane, .tensor = out}}));
  return transfer->wait();
}

Redistributor::Redistributor(const plan::Redistribution& r, int first_rank, int rank)
    : redistribution_(r) {
  const int self = rank - first_rank, devices = 1 << r.bits;
  const auto add = [&](std::vector<Peer>& peers, int device, const Cell& cell) {
    if (peers.empty() || peers.back().rank != first_rank + device)
      peers.push_back({first_rank + device, {}});
    peers.back().cells.push_back(cell);
  };
  for (int device = 0; device < devices; ++device)  // by receiver
    for (std::size_t t = 0; t < r.tensors.size(); ++t)
      for (const plan::Fetch& f : plan::fetches(r.tensors[t], r.bits, device)) {
        const Cell cell{t, f.held, f.wanted};
        if (f.sender != self) continue;
        if (device == self)
          own_.push_back(cell);
        else
          add(sends_, device, cell);
      }
  for (int sender = 0; sender < devices; ++sender)
    for (std::size_t t = 0; t < r.tensors.size(); ++t)
      for (const plan::Fetch& f : plan::fetches(r.tensors[t], r.bits, self))
        if (f.sender == sender && sender != self) add(receives_, sender, {t, f.held, f.wanted});
}

namespace {

/// The cell at `start` of a block, in rows of a buffer.
at::Tensor cell_of(const at::Tensor& buffer, plan::Extents4 block, std::int64_t row,
                   std::int64_t offset, const plan::Extents4& start, const plan::Extents4& cell) {
  block.back() = row;
  at::Tensor view = buffer.view(block);
  for (std::size_t x = 0; x < start.size(); ++x)
    view = view.narrow(static_cast<std::int64_t>(x), start[x] + (x == 3 ? offset : 0), cell[x]);
  return view;
}

}  // namespace

at::Tensor Redistributor::source(const Cell& cell, const std::vector<at::Tensor>& from) const {
  const plan::RedistributedTensor& t = redistribution_.tensors[cell.tensor];
  return cell_of(from[as_index(t.from)], t.held_extents(), t.held_row, t.held_offset, cell.held,
                 t.cell());
}
at::Tensor Redistributor::target(const Cell& cell, const std::vector<at::Tensor>& to) const {
  const plan::RedistributedTensor& t = redistribution_.tensors[cell.tensor];
  return cell_of(to[as_index(t.to)], t.wanted_extents(), t.wanted_row, t.wanted_offset, cell.wanted,
                 t.cell());
}

std::int64_t Redistributor::elements(const Peer& peer) const {
  std::int64_t n = 0;
  for (const Cell& c : peer.cells) n += redistribution_.tensors[c.tensor].cell_elements();
  return n;
}

base::Result<void> Redistributor::run(Communicator& communicator, int lane,
                                      const std::vector<at::Tensor>& from,
                                      std::vector<at::Tensor>& to) const {
  std::vector<TransferLeg> legs;
  for (const Peer& peer : receives_)
    legs.push_back({.send = false,
                    .peer = peer.rank,
                    .lane = lane,
                    .tensor = at::empty({elements(peer)}, to.front().options())});
  for (const Peer& peer : sends_) {
    std::vector<at::Tensor> cells;
    for (const Cell& c : peer.cells) cells.push_back(source(c, from).reshape({-1}));
    legs.push_back(
        {.send = true, .peer = peer.rank, .lane = lane, .tensor = at::cat(cells).contiguous()});
  }
  for (const Cell& c : own_) target(c, to).copy_(source(c, from));
  if (legs.empty()) return {};
  std::vector<at::Tensor> received;
  for (std::size_t i = 0; i < receives_.size(); ++i) received.push_back(legs[i].tensor);
  TRY(std::unique_ptr<Transfer> transfer, communicator.post(std::move(legs)));
  TRY_VOID(transfer->wait());
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    std::int64_t first = 0;
    for (const Cell& c : receives_[i].cells) {
      const at::Tensor there = target(c, to);
      there.copy_(received[i].narrow(0, first, there.numel()).view(there.sizes()));
      first += there.numel();
    }
  }
  return {};
}

}  // namespace orrery::executor

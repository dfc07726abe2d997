#include "plan/program/messages.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::plan {
namespace {

std::vector<Message> shifted(const Program& program, const Op& op, const RankClass& c) {
  const Group& group = program.groups[op.group];
  std::vector<Message> all;
  for (int rank = c.first_rank; rank < c.first_rank + c.count; ++rank) {
    const int sender = group.member(group.base(rank), op.senders.at(as_index(group.index(rank))));
    if (sender != rank) all.push_back({sender, rank, op.bytes});
  }
  return all;
}

std::vector<Message> redistributed(const Program& program, const Op& op, const RankClass& c) {
  const Redistribution& r = program.redistributions[*op.redistribution];
  const model::DType dtype = program.buffers[op.reads.front().buffer].dtype;
  std::vector<Message> all;
  for (int device = 0; device < c.count; ++device) {
    std::map<int, std::int64_t> bytes;  // [sender]
    for (const RedistributedTensor& t : r.tensors)
      for (const Fetch& f : fetches(t, r.bits, device))
        bytes[f.sender] += model::bytes_of(dtype, t.cell_elements());
    bytes.erase(device);
    for (const auto& [sender, n] : bytes)
      all.push_back({c.first_rank + sender, c.first_rank + device, n});
  }
  return all;
}

}  // namespace

Messages messages_of(const Program& program, const Op& op, const RankClass& c) {
  ORRERY_CHECK(states_messages(op), "'{}' states no messages", op.name);
  Messages m{.all = op.redistribution ? redistributed(program, op, c) : shifted(program, op, c)};
  std::map<int, std::int64_t> received;
  for (const Message& one : m.all) {
    m.unit_bytes = std::gcd(m.unit_bytes, one.bytes);
    received[one.to] += one.bytes;
  }
  for (const auto& [rank, bytes] : received) m.units = std::max(m.units, bytes / m.unit_bytes);
  return m;
}

std::int64_t most_received_bytes(const Redistribution& r, model::DType dtype) {
  std::int64_t most = 0;
  for (int device = 0; device < 1 << r.bits; ++device)
    most = std::max(most, received_elements(r, device));
  return model::bytes_of(dtype, most);
}

}  // namespace orrery::plan

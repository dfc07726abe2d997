#include "plan/program/stream_refs.h"

#include <algorithm>
#include <map>

#include "base/numbers.h"

namespace orrery::plan {
namespace {

template <class Visit>  // void(const BufferRef&, Access)
void for_each_ref(const Op& op, const Visit& visit) {
  for (const BufferRef& r : op.reads) visit(r, Access::kRead);
  if (op.weights) visit(*op.weights, Access::kRead);
  for (const BufferRef& r : op.updates) visit(r, Access::kUpdate);
  if (op.gradients) visit(*op.gradients, Access::kUpdate);
  for (const BufferRef& r : op.writes) visit(r, Access::kWrite);
  for (const BufferRef& r : op.frees) visit(r, Access::kFree);
}

/// Marks the accesses of one template, turn by turn.
class Turns {
 public:
  Turns(const Program& program, std::vector<StreamRefs::Ref>& refs)
      : program_(program), refs_(refs) {}
  ~Turns() {
    for (const auto& [instance, turn] : open_) close(turn);
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  /// The reference at `at` is the next access, by an operation of `stream`.
  void add(std::size_t at, Stream stream) {
    StreamRefs::Ref& ref = refs_[at];
    const Scope scope = program_.buffers[ref.buffer.buffer].scope;
    const bool layers = scope == Scope::kLayer || scope == Scope::kLayerMicroBatch;
    const std::pair<std::uint32_t, std::int64_t> instance = {ref.buffer.buffer.raw(),
                                                             layers ? ref.buffer.layer_offset : 0};
    auto [turn, fresh] = open_.try_emplace(instance, Turn{stream, {}});
    if (!fresh && (turn->second.stream != stream || ref.access == Access::kFree)) {
      close(turn->second);
      turn->second = {stream, {}};
    }
    if (ref.access != Access::kFree) turn->second.refs.push_back(at);
  }

 private:
  struct Turn {
    Stream stream = Stream::kCompute;
    std::vector<std::size_t> refs;
  };
  void close(const Turn& turn) {
    if (turn.refs.empty()) return;
    refs_[turn.refs.front()].looks = true;
    refs_[turn.refs.back()].leaves = true;
    const auto changes = [&](std::size_t ref) { return refs_[ref].access != Access::kRead; };
    const auto first = std::ranges::find_if(turn.refs, changes);
    if (first == turn.refs.end()) return;
    refs_[*first].looks = true;
    refs_[*std::find_if(turn.refs.rbegin(), turn.refs.rend(), changes)].leaves = true;
  }

  const Program& program_;
  std::vector<StreamRefs::Ref>& refs_;
  std::map<std::pair<std::uint32_t, std::int64_t>, Turn> open_;  // (buffer, layer offset)
};

}  // namespace

StreamRefs::StreamRefs(const Program& program) {
  std::vector<unsigned> streams(program.buffers.size(), 0);  // bits
  for (const Template& t : program.templates) {
    for (const Op& op : t.ops)
      for_each_ref(op, [&](const BufferRef& r, Access) {
        streams[r.buffer.raw()] |= 1U << static_cast<unsigned>(op.stream);
      });
  }
  followed_.reserve(streams.size());
  for (const unsigned s : streams) followed_.push_back((s & (s - 1)) != 0);
  std::vector<std::int64_t> bytes_of;
  bytes_of.reserve(program.buffers.size());
  for (const BufferDecl& buffer : program.buffers) bytes_of.push_back(buffer.device_bytes());
  begin_.push_back(0);
  for (const Template& t : program.templates) add(program, t, bytes_of);
}

void StreamRefs::add(const Program& program, const Template& t,
                     const std::vector<std::int64_t>& bytes_of) {
  offsets_.push_back(as_u32(written_bytes_.size()));
  std::vector<Ref> refs;
  std::vector<std::size_t> ends;  // [operation] into refs
  {
    Turns turns(program, refs);
    for (const Op& op : t.ops) {
      std::int64_t written = 0, freed = 0;
      for_each_ref(op, [&](const BufferRef& r, Access access) {
        const std::int64_t bytes = bytes_of[r.buffer.raw()];
        if (access == Access::kWrite) written += bytes;
        if (follows(r.buffer)) {
          refs.push_back({.buffer = r, .access = access, .bytes = bytes});
          turns.add(refs.size() - 1, op.stream);
        } else if (access == Access::kFree) {
          freed += bytes;
        }
      });
      written_bytes_.push_back(written);
      freed_bytes_.push_back(freed);
      ends.push_back(refs.size());
    }
  }
  std::size_t at = 0;
  for (const std::size_t end : ends) {
    for (; at < end; ++at) {
      const Ref& ref = refs[at];
      if (ref.looks || ref.leaves || ref.access == Access::kFree) refs_.push_back(ref);
    }
    begin_.push_back(as_u32(refs_.size()));
  }
}

}  // namespace orrery::plan

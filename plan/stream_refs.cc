#include "plan/stream_refs.h"

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

}  // namespace

StreamRefs::StreamRefs(const Program& program) {
  std::vector<unsigned> streams(program.buffers.size(), 0);  // bits
  for (const Template& t : program.templates) {
    for (const Op& op : t.ops) for_each_ref(op, [&](const BufferRef& r, Access) { streams[r.buffer.raw()] |= 1U << static_cast<unsigned>(op.stream); });
  }
  std::vector<bool> followed;
  std::vector<std::int64_t> bytes;
  followed.reserve(streams.size());
  bytes.reserve(streams.size());
  for (const unsigned s : streams) followed.push_back((s & (s - 1)) != 0);
  for (const BufferDecl& buffer : program.buffers) bytes.push_back(buffer.bytes());
  begin_.push_back(0);
  for (const Template& t : program.templates) {
    offsets_.push_back(static_cast<std::uint32_t>(written_bytes_.size()));
    for (const Op& op : t.ops) {
      std::int64_t written = 0, freed = 0;
      for_each_ref(op, [&](const BufferRef& r, Access access) {
        const std::uint32_t b = r.buffer.raw();
        if (access == Access::kWrite) written += bytes[b];
        if (followed[b]) refs_.push_back({r, access});
        else if (access == Access::kFree) freed += bytes[b];
      });
      written_bytes_.push_back(written);
      freed_bytes_.push_back(freed);
      begin_.push_back(static_cast<std::uint32_t>(refs_.size()));
    }
  }
}

}  // namespace orrery::plan

/// What expand() keeps of hand-made lists of accesses.
#include "plan/program/expand.h"
#include "plan/program/stream_refs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace orrery::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// One rank that runs the operations once, on buffers of 4 bytes.
class Accesses {
 public:
  BufferRef buffer() {
    BufferDecl d;
    d.shape = {1};
    d.scope = Scope::kMicroBatch;
    return {program_.buffers.push_back(std::move(d)), 0};
  }
  /// The operation, to add what it accesses.
  Op& on(Stream stream) {
    Op op;
    op.stream = stream;
    ops_.push_back(std::move(op));
    return ops_.back();
  }
  Expansion expanded() {
    Node call;
    call.call = program_.templates.push_back({"once", ops_});
    RankClass k;
    k.count = 1;
    k.end_layer = 1;
    k.body = {call};
    program_.classes.push_back(std::move(k));
    return expand(program_, program_.classes.front(), StreamRefs(program_));
  }

 private:
  Program program_;
  std::vector<Op> ops_;
};

TEST(Expand, AnUpdateWaitsForReadersOfOtherStreamsThoughItsTurnBeganWithARead) {
  Accesses a;
  const BufferRef x = a.buffer();
  a.on(Stream::kCompute).writes = {x};
  a.on(Stream::kTensor).reads = {x};
  a.on(Stream::kCompute).reads = {x};
  a.on(Stream::kCompute).updates = {x};
  a.on(Stream::kData).reads = {x};
  const Expansion e = a.expanded();
  EXPECT_THAT(e.dependencies_of(0), IsEmpty());
  EXPECT_THAT(e.dependencies_of(1), ElementsAre(0U));
  EXPECT_THAT(e.dependencies_of(2), IsEmpty());
  EXPECT_THAT(e.dependencies_of(3), ElementsAre(1U));
  EXPECT_THAT(e.dependencies_of(4), ElementsAre(3U));
}

TEST(Expand, OnlyTheEndsOfATurnAreLookedAt) {
  Accesses a;
  const BufferRef x = a.buffer();
  a.on(Stream::kData).writes = {x};
  for (int read = 0; read < 3; ++read) a.on(Stream::kCompute).reads = {x};
  a.on(Stream::kTensor).updates = {x};
  const Expansion e = a.expanded();
  EXPECT_THAT(e.dependencies_of(1), ElementsAre(0U));
  EXPECT_THAT(e.dependencies_of(2), IsEmpty());
  EXPECT_THAT(e.dependencies_of(3), IsEmpty());
  EXPECT_THAT(e.dependencies_of(4), ElementsAre(0U, 3U));
}

TEST(Expand, AFreeWaitsForUsersOnOtherStreams) {
  Accesses a;
  const BufferRef written = a.buffer(), read = a.buffer(), own = a.buffer();
  Op& writer = a.on(Stream::kData);
  writer.writes = {written, read};
  a.on(Stream::kTensor).reads = {read};
  a.on(Stream::kCompute).writes = {own};
  a.on(Stream::kCompute).frees = {written, read, own};
  const Expansion e = a.expanded();
  ASSERT_EQ(e.frees.size(), 2U);  // nobody else touches the third
  EXPECT_EQ(e.frees[0].op, 3U);
  EXPECT_EQ(e.frees[0].users, 1U);
  EXPECT_EQ(e.frees[0].bytes, 4);
  EXPECT_EQ(e.frees[1].users, 1U);
  EXPECT_THAT(e.free_users, ElementsAre(0U, 1U));  // the writer; the reader, which waited for it
}

}  // namespace
}  // namespace orrery::plan

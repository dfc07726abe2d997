// Program: names, sizes, classes, and a fingerprint that sees every field.
#include "plan/program/program.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/plan/small_program.h"

namespace orrery::plan {
namespace {

TEST(Names, AreDifferentAndNotEmpty) {
  std::set<std::string_view> streams, categories;
  for (int i = 0; i < kStreams; ++i) streams.insert(to_string(static_cast<Stream>(i)));
  for (int i = 0; i < kBufferCategories; ++i)
    categories.insert(to_string(static_cast<BufferCategory>(i)));
  EXPECT_EQ(streams.size(), static_cast<std::size_t>(kStreams));
  EXPECT_EQ(categories.size(), static_cast<std::size_t>(kBufferCategories));
  EXPECT_FALSE(streams.contains("") || categories.contains(""));
}

TEST(BufferDecl, BytesAreElementsTimesTheElement) {
  const BufferDecl b{.name = "b", .dtype = model::DType::kBFloat16, .shape = {2, 3, 5}, .unit = {}};
  EXPECT_EQ(b.elements(), 30);
  EXPECT_EQ(b.bytes(), 60);
}

TEST(Group, ListsTheRanksOfAMember) {
  const Group data{"data", 4, 2};  // ranks 8 + {1, 3, 5, 7} for rank 13
  EXPECT_EQ(data.base(13), 9);
  EXPECT_EQ(data.index(13), 2);
}

TEST(Program, ClassOfARankIsItsStage) {
  const Program p = small_program(small_model(), {.tp = 2, .pp = 2, .dp = 2});
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(p.class_of(rank).stage, rank / 4);
  EXPECT_DEATH((void)p.class_of(8), "rank 8 of 8");
}

TEST(ProgramFingerprint, ChangesWithAnyField) {
  const Program original = small_program(small_model(), {.tp = 2, .pp = 2, .dp = 2, .zero = 3});
  const auto exchange = [](Program& p) -> Op& {
    for (Template& t : p.templates) {
      for (Op& op : t.ops) {
        if (!op.legs.empty()) return op;
      }
    }
    return p.templates[TemplateId(0)].ops[0];
  };
  const std::vector<std::function<void(Program&)>> changes = {
      [](Program& p) { p.micro_batches += 1; },
      [](Program& p) { p.model += "x"; },
      [](Program& p) { p.spec.norm_epsilon *= 2; },
      [](Program& p) { p.buffers[BufferId(0)].shape.push_back(1); },
      [](Program& p) { p.groups[GroupId(0)].stride += 1; },
      [](Program& p) { p.segments[SegmentId(0)].epsilon *= 2; },
      [](Program& p) { p.segments[SegmentId(0)].slices = 2; },
      [](Program& p) {
        p.segments[SegmentId(0)].slices = 2;
        p.segments[SegmentId(0)].slice = 1;
      },
      [](Program& p) { p.units[UnitId(0)].parameters[0].slices = 2; },
      [](Program& p) { p.units[UnitId(0)].parameters[0].uses += 1; },
      [](Program& p) { p.units[UnitId(0)].strategy.grad_reduce = GradReduce::kMicroBatch; },
      [](Program& p) { p.pools[PoolId(0)].capacity += 1; },
      [](Program& p) { p.templates[TemplateId(0)].ops[0].name += "x"; },
      [](Program& p) { p.templates[TemplateId(0)].ops[0].slice_elements += 1; },
      [](Program& p) { p.templates[TemplateId(0)].ops[0].slice_group = GroupId(0); },
      [](Program& p) { p.units[UnitId(0)].shard_group = GroupId(1); },
      [](Program& p) { p.units[UnitId(0)].replica_group = GroupId(0); },
      [](Program& p) { p.templates[TemplateId(0)].ops[0].acquire = PoolId(0); },
      [&](Program& p) { exchange(p).legs[0].peer_offset += 1; },
      [&](Program& p) { exchange(p).legs[0].buffer.layer_offset += 1; },
      [](Program& p) { p.classes[1].body[0].layer += 1; },
      [](Program& p) { p.classes[0].persistent[0].layer += 1; },
  };
  std::set<std::string> digests{original.fingerprint()};
  for (const auto& change : changes) {
    Program changed = original;
    change(changed);
    digests.insert(changed.fingerprint());
  }
  EXPECT_EQ(digests.size(), changes.size() + 1);
  EXPECT_EQ(Program(original).fingerprint(), original.fingerprint());
}

}  // namespace
}  // namespace orrery::plan

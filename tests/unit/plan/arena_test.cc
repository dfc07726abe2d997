// Buffers of a step in one block: no two share bytes unless one is over when the other is written,
// by what runs before what; the block is hardly larger than what is alive at once.
#include "plan/program/arena.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "plan/lowering/lower.h"
#include "plan/program/liveness.h"
#include "plan/program/stream_refs.h"

namespace orrery::plan {
namespace {

struct Case {
  std::string name;
  std::string model;
  int layers;
  UniformOptions options;
};

std::vector<Case> cases() {
  using enum Schedule;
  std::vector<Case> all{
      {"alone", "gpt2", 4, {}},
      {"alone_recomputed", "llama-3-8b", 3, {.recompute = Recompute::kFull}},
      {"data", "gpt2", 4, {.dp = 2, .zero = 1}},
      {"sharded", "llama-3-8b", 3, {.dp = 4, .zero = 3}},
      {"sharded_recomputed", "gpt2", 4, {.dp = 2, .zero = 3, .recompute = Recompute::kFull}},
      {"tensor", "gpt2", 4, {.tp = 2, .sequence_parallel = true}},
      {"pipeline", "gpt2", 4, {.pp = 2}},
      {"pipeline_interleaved", "gpt2", 8, {.pp = 2, .schedule = kInterleaved, .virtual_stages = 2}},
      {"pipeline_zero_bubble", "gpt2", 4, {.pp = 4, .dp = 2, .zero = 2, .schedule = kZeroBubbleH1}},
      {"all", "llama-3-8b", 4, {.tp = 2, .pp = 2, .dp = 2, .zero = 3}},
      {"sharded_gradients",
       "gpt2",
       6,
       {.dp = 2, .zero = 2, .grad_reduce = GradReduce::kMicroBatch}},
      {"offload", "gpt2", 6, {.recompute = Recompute::kOffload}},
      {"states_on_the_host", "gpt2", 6, {.dp = 2, .zero = 1, .states = States::kHost}},
      {"v_shaped", "gpt2", 4, {.pp = 2, .schedule = kZeroBubbleV}},
  };
  for (Case& c : all) {
    c.options.micro_batch = 1;
    c.options.global_batch = 8 * c.options.dp;
    c.options.sequence = 256;
    c.options.precision = model::Precision::kBFloat16;
  }
  return all;
}

Program program_of(const Case& c) {
  model::ModelSpec model = *model::find_model(c.model);
  model.layers = c.layers;
  const int ranks = c.options.tp * c.options.pp * c.options.dp;
  return *lower(*uniform_plan(model, "local", ranks, c.options), model);
}

/// Which operations have ended when another starts: rows of bits.
class Before {
 public:
  Before(const Expansion& e, const Arena& a, Order order) : n_(e.ops.size()), bits_(n_ * n_) {
    std::map<Stream, std::uint32_t> last;
    for (std::uint32_t i = 0; i < n_; ++i) {
      const auto follow = [&](std::uint32_t before) {
        for (std::uint32_t k = 0; k < before; ++k)
          bits_[i * n_ + k] = bits_[i * n_ + k] || bits_[before * n_ + k];
        bits_[i * n_ + before] = true;
      };
      if (order == Order::kOneByOne)
        for (std::uint32_t k = 0; k < i; ++k) bits_[i * n_ + k] = !sends(e, k, i);
      for (const std::uint32_t before : e.dependencies_of(i)) follow(before);
      for (const std::uint32_t before : a.waits[i]) follow(before);
      if (const auto at = last.find(e.ops[i].op->stream); at != last.end()) follow(at->second);
      last[e.ops[i].op->stream] = i;
    }
  }
  [[nodiscard]] bool operator()(std::uint32_t a, std::uint32_t b) const {
    return bits_[b * n_ + a];
  }

  /// Whether k may still send when i is issued.
  static bool sends(const Expansion& e, std::uint32_t k, std::uint32_t i) {
    if (!frees_late(*e.ops[k].op)) return false;
    for (std::uint32_t j = k + 1; j <= i; ++j)
      if (e.ops[j].op->stream == e.ops[k].op->stream) return false;
    return true;
  }

 private:
  std::size_t n_;
  std::vector<bool> bits_;
};

struct Life {
  std::int64_t offset = 0, bytes = 0;
  std::uint32_t begin = 0;  // who launches what writes it
  std::vector<std::uint32_t> users;
};

std::vector<Life> lives_of(const Program& program, const Expansion& e, const Launches* launches,
                           const Arena& arena) {
  std::vector<Life> all;
  std::map<InstanceKey, std::size_t> live;
  for (std::uint32_t i = 0; i < e.ops.size(); ++i) {
    const OpInstance& o = e.ops[i];
    const auto key = [&](const BufferRef& r) { return key_of(program, r, o.layer, o.micro_batch); };
    const auto offsets = arena.offsets_of(i);
    for (std::size_t w = 0; w < o.op->writes.size(); ++w) {
      if (offsets[w] == Arena::kElsewhere) continue;
      live[key(o.op->writes[w])] = all.size();
      const std::uint32_t begin =
          launches != nullptr && launches->joined[i] == Joined::kAll ? launches->with[i] : i;
      all.push_back({offsets[w], program.buffers[o.op->writes[w].buffer].bytes(), begin, {}});
    }
    std::vector<BufferRef> touched = accesses(*o.op);
    for (const Leg& leg : o.op->legs) touched.push_back(leg.buffer);
    touched.insert(touched.end(), o.op->frees.begin(), o.op->frees.end());
    for (const BufferRef& r : touched)
      if (const auto at = live.find(key(r)); at != live.end()) all[at->second].users.push_back(i);
  }
  return all;
}

class Arenas : public ::testing::TestWithParam<Case> {};

TEST_P(Arenas, NothingIsWrittenOverWhatIsStillUsed) {
  const Program program = program_of(GetParam());
  for (const RankClass& c : program.classes) {
    const Expansion e = expand(program, c, StreamRefs(program));
    const Launches joined = launches(program, e);
    for (const Order order : {Order::kOneByOne, Order::kByStream}) {
      for (const Launches* with : {static_cast<const Launches*>(nullptr), &joined}) {
        const Arena a = arena(program, c, e, with, order, [](const Op&) { return true; });
        const Before before(e, a, order);
        for (std::uint32_t i = 0; i < e.ops.size(); ++i)
          for (const std::uint32_t k : a.waits[i])
            EXPECT_FALSE(Before::sends(e, k, i)) << "a circle of waits may close";
        const std::vector<Life> lives = lives_of(program, e, with, a);
        int shared = 0;
        for (std::size_t i = 0; i < lives.size(); ++i) {
          EXPECT_LE(lives[i].offset + lives[i].bytes, a.bytes);
          EXPECT_EQ(lives[i].offset % Arena::kAlignment, 0);
          for (std::size_t k = 0; k < i; ++k) {
            const Life &x = lives[k], &y = lives[i];
            if (x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset) continue;
            ++shared;
            for (const std::uint32_t user : x.users)
              ASSERT_TRUE(before(user, y.begin))
                  << e.ops[user].op->name << " may still use what " << e.ops[y.begin].op->name
                  << " writes, " << user << " and " << y.begin;
          }
        }
        EXPECT_GT(shared, 0);
      }
    }
  }
}

TEST_P(Arenas, AreHardlyLargerThanWhatIsAlive) {
  const Program program = program_of(GetParam());
  for (const RankClass& c : program.classes) {
    const Expansion e = expand(program, c, StreamRefs(program));
    const Launches joined = launches(program, e);
    for (const Order order : {Order::kOneByOne, Order::kByStream}) {
      const Arena a = arena(program, c, e, &joined, order, [](const Op&) { return true; });
      EXPECT_GE(a.bytes, a.alive_bytes);
      // nothing in most of these plans; few and large buffers leave gaps
      EXPECT_LE(a.bytes, a.alive_bytes + a.alive_bytes / 16);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, Arenas, ::testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace orrery::plan

// Trace files: the bytes, and the faults.
#include "plan/program/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace orrery::plan {
namespace {

using testing::HasSubstr;

Timeline example() {
  Timeline t{.origin = "predicted",
             .model = "gpt2-tiny",
             .plan_fingerprint = "aa",
             .program_fingerprint = "bb",
             .step_time_ps = 3000001,
             .spans = {},
             .memory = {}};
  t.spans.push_back({.rank = 1,
                     .stream = Stream::kTensor,
                     .name = "all_reduce(p)",
                     .category = "all_reduce",
                     .phase = "",
                     .layer = 2,
                     .micro_batch = 0,
                     .template_id = 4,
                     .template_index = 7,
                     .start_ps = 1500000,
                     .duration_ps = 1500001,
                     .bytes = 4096});
  t.spans.push_back({.rank = 0,
                     .stream = Stream::kCompute,
                     .name = "qkv",
                     .category = "qkv",
                     .phase = "F",
                     .layer = 2,
                     .micro_batch = 0,
                     .template_id = 4,
                     .template_index = 1,
                     .start_ps = 0,
                     .duration_ps = 1500000,
                     .bytes = 0});
  t.memory.push_back({.rank = 0, .at_ps = 10, .bytes = 1024});
  return t;
}

std::string error_of(const std::string& text) {
  const auto root = base::Node::parse_text(text, "trace.json");
  if (!root) return base::to_string(root.error());
  const auto timeline = read_timeline(*root);
  return timeline ? "a timeline" : base::to_string(timeline.error());
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = to_text(example());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(Trace, HasOneEventALineAndTheseBytes) {
  const std::string wanted =
      R"json({"displayTimeUnit":"ns",
"otherData":{"model":"gpt2-tiny","origin":"predicted","plan_fingerprint":"aa",)json"
      R"json("program_fingerprint":"bb","schema":"orrery.trace/1","step_time_ps":3000001},
"traceEvents":[
{"args":{"name":"rank 0"},"name":"process_name","ph":"M","pid":0,"tid":0},
{"args":{"sort_index":0},"name":"process_sort_index","ph":"M","pid":0,"tid":0},
{"args":{"name":"rank 1"},"name":"process_name","ph":"M","pid":1,"tid":0},
{"args":{"sort_index":1},"name":"process_sort_index","ph":"M","pid":1,"tid":0},
{"args":{"name":"compute"},"name":"thread_name","ph":"M","pid":0,"tid":0},
{"args":{"sort_index":0},"name":"thread_sort_index","ph":"M","pid":0,"tid":0},
{"args":{"name":"tensor"},"name":"thread_name","ph":"M","pid":1,"tid":1},
{"args":{"sort_index":1},"name":"thread_sort_index","ph":"M","pid":1,"tid":1},
{"args":{"bytes":0,"duration_ps":1500000,"index":1,"layer":2,"micro_batch":0,"phase":"F",)json"
      R"json("start_ps":0,"template":4},"cat":"qkv","dur":1.5,"name":"qkv","ph":"X",)json"
      R"json("pid":0,"tid":0,"ts":0.0},
{"args":{"bytes":4096,"duration_ps":1500001,"index":7,"layer":2,"micro_batch":0,"phase":"",)json"
      R"json("start_ps":1500000,"template":4},"cat":"all_reduce","dur":1.500001,)json"
      R"json("name":"all_reduce(p)","ph":"X","pid":1,"tid":1,"ts":1.5},
{"args":{"bytes":1024},"at_ps":10,"name":"memory","ph":"C","pid":0,"ts":1e-05}
]}
)json";
  EXPECT_EQ(to_text(example()), wanted);
}

TEST(Trace, EmptyTimelineIsATrace) { EXPECT_EQ(error_of(to_text(Timeline{})), "a timeline"); }

TEST(Trace, OtherSchemasAndForeignTracesAreRefused) {
  EXPECT_THAT(error_of(replaced("orrery.trace/1", "orrery.trace/9")), HasSubstr("trace.json:2:"));
  EXPECT_THAT(error_of("{\"traceEvents\": []}"), HasSubstr("otherData"));
  EXPECT_THAT(error_of("[]"), HasSubstr("trace"));
}

TEST(Trace, TimeThatContradictsItsPicosecondsIsAFaultAtItsPlace) {
  const std::string error = error_of(replaced("\"dur\":1.500001", "\"dur\":2.5"));
  EXPECT_THAT(error, HasSubstr("trace.json:13:"));
  EXPECT_THAT(error, HasSubstr("the exact time is 1500001 ps"));
}

TEST(Trace, UnknownStreamEventKindAndKeyAreFaults) {
  EXPECT_THAT(error_of(replaced("\"pid\":1,\"tid\":1,\"ts\"", "\"pid\":1,\"tid\":14,\"ts\"")),
              HasSubstr("14"));
  EXPECT_THAT(error_of(replaced("\"ph\":\"C\"", "\"ph\":\"B\"")), HasSubstr("'B'"));
  EXPECT_THAT(error_of(replaced("\"layer\":2", "\"layr\":2")), HasSubstr("did you mean 'layer'?"));
}

}  // namespace
}  // namespace orrery::plan

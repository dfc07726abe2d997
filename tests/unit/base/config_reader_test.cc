#include <gtest/gtest.h>

#include <array>

#include "base/config.h"

namespace orrery::base {
namespace {

enum class Op { kReduce, kGather };
constexpr std::array kOps = {Named<Op>{"all_reduce", Op::kReduce},
                             Named<Op>{"all_gather", Op::kGather}};

struct Link {
  std::string name;
  Seconds latency;
  BytesPerSecond bandwidth;
  std::int64_t lanes = 1;
  Op op = Op::kReduce;
  bool enabled = true;
};

Result<Link> read_link(std::string_view text) {
  TRY(const Node node, Node::parse_text(text, "net.yaml"));
  ErrorSink sink;
  Reader r(node, "link 'ib'", sink);
  Link link{.name = r.required_string("name"),
            .latency = r.required_seconds("latency"),
            .bandwidth = r.required_bandwidth("bandwidth"),
            .lanes = r.optional_int("lanes", {1, 64}).value_or(1),
            .op = r.optional_enum("op", kOps).value_or(Op::kReduce),
            .enabled = r.optional_bool("enabled").value_or(true)};
  r.finish();
  return sink.result(link);
}

TEST(Reader, ReadsAnObject) {
  const auto link = read_link(
      "name: ib\nlatency: 3.5us\nbandwidth: 200Gb/s\nlanes: 4\nop: all_gather\nenabled: false\n");
  ASSERT_TRUE(link) << to_string(link.error());
  EXPECT_EQ(link->name, "ib");
  EXPECT_EQ(link->latency, 3.5_us);
  EXPECT_EQ(link->bandwidth, 200_Gbps);
  EXPECT_EQ(link->lanes, 4);
  EXPECT_EQ(link->op, Op::kGather);
  EXPECT_FALSE(link->enabled);
}

TEST(Reader, OptionalKeysMayBeAbsentOrNull) {
  const auto link = read_link("{name: ib, latency: 1us, bandwidth: 1GB/s, lanes: null}");
  ASSERT_TRUE(link) << to_string(link.error());
  EXPECT_EQ(link->lanes, 1);
}

TEST(Reader, ReportsEveryFaultOfTheFileInItsOrder) {
  const auto link = read_link(
      "name: 7\n"
      "latncy: 3.5us\n"
      "bandwidth: 200\n"
      "lanes: 65\n"
      "op: all_gater\n"
      "enabled: yes\n");
  ASSERT_FALSE(link);
  EXPECT_EQ(
      to_string(link.error()),
      "net.yaml:1:1: error[E0003]: link 'ib' has no 'latency'\n"
      "net.yaml:1:7: error[E0013]: 'name' of link 'ib': expected text, found the number '7'; put "
      "it in quotes\n"
      "net.yaml:2:1: error[E0002]: unknown key 'latncy' in link 'ib'; did you mean 'latency'?\n"
      "net.yaml:3:12: error[E0004]: 'bandwidth' of link 'ib': '200' has no unit: expected a "
      "bandwidth; units: "
      "B/s kB/s MB/s GB/s TB/s KiB/s MiB/s GiB/s TiB/s b/s kb/s Mb/s Gb/s Tb/s\n"
      "net.yaml:4:8: error[E0005]: 'lanes' of link 'ib': 65 is more than 64\n"
      "net.yaml:5:5: error[E0014]: 'op' of link 'ib': unknown value 'all_gater'; did you mean "
      "'all_gather'?\n"
      "net.yaml:6:10: error[E0013]: 'enabled' of link 'ib': expected true or false, found the text "
      "'yes'");
}

TEST(Reader, ARequiredKeyThatIsNullIsMissing) {
  const auto link = read_link("{name: ~, latency: 1us, bandwidth: 1GB/s}");
  ASSERT_FALSE(link);
  EXPECT_EQ(to_string(link.error()), "net.yaml:1:8: error[E0003]: link 'ib' has no 'name'");
}

TEST(Reader, AnObjectThatIsNoneIsOneFault) {
  const auto link = read_link("[1, 2]");
  ASSERT_FALSE(link);
  EXPECT_EQ(to_string(link.error()),
            "net.yaml:1:1: error[E0013]: link 'ib' must be an object, found a list");
}

TEST(Reader, NestedObjectsAndLists) {
  const Node node =
      Node::parse_text("hosts: {count: 4, peers: [a, 5, b]}\nsizes: [1, 2.5]\nempty: []\n", "f")
          .value();
  ErrorSink sink;
  Reader r(node, "cluster", sink);
  Reader hosts(r.required_object("hosts"), "hosts", sink);
  EXPECT_EQ(hosts.required_int("count", {1, 8}), 4);
  EXPECT_EQ(hosts.required_strings("peers"), (std::vector<std::string>{"a", "", "b"}));
  hosts.finish();
  EXPECT_EQ(r.required_doubles("sizes"), (std::vector<double>{1, 2.5}));
  EXPECT_TRUE(r.required_list("empty").empty());
  EXPECT_TRUE(sink.diagnostics().size() == 1) << to_string(sink.diagnostics());
  EXPECT_EQ(to_string(sink.diagnostics()),
            "f:1:30: error[E0013]: 'peers' of hosts: expected text, found the number '5'; put it "
            "in quotes");
  EXPECT_EQ(r.required_ints("sizes"), (std::vector<std::int64_t>{1, 0}));
}

TEST(Reader, AMissingObjectIsReportedOnce) {
  const Node node = Node::parse_text("a: 1\n", "f").value();
  ErrorSink sink;
  Reader r(node, "cluster", sink);
  static_cast<void>(r.required_int("a"));
  Reader hosts(r.required_object("hosts"), "hosts", sink);
  EXPECT_EQ(hosts.required_int("count"), 0);
  EXPECT_EQ(hosts.required_enum("op", kOps), Op::kReduce);
  hosts.finish();
  r.finish();
  EXPECT_EQ(to_string(sink.diagnostics()), "f:1:1: error[E0003]: cluster has no 'hosts'");
}

TEST(Reader, UnknownKeysCanBeAllowedOrIgnored) {
  const Node node = Node::parse_text("{a: 1, b: 2, c: 3}", "f").value();
  ErrorSink sink;
  Reader lenient(node, "config", sink);
  lenient.allow_unknown();
  lenient.finish();
  EXPECT_TRUE(sink.ok());
  Reader strict(node, "config", sink);
  strict.ignore("a");
  strict.ignore("b");
  strict.finish();
  EXPECT_EQ(to_string(sink.diagnostics()),
            "f:1:14: error[E0002]: unknown key 'c' in config; known keys: a, b");
}

TEST(Reader, TellsWhichKeysThereAre) {
  const Node node = Node::parse_text("{b: 1, a: ~}", "f").value();
  ErrorSink sink;
  Reader r(node, "config", sink);
  EXPECT_TRUE(r.has("b"));
  EXPECT_FALSE(r.has("a"));
  EXPECT_FALSE(r.has("c"));
  EXPECT_EQ(r.span("b"), (SourceSpan{"f", 1, 5}));
  r.error("b", ErrorCode::kInconsistent, "{} is odd", 1);
  EXPECT_EQ(to_string(sink.diagnostics()), "f:1:5: error[E0006]: 1 is odd");
}

}  // namespace
}  // namespace orrery::base

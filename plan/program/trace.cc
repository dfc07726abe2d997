#include "plan/program/trace.h"

#include "base/json.h"
#include "base/numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

namespace orrery::plan {

using base::Json;

namespace {

constexpr std::string_view kSchema = "orrery.trace/1";
constexpr std::string_view kMemory = "memory";
constexpr double kPicosecondsPerMicrosecond = 1e6;
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kUint32Max = std::numeric_limits<std::uint32_t>::max();

/// For the eye only: the exact time stands beside it.
double microseconds(std::int64_t ps) { return real(ps) / kPicosecondsPerMicrosecond; }

int tid_of(Stream s) { return as_int(s); }

Json metadata(std::string_view name, std::int32_t rank, int tid, Json args) {
  return {{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", tid}, {"args", std::move(args)}};
}

/// Names of processes and threads, from what occurs.
void add_metadata(const Timeline& t, std::vector<Json>& events) {
  std::set<std::int32_t> ranks;
  std::set<std::pair<std::int32_t, Stream>> streams;
  for (const Span& s : t.spans) {
    ranks.insert(s.rank);
    streams.insert({s.rank, s.stream});
  }
  for (const MemorySample& m : t.memory) ranks.insert(m.rank);
  for (const std::int32_t rank : ranks) {
    events.push_back(metadata("process_name", rank, 0, {{"name", fmt::format("rank {}", rank)}}));
    events.push_back(metadata("process_sort_index", rank, 0, {{"sort_index", rank}}));
  }
  for (const auto& [rank, stream] : streams) {
    events.push_back(metadata("thread_name", rank, tid_of(stream), {{"name", to_string(stream)}}));
    events.push_back(
        metadata("thread_sort_index", rank, tid_of(stream), {{"sort_index", tid_of(stream)}}));
  }
}

Json span_json(const Span& s) {
  return {{"ph", "X"},
          {"name", s.name},
          {"cat", s.category},
          {"pid", s.rank},
          {"tid", tid_of(s.stream)},
          {"ts", microseconds(s.start_ps)},
          {"dur", microseconds(s.duration_ps)},
          {"args",
           {{"phase", s.phase},
            {"layer", s.layer},
            {"micro_batch", s.micro_batch},
            {"template", s.template_id},
            {"index", s.template_index},
            {"start_ps", s.start_ps},
            {"duration_ps", s.duration_ps},
            {"bytes", s.bytes}}}};
}

/// Every argument of a counter event is drawn as a curve, so the exact time stands outside args.
Json memory_json(const MemorySample& m) {
  return {{"ph", "C"},        {"name", kMemory},
          {"pid", m.rank},    {"ts", microseconds(m.at_ps)},
          {"at_ps", m.at_ps}, {"args", {{"bytes", m.bytes}}}};
}

Json header_json(const Timeline& t) {
  return {{"schema", kSchema},
          {"origin", t.origin},
          {"model", t.model},
          {"plan_fingerprint", t.plan_fingerprint},
          {"program_fingerprint", t.program_fingerprint},
          {"step_time_ps", t.step_time_ps}};
}

std::vector<Json> event_list(const Timeline& timeline) {
  const Timeline t = canonical(timeline);
  std::vector<Json> events;
  events.reserve(t.spans.size() + t.memory.size());
  add_metadata(t, events);
  for (const Span& s : t.spans) events.push_back(span_json(s));
  for (const MemorySample& m : t.memory) events.push_back(memory_json(m));
  return events;
}

/// A trace whose picture and numbers differ was edited by hand. Doubles hold 1e-9 of any step; 1 ns
/// covers the rest.
void check_time(base::Reader& r, std::string_view key, std::int64_t ps) {
  const double us = r.required_double(key);
  if (std::abs(us - microseconds(ps)) <= 1e-3 + 1e-9 * std::abs(us)) return;
  r.error(key, base::ErrorCode::kInconsistent, "'{}' is {} us and the exact time is {} ps", key, us,
          ps);
}

std::int32_t read_int32(base::Reader& r, std::string_view key, std::int64_t min) {
  return static_cast<std::int32_t>(r.required_int(key, {min, kInt32Max}));
}

Span read_span(base::Reader& r) {
  Span s;
  s.name = r.required_string("name");
  s.category = r.required_string("cat");
  s.rank = read_int32(r, "pid", 0);
  s.stream = static_cast<Stream>(r.required_int("tid", {0, kStreams - 1}));
  base::Reader args(r.required_object("args"), "args of a span", r.sink());
  s.phase = args.required_string("phase");
  s.layer = read_int32(args, "layer", -1);
  s.micro_batch = read_int32(args, "micro_batch", -1);
  s.template_id = as_u32(args.required_int("template", {0, kUint32Max}));
  s.template_index = as_u32(args.required_int("index", {0, kUint32Max}));
  s.start_ps = args.required_int("start_ps", {0});
  s.duration_ps = args.required_int("duration_ps", {0});
  s.bytes = args.required_int("bytes", {0});
  args.finish();
  check_time(r, "ts", s.start_ps);
  check_time(r, "dur", s.duration_ps);
  return s;
}

MemorySample read_memory(base::Reader& r) {
  MemorySample m;
  r.ignore("name");
  m.rank = read_int32(r, "pid", 0);
  m.at_ps = r.required_int("at_ps", {0});
  base::Reader args(r.required_object("args"), "args of a counter", r.sink());
  m.bytes = args.required_int("bytes", {0});
  args.finish();
  check_time(r, "ts", m.at_ps);
  return m;
}

enum class EventKind { kSpan, kCounter, kMetadata };
constexpr base::Named<EventKind> kEventKinds[] = {
    {"X", EventKind::kSpan}, {"C", EventKind::kCounter}, {"M", EventKind::kMetadata}};

void read_event(const base::Node& node, Timeline& t, base::ErrorSink& sink) {
  base::Reader r(node, "trace event", sink);
  if (!node.is_object() || !r.has("ph")) {
    (void)r.required_string("ph");
    return;
  }
  switch (const auto kind = r.optional_enum("ph", kEventKinds);
          kind.value_or(EventKind::kMetadata)) {
    case EventKind::kSpan: t.spans.push_back(read_span(r)); break;
    case EventKind::kCounter: t.memory.push_back(read_memory(r)); break;
    case EventKind::kMetadata: return;  // names for the viewer: derived from the spans
  }
  r.finish();
}

}  // namespace

Timeline canonical(Timeline timeline) {
  std::ranges::stable_sort(timeline.spans, [](const Span& a, const Span& b) {
    const auto key = [](const Span& s) {
      return std::tuple(s.start_ps, s.rank, s.stream, s.template_id, s.template_index, s.layer,
                        s.micro_batch);
    };
    return key(a) < key(b);
  });
  std::ranges::stable_sort(timeline.memory, [](const MemorySample& a, const MemorySample& b) {
    return std::pair(a.at_ps, a.rank) < std::pair(b.at_ps, b.rank);
  });
  return timeline;
}

std::string to_text(const Timeline& timeline) {
  std::string text =
      "{\"displayTimeUnit\":\"ns\",\n\"otherData\":" + base::to_line(header_json(timeline)) +
      ",\n\"traceEvents\":[";
  std::string_view separator = "\n";
  for (const Json& event : event_list(timeline)) {
    text += separator;
    text += base::to_line(event);
    separator = ",\n";
  }
  text += "\n]}\n";
  return text;
}

base::Result<Timeline> read_timeline(const base::Node& root) {
  base::ErrorSink sink;
  base::Reader r(root, "trace", sink);
  Timeline t;
  r.ignore("displayTimeUnit");
  base::Reader header(r.required_object("otherData"), "otherData", sink);
  const std::string schema = header.required_string("schema");
  if (sink.ok() && schema != kSchema) {
    return base::fail_at(header.span("schema"), base::ErrorCode::kUnsupported,
                         "schema '{}' is not '{}'", schema, kSchema);
  }
  t.origin = header.required_string("origin");
  t.model = header.required_string("model");
  t.plan_fingerprint = header.required_string("plan_fingerprint");
  t.program_fingerprint = header.required_string("program_fingerprint");
  t.step_time_ps = header.required_int("step_time_ps", {0});
  header.finish();
  for (const base::Node& event : r.required_list("traceEvents")) read_event(event, t, sink);
  r.finish();
  return sink.result(std::move(t));
}

base::Result<Timeline> load_timeline(const std::string& path) {
  TRY(const base::Node root, base::Node::parse_file(path));
  return read_timeline(root);
}

}  // namespace orrery::plan

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "base/config.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "base/rng.h"

namespace orrery::base {
namespace {

std::string printable() {
  return *rc::gen::container<std::string>(rc::gen::inRange(char{32}, char{127}));
}

/// Any JSON document, at most `depth` levels deep.
Json document(int depth) {
  switch (*rc::gen::inRange(0, depth > 0 ? 7 : 5)) {
    case 0: return nullptr;
    case 1: return *rc::gen::arbitrary<bool>();
    case 2: return *rc::gen::arbitrary<std::int64_t>();
    case 3: return static_cast<double>(*rc::gen::arbitrary<std::int32_t>()) / 1024.0;
    case 4: return printable();
    case 5: {
      Json list = Json::array();
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i) list.push_back(document(depth - 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i)
        object["k" + printable()] = document(depth - 1);
      return object;
    }
  }
}

/// What the reader says the document is; the slow twin is nlohmann's own tree.
bool same(const Node& node, const Json& json) {
  if (json.is_null()) return node.is_null();
  if (json.is_boolean()) return node.as_bool() == json.get<bool>();
  if (json.is_number_integer()) return node.as_int64() == json.get<std::int64_t>();
  if (json.is_number_float()) return node.as_double() == json.get<double>();
  if (json.is_string()) return node.as_string() == json.get<std::string>();
  if (json.is_array()) {
    const auto items = node.items();
    if (!node.is_list() || items.size() != json.size()) return false;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!same(items[i], json[i])) return false;
    }
    return true;
  }
  if (!node.is_object() || node.size() != json.size()) return false;
  const auto members = node.members();
  return std::all_of(members.begin(), members.end(), [&](const Node::Member& member) {
    return json.contains(member.key) && same(member.value, json.at(member.key));
  });
}

RC_GTEST_PROP(Config, ReadsEveryJsonDocumentThatWeWrite, ()) {
  const Json json = document(3);
  for (const std::string& text : {to_text(json), to_line(json)}) {
    const auto node = Node::parse_text(text, "f.json");
    if (!node) RC_FAIL(to_string(node.error()) + "\n" + text);
    RC_ASSERT(same(*node, json));
  }
}

RC_GTEST_PROP(Config, ATruncatedJsonDocumentIsAFaultWithAPlace, ()) {
  const std::string text = to_line(Json{{"a", document(2)}, {"b", printable()}});
  const auto cut = text.substr(0, *rc::gen::inRange<std::size_t>(0, text.size()));
  const auto node = Node::parse_text(cut, "f.json");
  RC_ASSERT(!node);
  RC_ASSERT(node.error().front().where.line == 1U);
}

RC_GTEST_PROP(Config, KeysStandWhereTheDiagnosticsSay, ()) {
  const auto lines = *rc::gen::inRange<std::uint32_t>(1, 40);
  const auto wrong = *rc::gen::inRange<std::uint32_t>(0, lines);
  std::string text;
  for (std::uint32_t i = 0; i < lines; ++i)
    text += fmt::format("{}{}: 1\n", i == wrong ? "unknown" : "known", i);
  ErrorSink sink;
  Reader reader(Node::parse_text(text, "f").value(), "file", sink);
  for (std::uint32_t i = 0; i < lines; ++i) {
    if (i != wrong) static_cast<void>(reader.required_int(fmt::format("known{}", i)));
  }
  reader.finish();
  RC_ASSERT(sink.diagnostics().size() == 1U);
  RC_ASSERT(sink.diagnostics().front().where == (SourceSpan{"f", wrong + 1, 1}));
}

RC_GTEST_PROP(Config, AnyTextIsATreeOrADiagnostic, (const std::string& text)) {
  const auto node = Node::parse_text(text, "f.yaml");
  RC_ASSERT(node.has_value() || !node.error().empty());
}

RC_GTEST_PROP(Fingerprint, DependsOnTheTextsAndNotOnTheObject,
              (const std::vector<std::string>& texts)) {
  Fingerprint a, b;
  for (const auto& text : texts) a.add(text);
  for (const auto& text : texts) b.add(text);
  RC_ASSERT(a.hex() == b.hex());
  RC_ASSERT(a.hex().size() == 32U);
}

RC_GTEST_PROP(Rng, BelowStaysBelow, (std::uint64_t seed)) {
  const auto n = *rc::gen::inRange<std::uint64_t>(1, ~0ULL);
  Rng rng(seed);
  for (int i = 0; i < 20; ++i) RC_ASSERT(rng.below(n) < n);
}

RC_GTEST_PROP(NormalQuantile, RisesAndIsSymmetric, (std::uint64_t bits)) {
  const double p = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
  RC_ASSERT(normal_quantile(p) == -normal_quantile(1 - p));
  if (p < 0.5) RC_ASSERT(normal_quantile(p) <= normal_quantile(p * 1.5));
}

}  // namespace
}  // namespace orrery::base

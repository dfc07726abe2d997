#pragma once
/// Records whose fields stand in a file under keys of their own: one table, by which they are read
/// and written.
///
///     constexpr Field<Link> kLink[] = {{"latency_seconds", &Link::latency, {0, 1}},
///                                      {"lanes", &Link::lanes, {1, 64}}};
///     read_fields(reader, kLink, link);
///     const Json json = fields_to_json(link, kLink);

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/config.h"
#include "base/json.h"

namespace orrery::model {

enum class Fields { kRequired, kOptional };

template <class Record>
struct Field {
  std::string_view key;
  std::variant<double Record::*, std::int64_t Record::*, int Record::*, bool Record::*,
               std::string Record::*>
      member;
  base::DoubleRange range = {};  ///< of numbers; integers have one always
};

/// In order of the table. A field that is absent or wrong keeps its value.
template <class Record, std::size_t N>
void read_fields(base::Reader& r, const Field<Record> (&fields)[N], Record& record,
                 Fields which = Fields::kRequired) {
  for (const Field<Record>& f : fields) {
    if (which == Fields::kRequired) r.required_node(f.key);
    const auto read = [&](auto member) {
      auto& value = record.*member;
      using Value = std::remove_reference_t<decltype(value)>;
      if constexpr (std::is_same_v<Value, bool>)
        value = r.optional_bool(f.key).value_or(value);
      else if constexpr (std::is_same_v<Value, std::string>)
        value = r.optional_string(f.key).value_or(value);
      else if constexpr (std::is_same_v<Value, double>)
        value = r.optional_double(f.key, f.range).value_or(value);
      else
        value = static_cast<Value>(
            r.optional_int(f.key, {std::int64_t(f.range.min), std::int64_t(f.range.max)})
                .value_or(value));
    };
    std::visit(read, f.member);
  }
}

template <class Record, std::size_t N>
base::Json fields_to_json(const Record& record, const Field<Record> (&fields)[N]) {
  base::Json json;
  for (const Field<Record>& f : fields)
    std::visit([&](auto member) { json[std::string(f.key)] = record.*member; }, f.member);
  return json;
}

}  // namespace orrery::model

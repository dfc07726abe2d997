#pragma once
/// An instance as a document, which no command writes: read_instance(to_json(i)) == i.
#include <cstdint>
#include <utility>
#include <vector>

#include "base/json.h"
#include "search/table/instance.h"

namespace orrery::search {

inline base::Json to_json(const Instance& instance) {
  const auto table_json = [](const std::vector<std::int64_t>& table, std::size_t columns) {
    base::Json rows = base::Json::array();
    for (std::size_t i = 0; i < table.size(); i += columns) {
      rows.push_back(
          std::vector<std::int64_t>(table.begin() + static_cast<std::ptrdiff_t>(i),
                                    table.begin() + static_cast<std::ptrdiff_t>(i + columns)));
    }
    return rows;
  };
  base::Json layers = base::Json::array();
  for (const auto& layer : instance.layers) {
    base::Json options = base::Json::array();
    for (const InstanceOption& o : layer) {
      options.push_back(
          {{"name", o.name}, {"time_ps", o.time_ps}, {"memory_bytes", o.memory_bytes}});
    }
    layers.push_back({{"options", std::move(options)}});
  }
  base::Json json{{"schema", "orrery.instance/1"},
                  {"budget_bytes", instance.budget_bytes},
                  {"layers", std::move(layers)}};
  const auto& tables = instance.transition_ps;
  if (tables.size() == 1 && instance.layers.size() != 2) {
    json["transition_ps"] = table_json(tables.front(), instance.layers.front().size());
  } else if (!tables.empty()) {
    base::Json list = base::Json::array();
    for (std::size_t i = 0; i < tables.size(); ++i)
      list.push_back(table_json(tables[i], instance.layers[i + 1].size()));
    json["transition_ps"] = std::move(list);
  }
  return json;
}

}  // namespace orrery::search

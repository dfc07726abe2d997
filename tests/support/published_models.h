#pragma once
/// Published models of tests/data/models: a config.json with the keys that matter, how many
/// parameters its publisher counts, and which key or family is refused, if one is.
#include <string>
#include <vector>

#include "base/config.h"
#include "tests/support/paths.h"

namespace orrery::tests {

struct PublishedModel {
  std::string name;
  std::int64_t parameters = 0;
  std::string refused;  // in the fault's text; empty: it is read
  base::Node config;
};

inline std::vector<PublishedModel> published_models() {
  std::vector<PublishedModel> models;
  for (const char* file : {"decoders", "mixtures", "recurrent", "encoders"}) {
    const auto root =
        base::Node::parse_file(std::string(kSourceDir) + "/tests/data/models/" + file + ".json");
    if (!root) continue;
    for (const base::Node& row : root->find("models")->items()) {
      const auto refused = row.find("refused");
      models.push_back({*row.find("name")->as_string(), *row.find("parameters")->as_int64(),
                        refused ? *refused->as_string() : "", *row.find("config")});
    }
  }
  return models;
}

}  // namespace orrery::tests

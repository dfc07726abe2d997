#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/result.h"

namespace orrery::costmodel {

/// Matches `text` against a pattern in which every '#' stands for a whole number: "pp_size_#" on
/// "pp_size_4" gives {4}.
std::optional<std::vector<std::int64_t>> match_numbers(std::string_view pattern,
                                                       std::string_view text);

/// A flat JSON object of numbers, keys in the order of the file.
struct NumberFile {
  struct NamedNumber {
    std::string key;
    base::SourceSpan where;
    double value = 0;
  };
  std::string name;  // file name
  std::vector<NamedNumber> entries;
};
base::Result<NumberFile> read_numbers(const std::filesystem::path& path);

/// Files of a folder (and of its `configs/`, `hardware_configs/`) whose names start with `prefix`
/// and end in ".json", sorted.
std::vector<std::filesystem::path> files_with_prefix(const std::filesystem::path& folder,
                                                     std::string_view prefix);

/// Files "<prefix>_<H>nodes_<G>gpus_per_node.json" of the largest G, by H.
struct HostShape {
  std::int64_t hosts = 1, devices_per_host = 1;
};
struct HostFile {
  HostShape shape;
  std::filesystem::path path;
};
std::vector<HostFile> host_files(const std::filesystem::path& folder, std::string_view prefix);

}  // namespace orrery::costmodel

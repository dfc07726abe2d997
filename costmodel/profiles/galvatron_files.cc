#include "costmodel/profiles/galvatron_files.h"

#include <algorithm>

#include "base/text.h"

namespace orrery::costmodel {

std::optional<std::vector<std::int64_t>> match_numbers(std::string_view pattern,
                                                       std::string_view text) {
  std::vector<std::int64_t> numbers;
  std::size_t at = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '#') {
      if (at >= text.size() || text[at] != pattern[i]) return std::nullopt;
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    const auto number = base::parse_integer(text.substr(at, end - at));
    if (!number) return std::nullopt;
    numbers.push_back(*number);
    at = end;
  }
  if (at != text.size()) return std::nullopt;
  return numbers;
}

base::Result<NumberFile> read_numbers(const std::filesystem::path& path) {
  TRY(const auto root, base::Node::parse_file(path));
  if (!root.is_object())
    return base::fail_at(root.span(), base::ErrorCode::kWrongType, "expected an object of numbers");
  base::ErrorSink sink;
  NumberFile file{.name = path.filename().string(), .entries = {}};
  for (const auto& member : root.members()) {
    const double value = sink.take(member.value.as_double({.min = 0}));
    file.entries.push_back({member.key, member.key_span, value});
  }
  return sink.result(std::move(file));
}

std::vector<std::filesystem::path> files_with_prefix(const std::filesystem::path& folder,
                                                     std::string_view prefix) {
  std::vector<std::filesystem::path> found;
  for (const auto& place : {folder, folder / "configs", folder / "hardware_configs"}) {
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(place, absent)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(prefix) && name.ends_with(".json")) found.push_back(entry.path());
    }
  }
  std::ranges::sort(found);
  return found;
}

std::vector<HostFile> host_files(const std::filesystem::path& folder, std::string_view prefix) {
  std::vector<HostFile> files;
  const std::string pattern = std::string(prefix) + "_#nodes_#gpus_per_node.json";
  std::int64_t widest = 0;
  for (const auto& path : files_with_prefix(folder, prefix)) {
    const auto numbers = match_numbers(pattern, path.filename().string());
    if (!numbers || (*numbers)[0] < 1 || (*numbers)[1] < 1) continue;
    files.push_back({{(*numbers)[0], (*numbers)[1]}, path});
    widest = std::max(widest, (*numbers)[1]);
  }
  std::erase_if(files, [&](const HostFile& f) { return f.shape.devices_per_host != widest; });
  std::ranges::sort(
      files, [](const HostFile& a, const HostFile& b) { return a.shape.hosts < b.shape.hosts; });
  return files;
}

}  // namespace orrery::costmodel

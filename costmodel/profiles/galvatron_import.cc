#include "costmodel/profiles/galvatron_import.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "costmodel/profiles/galvatron_files.h"

namespace orrery::costmodel {
namespace {

using enum model::Collective;
using enum base::ErrorCode;
using model::Collective;

constexpr double kMillisecond = 1e-3;
constexpr double kGigabyte = 1e9;
constexpr std::int64_t kMebibyte = 1024 * 1024;
constexpr double kParameterTolerance = 0.05;

/// Times of one (batch, sequence).
struct Sample {
  std::optional<double> layer, other;             // ms per sample
  std::map<std::int64_t, double> by_layer_count;  // ms
};
using Samples = std::map<std::pair<std::int64_t, std::int64_t>, Sample>;  // (sequence, batch)

std::optional<model::Precision> precision_of(std::string_view file_name) {
  for (const auto& [mark, precision] : {std::pair{"_bf16", model::Precision::kBFloat16},
                                        std::pair{"_fp16", model::Precision::kBFloat16},
                                        std::pair{"_fp32", model::Precision::kFloat32}}) {
    if (file_name.find(mark) != std::string_view::npos) return precision;
  }
  return std::nullopt;
}

void read_computation(const NumberFile& file, Samples& samples, base::ErrorSink& sink) {
  for (const auto& e : file.entries) {
    if (const auto layer = match_numbers("layertype_#_bsz#_seq#", e.key)) {
      const auto& v = *layer;
      if (v[0] != 0) {
        sink.error(e.where, kUnsupported, "'{}': only models of one layer type are known here",
                   e.key);
        continue;
      }
      samples[{v[2], v[1]}].layer = e.value;
    } else if (const auto other = match_numbers("layertype_other_bsz#_seq#", e.key)) {
      samples[{(*other)[1], (*other)[0]}].other = e.value;
    } else if (const auto total = match_numbers("layernum[#]_bsz#_seq#", e.key)) {
      samples[{(*total)[2], (*total)[1]}].by_layer_count[(*total)[0]] = e.value;
    } else {
      sink.error(e.where, kUnknownKey,
                 "unknown key '{}' in a computation profile of one layer type", e.key);
    }
  }
}

/// Per-sample times of a sample, derived from whole models where they are not stated.
std::optional<model::LayerPoint> point_of(std::int64_t batch, const Sample& s) {
  if (s.layer && s.other)
    return model::LayerPoint{batch, *s.layer * kMillisecond, *s.other * kMillisecond};
  if (s.by_layer_count.size() < 2) return std::nullopt;
  const auto& [few, few_ms] = *s.by_layer_count.begin();
  const auto& [many, many_ms] = *s.by_layer_count.rbegin();
  const double layer = (many_ms - few_ms) / real(many - few) / real(batch);
  const double other = few_ms / real(batch) - real(few) * layer;
  return model::LayerPoint{batch, layer * kMillisecond, other * kMillisecond};
}

base::Result<std::vector<model::LayerTimes>> import_layers(const std::filesystem::path& folder,
                                                           const model::ModelSpec& model) {
  base::ErrorSink sink;
  std::map<model::Precision, Samples> by_precision;
  const auto paths = files_with_prefix(folder, "computation_profiling_");
  for (const auto& path : paths) {
    const auto precision = precision_of(path.filename().string());
    if (!precision) continue;
    const auto file = sink.take(read_numbers(path));
    read_computation(file, by_precision[*precision], sink);
  }
  std::vector<model::LayerTimes> all;
  for (const auto& [precision, samples] : by_precision) {
    for (const auto& [key, sample] : samples) {
      const auto point = point_of(key.second, sample);
      if (!point) continue;
      const auto sequence = key.first;
      if (all.empty() || all.back().sequence != sequence || all.back().precision != precision) {
        all.push_back({.model = model.name,
                       .sequence = sequence,
                       .hidden = model.hidden,
                       .precision = precision});
      }
      all.back().points.push_back(*point);
    }
  }
  if (all.empty() && sink.ok()) {
    sink.add(base::make_error(kNotFound, "no layer times in '{}'", folder.string())
                 .with_hint("a Galvatron profile folder holds "
                            "computation_profiling_<precision>_*.json (also under configs/)"));
  }
  return sink.result(std::move(all));
}

/// "parameter_size" of a layer, MiB of fp32, against the model's own count.
base::Result<void> check_memory(const std::filesystem::path& folder,
                                const model::ModelSpec& model) {
  base::ErrorSink sink;
  const double expected = 4.0 * real(model.block_parameters()) / real(kMebibyte);
  for (const auto& path : files_with_prefix(folder, "memory_profiling_")) {
    const auto root = base::Node::parse_file(path);
    if (!root) return base::fail(root.error());
    for (const auto& member : root->members()) {
      if (!member.key.starts_with("layertype_0")) continue;
      for (const auto& by_sequence : member.value.members()) {
        const auto size = by_sequence.value.find("parameter_size");
        if (!size) continue;
        const double mib = sink.take(size->as_double());
        if (std::abs(mib - expected) <= kParameterTolerance * expected) continue;
        sink.add(
            size->error(
                    kInconsistent,
                    "a profiled layer has {:.1f} MiB of fp32 parameters, one of '{}' has {:.1f}",
                    mib, model.name, expected)
                .with_hint("name the model that was profiled"));
      }
    }
  }
  return sink.result();
}

struct SpTimes {
  std::map<std::int64_t, std::vector<model::CollectivePoint>> all_reduce, all_to_all;  // by size
};

base::Result<SpTimes> read_sp_times(const std::filesystem::path& path) {
  base::ErrorSink sink;
  SpTimes times;
  TRY(const auto file, read_numbers(path));
  for (const auto& e : file.entries) {
    const auto reduce = match_numbers("allreduce_size_#_#MB_time", e.key);
    const auto exchange = match_numbers("all2all_size_#_#MB_time", e.key);
    if (!reduce && !exchange) {
      sink.error(e.where, kUnknownKey, "unknown key '{}'", e.key);
      continue;
    }
    const auto& v = reduce ? *reduce : *exchange;
    (reduce ? times.all_reduce : times.all_to_all)[v[0]].push_back(
        {v[1] * kMebibyte, e.value * kMillisecond});
  }
  for (auto* table : {&times.all_reduce, &times.all_to_all}) {
    for (auto& [size, points] : *table) {
      std::ranges::sort(points, [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    }
  }
  return sink.result(std::move(times));
}

/// Hosts spanned by a group of `size` ranks `stride` apart, host-major ranks.
std::int64_t hosts_of(std::int64_t size, std::int64_t stride, const HostShape& shape) {
  return std::min(shape.hosts, ((size - 1) * stride) / shape.devices_per_host + 1);
}

/// Seconds per ring step: what the smallest all-reduce takes beyond its bandwidth part, over
/// 2(n-1).
double ring_latency(const SpTimes& times, std::int64_t size, double bandwidth) {
  const auto found = times.all_reduce.find(size);
  if (found == times.all_reduce.end()) return 0;
  const auto& smallest = found->second.front();
  const auto n = real(size);
  const double wire = 2 * (n - 1) / n * real(smallest.bytes);
  return std::max(0.0, smallest.seconds - wire / bandwidth) / (2 * (n - 1));
}

void import_all_reduce(const HostFile& host, const NumberFile& file, const SpTimes& times,
                       base::ErrorSink& sink, std::vector<model::CollectiveTimes>& out) {
  for (const auto& e : file.entries) {
    const auto v = match_numbers("allreduce_size_#_consec_#", e.key);
    if (!v || (*v)[0] < 2 || (*v)[1] > 1 || e.value <= 0) {
      sink.error(e.where, kUnknownKey, "unknown key '{}'", e.key);
      continue;
    }
    const std::int64_t size = (*v)[0];
    const std::int64_t stride =
        (*v)[1] == 1 ? 1 : host.shape.hosts * host.shape.devices_per_host / size;
    const std::int64_t hosts = hosts_of(size, stride, host.shape);
    // A group inside one host belongs to the one-host file, measured without the other hosts'
    // traffic.
    const bool known = std::ranges::any_of(out, [&](const model::CollectiveTimes& c) {
      return c.op == kAllReduce && c.size == size && c.stride == stride && c.hosts == hosts;
    });
    if (known) continue;
    const double bandwidth = e.value * kGigabyte;
    out.push_back({.op = kAllReduce,
                   .size = size,
                   .stride = stride,
                   .hosts = hosts,
                   .bus_bandwidth = bandwidth,
                   .latency_seconds = hosts == 1 ? ring_latency(times, size, bandwidth) : 0});
  }
}

void import_point_to_point(const HostFile& host, const NumberFile& file, base::ErrorSink& sink,
                           std::vector<model::CollectiveTimes>& out) {
  for (const auto& e : file.entries) {
    const auto v = match_numbers("pp_size_#", e.key);
    if (!v || (*v)[0] < 2 || e.value <= 0) {
      sink.error(e.where, kUnknownKey, "unknown key '{}'", e.key);
      continue;
    }
    const std::int64_t stride =
        std::max<std::int64_t>(1, host.shape.hosts * host.shape.devices_per_host / (*v)[0]);
    out.push_back({.op = kPointToPoint,
                   .size = (*v)[0],
                   .stride = stride,
                   .hosts = host.shape.hosts,
                   .bus_bandwidth = e.value * kGigabyte});
  }
}

base::Result<std::vector<model::CollectiveTimes>> import_collectives(
    const std::filesystem::path& folder) {
  base::ErrorSink sink;
  std::vector<model::CollectiveTimes> all;
  SpTimes times;
  for (const auto& host : host_files(folder, "sp_time")) {
    if (host.shape.hosts == 1) times = sink.take(read_sp_times(host.path));
  }
  for (const auto& host : host_files(folder, "allreduce_bandwidth")) {
    import_all_reduce(host, sink.take(read_numbers(host.path)), times, sink, all);
  }
  for (auto& [size, points] : times.all_to_all) {
    all.push_back({.op = kAllToAll, .size = size, .points = std::move(points)});
  }
  for (const auto& host : host_files(folder, "p2p_bandwidth")) {
    import_point_to_point(host, sink.take(read_numbers(host.path)), sink, all);
  }
  return sink.result(std::move(all));
}

base::Result<double> import_overlap(const std::filesystem::path& folder) {
  double slowdown = 1.0;
  for (const auto& path : files_with_prefix(folder, "overlap_coefficient")) {
    TRY(const auto root, base::Node::parse_file(path));
    base::ErrorSink sink;
    base::Reader reader(root, "overlap coefficient", sink);
    slowdown = reader.required_double("overlap_coe", {.min = 1.0, .max = 100.0});
    reader.finish();
    TRY_VOID(sink.result());
  }
  return slowdown;
}

}  // namespace

base::Result<model::Profile> import_galvatron(const std::filesystem::path& folder,
                                              const model::ModelSpec& model) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return base::fail(kNotFound, "no folder '{}'", folder.string());
  }
  model::Profile profile;
  profile.name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  profile.provenance.source = "Galvatron profile folder " + profile.name;
  profile.provenance.note =
      "layer times belong to " + model.name + "; MiB and GB/s taken at their word";
  TRY_VOID(check_memory(folder, model));
  TRY(profile.layers, import_layers(folder, model));
  TRY(profile.collectives, import_collectives(folder));
  TRY(profile.overlap_slowdown, import_overlap(folder));
  return profile;
}

}  // namespace orrery::costmodel

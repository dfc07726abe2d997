#include "cli/html/html_report.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/numbers.h"
#include "cli/text/plan_facts.h"
#include "cli/text/show.h"

namespace orrery::cli {
namespace {

/// A block takes some 40 bytes of the page. Beyond this many, communication of several
/// micro-batches shares blocks where the gaps are below a pixel of the whole step; were they still
/// too many, communication stays out of the page.
constexpr std::size_t kMaxBlocks = 120'000;
constexpr std::size_t kMaxLinkRows = 80;
constexpr std::uint32_t kMaxHostColumns = 64;

double ns(std::int64_t ps) { return real(ps) / 1e3; }
std::int64_t whole_ns(std::int64_t ps) { return (ps + 500) / 1000; }

/// Communication streams with neighbours of one kind joined; micro-batch -1: several.
std::vector<sim::Picture::Block> coarse(const std::vector<sim::Picture::Block>& blocks,
                                        std::int64_t gap_ps) {
  std::vector<sim::Picture::Block> joined;
  for (const sim::Picture::Block& b : blocks) {
    sim::Picture::Block* before = joined.empty() ? nullptr : &joined.back();
    if (b.stream == plan::Stream::kCompute || !before || before->stream != b.stream ||
        before->part != b.part || b.start_ps - before->end_ps > gap_ps) {
      joined.push_back(b);
      continue;
    }
    if (before->micro_batch != b.micro_batch) before->micro_batch = -1;
    before->first_layer = std::min(before->first_layer, b.first_layer);
    before->last_layer = std::max(before->last_layer, b.last_layer);
    before->operations += b.operations;
    before->end_ps = b.end_ps;
    before->busy_ps += b.busy_ps;
  }
  return joined;
}

/// Lists in place of objects, starts relative to the block before: see cli/html/assets/report.js.
Json lanes_json(const std::vector<sim::Picture::Block>& blocks, bool communication) {
  Json lanes = Json::array();
  std::int64_t before = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const sim::Picture::Block& b = blocks[i];
    if (b.stream != plan::Stream::kCompute && !communication) continue;
    if (i == 0 || blocks[i - 1].stream != b.stream) {
      lanes.push_back({{"stream", plan::to_string(b.stream)}, {"blocks", Json::array()}});
      before = 0;
    }
    const std::int64_t start = whole_ns(b.start_ps);
    lanes.back()["blocks"].push_back({as_int(b.part), b.micro_batch, b.first_layer, b.last_layer,
                                      b.operations, start - before, whole_ns(b.end_ps) - start,
                                      whole_ns(b.busy_ps), whole_ns(b.recompute_ps)});
    before = start;
  }
  return lanes;
}

Json stage_json(const sim::StageReport& report, const std::vector<sim::Picture::Memory>& samples,
                const Json& lanes) {
  Json parts = Json::array(), memory = Json::array();
  for (const std::int64_t ps : report.parts) parts.push_back(ns(ps));
  for (const sim::Picture::Memory& m : samples) {
    Json point = Json::array({whole_ns(m.at_ps)});
    for (const std::int64_t bytes : m.bytes) point.push_back(bytes);
    memory.push_back(std::move(point));
  }
  return {{"parts", parts},
          {"peak", report.peak_memory_bytes},
          {"at_peak", report.memory_at_peak},
          {"memory", memory},
          {"lanes", lanes}};
}

std::string without_indices(std::string name) {
  for (std::size_t at = name.find('['); at != std::string::npos; at = name.find('[', at))
    name.erase(at, name.find(']', at) + 1 - at);
  return name;
}

/// "gpu[3] → nvswitch", the same in every host; links between fabric vertices by what they are:
/// "leaf → spine".
struct LinkRow {
  std::string name;
  bool fabric = false;
};
LinkRow row_of(const topologies::Topology& t, const topologies::Link& link) {
  const topologies::Vertex &from = t.vertex(link.from), &to = t.vertex(link.to);
  const bool fabric = from.host == topologies::kNoHost && to.host == topologies::kNoHost;
  std::string name = fmt::format("{} → {} ({})", from.name, to.name, link.kind);
  return {fabric ? without_indices(std::move(name)) : std::move(name), fabric};
}

/// Utilisation by link of a host and host; neighbouring hosts share a column where there are many.
Json links_json(const topologies::Topology& t, const sim::SimReport& report) {
  const std::uint32_t per_column = (t.hosts() + kMaxHostColumns - 1) / kMaxHostColumns,
                      columns = (t.hosts() + per_column - 1) / per_column;
  struct Row {
    std::string name;
    std::vector<double> cells;
    bool fabric = false;
    std::uint32_t seen = 0, alike = 1;
    double highest = 0;
  };
  std::vector<Row> rows;
  std::map<std::string, std::size_t> known;
  double highest = 0;
  for (const sim::Picture::Link& use : report.picture.links) {
    const topologies::Link& link = t.link(use.link);
    LinkRow named = row_of(t, link);
    const auto [at, fresh] = known.try_emplace(named.name, rows.size());
    if (fresh) rows.push_back({named.name, std::vector<double>(columns, 0.0), named.fabric});
    Row& row = rows[at->second];
    const std::uint32_t own = t.vertex(link.from).host,
                        host = own != topologies::kNoHost ? own : t.vertex(link.to).host;
    double& cell = row.cells[named.fabric ? row.seen++ % columns : host / per_column];
    cell = std::max(cell, use.share);
    row.highest = std::max(row.highest, use.share);
    highest = std::max(highest, use.share);
  }
  // The eight links of eight GPUs that carry the same are one row.
  std::map<std::pair<std::string, std::vector<double>>, std::size_t> shapes;
  std::vector<Row> distinct;
  for (Row& row : rows) {
    const auto [at, fresh] =
        shapes.try_emplace({without_indices(row.name), row.cells}, distinct.size());
    if (fresh)
      distinct.push_back(std::move(row));
    else
      ++distinct[at->second].alike;
  }
  rows = std::move(distinct);
  std::size_t left_out = 0;
  if (rows.size() > kMaxLinkRows) {
    std::vector<double> order;
    for (const Row& row : rows) order.push_back(row.highest);
    std::nth_element(order.begin(), order.begin() + kMaxLinkRows, order.end(), std::greater<>());
    left_out = std::erase_if(
        rows, [limit = order[kMaxLinkRows]](const Row& row) { return row.highest <= limit; });
  }
  Json list = Json::array();
  for (const Row& row : rows)
    list.push_back(
        {{"name", row.name}, {"alike", row.alike}, {"fabric", row.fabric}, {"cells", row.cells}});
  return {{"hosts_per_column", per_column},
          {"highest", highest},
          {"left_out", left_out},
          {"rows", list}};
}

}  // namespace

Json html_data(const Plan& plan, const CostModel& cost, const sim::SimReport& report,
               std::int64_t memory_limit_bytes, const StepWords& words) {
  Json parts = Json::array(), categories = Json::array(), stages = Json::array();
  for (int p = 0; p < sim::kTimeParts; ++p)
    parts.push_back(sim::to_string(static_cast<sim::TimePart>(p)));
  for (int c = 0; c < plan::kBufferCategories; ++c)
    categories.push_back(plan::to_string(static_cast<plan::BufferCategory>(c)));
  std::vector<std::vector<sim::Picture::Block>> blocks;
  for (const sim::Picture::Stage& s : report.picture.stages) blocks.push_back(s.blocks);
  const auto count = [&] {
    return std::accumulate(blocks.begin(), blocks.end(), std::size_t{0},
                           [](std::size_t n, const auto& b) { return n + b.size(); });
  };
  if (count() > kMaxBlocks)
    for (auto& b : blocks) b = coarse(b, report.step_time_ps / 1000);
  const bool communication = count() <= kMaxBlocks;
  std::int64_t framework = 0;  // beside buffers, at the fullest
  for (std::size_t i = 0; i < report.stages.size(); ++i) {
    const sim::StageReport& stage = report.stages[i];
    stages.push_back(
        stage_json(stage, report.picture.stages[i].memory, lanes_json(blocks[i], communication)));
    const auto& held = stage.memory_at_peak;
    framework = std::max(framework, stage.peak_memory_bytes -
                                        std::accumulate(held.begin(), held.end(), std::int64_t{0}));
  }
  return {
      {"schema", "orrery.picture/1"},
      {"model", plan.model},
      {"cluster", fmt::format("{} × {}", plan.world_size(), cost.topology().device_model(0).name)},
      {"facts", plan_facts(plan)},
      {"plan", describe(plan, cost.topology().device_count())},
      {"origin", describe_origin(cost)},
      {"fingerprint", report.fingerprint},
      {"step_ns", ns(report.step_time_ps)},
      {"mfu", report.mfu},
      {"tokens_per_s", report.tokens_per_s},
      {"bubble", report.bubble_fraction},
      {"exposed", report.exposed_communication_fraction},
      {"limit", memory_limit_bytes},
      {"framework", framework},
      {"parts", parts},
      {"categories", categories},
      {"stages", stages},
      {"streams_left_out", !communication},
      {"links", links_json(cost.topology(), report)},
      {"band", words.band},
      {"scenario", words.scenario}};
}

}  // namespace orrery::cli

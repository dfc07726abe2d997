#include "cli/tables/simulate_table.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "base/file.h"
#include "base/numbers.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "plan/lowering/lower.h"
#include "plan/program/expand.h"
#include "sim/simulate.h"

namespace orrery::cli {
namespace {

/// Memory of a simulation grows with the operations of a step, about 130 bytes each: this many take
/// some 13 GiB.
constexpr std::int64_t kMaxOperations = 100'000'000;

struct Evaluation {
  std::int64_t step_ps = 0, peak_bytes = 0, limit_bytes = 0;
  double mfu = 0;
  costmodel::Band band;
};

/// A row, read as far as it goes: a plan on a cluster, or what is wrong with it.
struct Job {
  const base::CsvRecord* record = nullptr;
  TableRow row;
  const Topology* cluster = nullptr;
  std::optional<Result<Evaluation>> result;
};

/// Clusters by name and hosts, each made once. Not for several threads.
class Clusters {
 public:
  explicit Clusters(std::span<const base::Setting> settings) : settings_(settings) {}
  Result<const Topology*> get(const std::string& name, std::int64_t hosts) {
    const auto [at, fresh] = known_.try_emplace({name, hosts});
    if (fresh)
      at->second =
          std::make_unique<Result<Topology>>(find_cluster(name, as_int(hosts), 0, settings_));
    if (!*at->second) return tl::unexpected(at->second->error());
    return &**at->second;
  }

 private:
  std::span<const base::Setting> settings_;
  std::map<std::pair<std::string, std::int64_t>, std::unique_ptr<Result<Topology>>> known_;
};

/// Evaluates rows one after another; prices of the last model and cluster are kept for a next row
/// with the same.
class Worker {
 public:
  explicit Worker(const TableRequest& request) : request_(request) {}

  Result<Evaluation> run(const Job& job) {
    TRY(const Plan plan,
        plan::uniform_plan(job.row.model, job.row.cluster, as_int(job.row.hosts), job.row.plan));
    TRY_VOID(price(job));
    TRY(const plan::Program program, plan::lower(plan, job.row.model));
    std::int64_t count = 0;
    for (const plan::RankClass& k : program.classes) count += plan::op_count(program, k);
    if (count > kMaxOperations) {
      return refuse(
          kUnsupported,
          fmt::format("at most {} are simulated: use larger micro-batches", kMaxOperations),
          "a step of {} operations", count);
    }
    TRY(const sim::SimReport report, sim::simulate(program, *cost_));
    Evaluation e{.step_ps = report.step_time_ps, .mfu = report.mfu, .band = {}};
    if (request_.bands) {
      TRY(const Doubt doubt, doubt_of(plan, *cost_));
      e.band = doubt.band;
    }
    const FullestStage stage = fullest_stage(plan, report, *cost_, request_.memory_limit_bytes);
    e.peak_bytes = stage.peak_bytes;
    e.limit_bytes = stage.limit_bytes;
    return e;
  }

 private:
  Result<void> price(const Job& job) {
    PriceNames prices = request_.prices;
    if (!job.row.software.empty()) prices.software = job.row.software;
    TRY_VOID(check_prices(prices));
    const auto key = std::tuple(job.row.model.fingerprint(), job.row.cluster, job.row.hosts,
                                job.row.plan.precision, prices);
    if (cost_ && key == key_) return {};
    cost_.reset();
    TRY(auto profile, profile_of(prices, *job.cluster, job.row.model));
    TRY(auto library, costmodel::usual_library(*job.cluster));
    TRY(cost_, CostModel::make(job.row.model, *job.cluster, std::move(profile),
                               {.precision = job.row.plan.precision,
                                .sequence = job.row.plan.sequence,
                                .library = std::move(library)}));
    key_ = key;
    return {};
  }

  const TableRequest& request_;
  std::tuple<std::string, std::string, std::int64_t, model::Precision, PriceNames> key_;
  std::optional<CostModel> cost_;
};

/// Faults without a place get the row's.
base::Diagnostics placed(base::Diagnostics faults, const std::string& file, std::uint32_t line) {
  for (base::Diagnostic& d : faults)
    if (d.where.file.empty()) d.where = {file, line, 1};
  return faults;
}

std::vector<Job> read_jobs(const base::Csv& csv, const TableHeader& header,
                           const TableRequest& request, Clusters& clusters) {
  std::vector<Job> jobs;
  for (std::size_t i = 1; i < csv.records.size(); ++i) {
    Job job{.record = &csv.records[i], .row = {}, .result = {}};
    const auto understand = [&]() -> Result<void> {
      TRY(job.row, read_table_row(*job.record, header, request.defaults, request.rows_file));
      TRY(const Topology* one, clusters.get(job.row.cluster, 1));
      TRY_VOID(
          resolve_row(job.row, one->devices_per_host(), *job.record, header, request.rows_file));
      TRY(job.cluster, clusters.get(job.row.cluster, job.row.hosts));
      return {};
    };
    if (const auto understood = understand(); !understood)
      job.result = base::fail(understood.error());
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void evaluate(std::vector<Job>& jobs, const TableRequest& request) {
  base::run_in_parallel(jobs.size(), request.threads, [&] {
    return [&, worker = std::make_unique<Worker>(request)](std::size_t i) {
      if (!jobs[i].result) jobs[i].result = worker->run(jobs[i]);
    };
  });
}

struct Counts {
  std::size_t ok = 0, out_of_memory = 0, faulty = 0;
};

/// The cells that a row adds, in the order of kTableResults; faults go to stderr as well.
std::vector<std::string> result_cells(const Job& job, const std::string& file, bool bands,
                                      Counts& counts) {
  if (!*job.result) {
    ++counts.faulty;
    const base::Diagnostics faults = placed(job.result->error(), file, job.record->line);
    say("{}\n", base::to_string(faults));
    std::string message;
    for (const base::Diagnostic& d : faults)
      message += (message.empty() ? "" : " | ") + base::to_string(d);
    std::ranges::replace(message, '\n', ' ');
    std::vector<std::string> cells{"", "", "", "error", message};
    cells.resize(cells.size() + (bands ? kTableBands.size() : 0));
    return cells;
  }
  const Evaluation& e = **job.result;
  const bool fits = e.peak_bytes <= e.limit_bytes;
  ++(fits ? counts.ok : counts.out_of_memory);
  std::string message = job.row.note;
  if (!fits)
    message += fmt::format("{}needs {} of {}", message.empty() ? "" : "; ",
                           show_bytes(e.peak_bytes), show_bytes(e.limit_bytes));
  const double seconds = real(e.step_ps) / 1e12;
  std::vector<std::string> cells{fmt::format("{}", seconds), fmt::format("{}", e.peak_bytes),
                                 fmt::format("{}", e.mfu), fits ? "ok" : "out_of_memory", message};
  for (const double share : {e.band.low, e.band.high})
    if (bands) cells.push_back(fmt::format("{:.6g}", seconds * share));
  return cells;
}

}  // namespace

Result<int> simulate_table(const TableRequest& request) {
  TRY(const std::string text, base::read_file(request.rows_file));
  const base::Csv csv = base::parse_csv(text, request.rows_file);
  if (csv.records.empty())
    return base::fail_at({request.rows_file, 1, 1}, kParse, "the file has no header");
  std::vector<std::string> notes;
  TRY(const TableHeader header, read_table_header(csv.records[0], request.rows_file, notes));
  for (const std::string& note : notes) say("{}\n", note);
  Clusters clusters(request.prices.settings);
  std::vector<Job> jobs = read_jobs(csv, header, request, clusters);
  evaluate(jobs, request);

  std::vector<std::string> columns = kTableResults;
  columns.insert(columns.end(), kTableBands.begin(), kTableBands.end());
  std::vector<bool> kept;  // results of an earlier run give way to the new ones
  for (const base::CsvCell& cell : csv.records[0].cells)
    kept.push_back(std::ranges::find(columns, base::trim(cell.text)) == columns.end());
  if (!request.bands) columns.resize(kTableResults.size());
  std::string out;
  const auto write = [&](const base::CsvRecord& record, const std::vector<std::string>& added) {
    std::string line;
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (kept[i])
        line += base::csv_cell(i < record.cells.size() ? record.cells[i].text : "") + ",";
    std::vector<std::string> cells;
    for (const std::string& cell : added) cells.push_back(base::csv_cell(cell));
    out += line + base::join(cells, ",") + csv.line_end;
  };
  write(csv.records[0], columns);
  Counts counts;
  for (const Job& job : jobs)
    write(*job.record, result_cells(job, request.rows_file, request.bands, counts));
  if (request.out_file.empty()) fmt::print("{}", out);
  if (!request.out_file.empty()) TRY_VOID(base::write_file_atomic(request.out_file, out));
  say("{} rows: {} ok, {} out of memory, {} with faults\n", jobs.size(), counts.ok,
      counts.out_of_memory, counts.faulty);
  return counts.faulty > 0 ? 1 : 0;
}

}  // namespace orrery::cli

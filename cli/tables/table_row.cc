#include "cli/tables/table_row.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/refuse.h"
#include "model/names.h"
#include "topologies/topology.h"

namespace orrery::cli {

const std::vector<std::string>& table_columns() {
  static const std::vector<std::string> kColumns{"model",
                                                 "cluster",
                                                 "hosts",
                                                 "layers",
                                                 "hidden",
                                                 "heads",
                                                 "kv_heads",
                                                 "ffn",
                                                 "gated",
                                                 "seq",
                                                 "vocab",
                                                 "experts",
                                                 "top_k",
                                                 "lora_rank",
                                                 "lora_targets",
                                                 "gpus",
                                                 "tp",
                                                 "pp",
                                                 "cp",
                                                 "ep",
                                                 "folded",
                                                 "dp",
                                                 "virtual_stages",
                                                 "micro_batch",
                                                 "global_batch",
                                                 "recompute",
                                                 "sequence_parallel",
                                                 "tensor_pieces",
                                                 "zero",
                                                 "grad_reduce",
                                                 "states",
                                                 "precision",
                                                 "schedule",
                                                 "software"};
  return kColumns;
}

Result<TableHeader> read_table_header(const base::CsvRecord& record, const std::string& file,
                                      std::vector<std::string>& notes) {
  if (record.fault) return base::fail(*record.fault);
  const std::vector<std::string>& known = table_columns();
  base::ErrorSink sink;
  TableHeader header;
  header.count = record.cells.size();
  for (std::size_t i = 0; i < record.cells.size(); ++i) {
    const base::CsvCell& cell = record.cells[i];
    const std::string name(base::trim(cell.text));
    if (std::ranges::find(known, name) == known.end()) {
      if (const auto near = base::nearest(name, known))
        notes.push_back(
            fmt::format("{}:{}:{}: note: column '{}' is carried through; did you mean '{}'?", file,
                        cell.line, cell.column, name, *near));
      continue;
    }
    if (!header.cells.emplace(name, i).second)
      sink.error({file, cell.line, cell.column}, kDuplicateKey, "column '{}' stands there twice",
                 name);
  }
  return sink.result(std::move(header));
}

namespace {

constexpr base::IntRange kSize{1, 1 << 20};
constexpr base::IntRange kDegree{1, plan::kMaxWorldSize};
constexpr std::array<base::Named<bool>, 6> kBooleans{
    {{"yes", true}, {"no", false}, {"true", true}, {"false", false}, {"1", true}, {"0", false}}};
/// fp16 has bf16's bytes and peak; the check of a scaled loss costs a pass over the gradients that
/// nothing here prices.
constexpr std::string_view kFloat16 = "fp16";

/// Cells of one row by column; faults at their places.
class RowReader {
 public:
  RowReader(const base::CsvRecord& record, const TableHeader& header, const std::string& file)
      : record_(record), header_(header), file_(file) {}

  base::ErrorSink& sink() { return sink_; }

  base::SourceSpan where(std::string_view column) const {
    const base::CsvCell* cell = find(column);
    return cell ? base::SourceSpan{file_, cell->line, cell->column}
                : base::SourceSpan{file_, record_.line, 1};
  }
  /// Without white space; empty: not given.
  std::string text(std::string_view column) const {
    const base::CsvCell* cell = find(column);
    return cell ? std::string(base::trim(cell->text)) : std::string();
  }

  template <class... Args>
  void fault(std::string_view column, ErrorCode code, std::string hint,
             fmt::format_string<Args...> format, Args&&... args) {
    sink_.add(base::make_error(code, format, std::forward<Args>(args)...)
                  .at(where(column))
                  .with_hint(std::move(hint)));
  }

  /// Whole numbers, also as a table program writes them ("8.0").
  std::optional<std::int64_t> integer(std::string_view column, base::IntRange range) {
    const std::string given = text(column);
    if (given.empty()) return std::nullopt;
    const auto real = base::parse_real(given);
    if (!real || std::floor(*real) != *real || std::abs(*real) > 9e15) {
      fault(column, kBadValue, "a whole number is wanted", "{} is '{}'", column, given);
      return range.min;
    }
    const auto value = static_cast<std::int64_t>(*real);
    if (value >= range.min && value <= range.max) return value;
    fault(column, kOutOfRange,
          fmt::format("{} lies between {} and {}", column, range.min, range.max), "{} is {}",
          column, value);
    return range.min;
  }

  template <class Table>
  auto word(std::string_view column, const Table& words)
      -> std::optional<decltype(std::begin(words)->value)> {
    std::string given = base::to_lower(text(column));
    if (given.empty()) return std::nullopt;
    std::vector<std::string> names;
    for (const auto& w : words) {
      if (given == w.name) return w.value;
      names.emplace_back(w.name);
    }
    const auto near = base::nearest(given, names);
    fault(column, kBadValue,
          near ? fmt::format("did you mean '{}'?", *near)
               : fmt::format("one of {}", base::join(names, ", ")),
          "{} is '{}'", column, given);
    return std::nullopt;
  }

  void must_divide(std::string_view column, std::int64_t degree, std::int64_t n,
                   std::string_view what) {
    if (degree > 0 && n % degree != 0)
      fault(column, kInconsistent, {}, "{} = {} does not divide {} {}", column, degree, n, what);
  }

 private:
  const base::CsvCell* find(std::string_view column) const {
    const auto at = header_.cells.find(column);
    return at == header_.cells.end() || at->second >= record_.cells.size()
               ? nullptr
               : &record_.cells[at->second];
  }

  const base::CsvRecord& record_;
  const TableHeader& header_;
  const std::string& file_;
  base::ErrorSink sink_;
};

/// ⌊8/3 hidden⌋ rounded up to 256, or 4 hidden.
std::int64_t default_ffn(std::int64_t hidden, bool gated) {
  return gated ? (8 * hidden / 3 + 255) / 256 * 256 : 4 * hidden;
}

/// A size that a model needs: of the row, or of --model.
std::int64_t required_size(RowReader& r, std::string_view column, std::int64_t models) {
  const auto given = r.integer(column, kSize);
  if (given) return *given;
  if (models == 0)
    r.fault(column, kMissingKey, "state it, or give a model for all rows with --model",
            "{} is missing", column);
  return std::max<std::int64_t>(models, 1);
}

void read_experts(RowReader& r, model::ModelSpec& m) {
  const model::BlockShape before = m;
  m.experts = r.integer("experts", {0, 1 << 16}).value_or(m.experts);
  if (m.experts == 0) {
    m.experts_per_token = 0;
    return;
  }
  const std::int64_t usual =
      m.experts_per_token > 0 ? m.experts_per_token : std::min<std::int64_t>(2, m.experts);
  m.experts_per_token = r.integer("top_k", {1, 1 << 16}).value_or(usual);
  if (m.experts_per_token > m.experts)
    r.fault("top_k", kInconsistent, {}, "a token goes to {} experts, and there are {}",
            m.experts_per_token, m.experts);
  m.mlp_bias = false;  // experts have none
  // Groups of the command's model may not hold a row's experts; they change no price.
  if (m.experts != before.experts || m.experts_per_token != before.experts_per_token)
    m.routing.groups = m.routing.groups_per_token = 1;
}

/// Adapters of the row, or of the options.
void read_adapter(RowReader& r, const model::Adapter& usual, model::ModelSpec& m) {
  const std::int64_t rank =
      r.integer("lora_rank", {0, model::kLargestAdapter}).value_or(usual.rank);
  const std::string targets = r.text("lora_targets");
  const auto adapter =
      model::adapter_of(rank, targets.empty() ? model::targets_of(usual) : targets);
  if (!adapter)
    return r.sink().add(base::Diagnostic(adapter.error().front()).at(r.where("lora_targets")));
  auto adapted = model::with_adapter(m, *adapter);
  if (!adapted)
    return r.sink().add(base::Diagnostic(adapted.error().front()).at(r.where("lora_rank")));
  m = *std::move(adapted);
}

/// Counts stay exact below 1e15 parameters, 1000 times the largest model ever trained.
void check_total(RowReader& r, const model::ModelSpec& m) {
  const auto d = [](std::int64_t n) { return real(n); };
  const double block = 4 * d(m.hidden) * d(m.hidden) +
                       3 * d(m.hidden) * d(m.ffn) * d(std::max<std::int64_t>(m.experts, 1));
  const double total = d(m.layers) * block + d(m.vocab + m.max_positions) * d(m.hidden);
  if (total > 1e15)
    r.fault("layers", kOutOfRange, "at most 1e15 are counted exactly",
            "the sizes make a model of {:.2g} parameters", total);
}

void refuse_sizes(RowReader& r, const std::string& name, std::string hint) {
  for (const char* size :
       {"layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab", "experts", "top_k"}) {
    if (!r.text(size).empty())
      r.fault(size, kInconsistent, hint, "{} stands beside model '{}'", size, name);
  }
}

/// Tokens of a sequence: of the row, or asked for all rows, or the model's.
std::int64_t sequence_of(RowReader& r, const TableDefaults& defaults, std::int64_t models) {
  return r.integer("seq", {1, 1 << 24})
      .value_or(defaults.plan.sequence > 0 ? defaults.plan.sequence : models);
}

/// Sizes of a catalog's model stand as they are; rows say those of models without a name.
model::ModelSpec named_model(RowReader& r, const TableDefaults& defaults, const std::string& name) {
  model::ModelSpec m;
  auto found = model::find_model(name);
  if (!found) {
    for (base::Diagnostic& fault : found.error()) fault.where = r.where("model");
    r.sink().add(std::move(found.error()));
    return m;
  }
  m = *std::move(found);
  refuse_sizes(r, name, "name the model, or state its sizes");
  m.max_positions = sequence_of(r, defaults, m.max_positions);
  return m;
}

model::ModelSpec read_model(RowReader& r, const TableDefaults& defaults) {
  if (const std::string name = r.text("model"); !name.empty())
    return named_model(r, defaults, name);
  if (defaults.model && defaults.model->kinds() > 1) {
    model::ModelSpec m = *defaults.model;
    refuse_sizes(r, m.name, "its blocks are of several kinds: no row says the sizes of each");
    m.max_positions = sequence_of(r, defaults, m.max_positions);
    return m;
  }
  const auto gated = r.word("gated", kBooleans);
  const bool is_gated = gated.value_or(defaults.model ? defaults.model->gated_mlp : false);
  const bool kin = defaults.model && defaults.model->gated_mlp == is_gated;
  model::ModelSpec m =
      kin ? *defaults.model
          : model::family_defaults(is_gated ? model::Family::kLlama : model::Family::kGpt2);
  if (defaults.model && !kin) {  // its sizes, the other family's parts
    m.layers = defaults.model->layers;
    m.hidden = defaults.model->hidden;
    m.heads = defaults.model->heads;
    m.kv_heads = defaults.model->kv_heads;
    m.head_dim = defaults.model->head_dim;
    m.vocab = defaults.model->vocab;
  }
  const model::ModelSpec before = m;
  m.layers = required_size(r, "layers", m.layers);
  m.hidden = required_size(r, "hidden", m.hidden);
  m.heads = required_size(r, "heads", m.heads);
  m.kv_heads =
      r.integer("kv_heads", kSize)
          .value_or(before.kv_heads > 0 && m.heads == before.heads ? before.kv_heads : m.heads);
  m.ffn =
      r.integer("ffn", kSize)
          .value_or(before.ffn > 0 && m.hidden == before.hidden ? before.ffn
                                                                : default_ffn(m.hidden, is_gated));
  m.vocab = r.integer("vocab", {1, 1 << 30}).value_or(before.vocab > 0 ? before.vocab : 51200);
  m.max_positions =
      sequence_of(r, defaults, before.max_positions > 0 ? before.max_positions : 2048);
  read_experts(r, m);
  if (m.hidden != before.hidden) m.embedding_hidden = 0;  // as wide as the row's blocks
  if (m.hidden != before.hidden || m.heads != before.heads) {
    m.head_dim = m.hidden / m.heads;
    r.must_divide("heads", m.heads, m.hidden, "hidden features");
  }
  r.must_divide("kv_heads", m.kv_heads, m.heads, "heads");
  check_total(r, m);
  // Rows without a name of their own: equal sizes are one model.
  m.name = fmt::format("{}-l{}-h{}-a{}", is_gated ? "llama" : "gpt", m.layers, m.hidden, m.heads);
  return m;
}

void read_strategy(RowReader& r, TableRow& row) {
  plan::UniformOptions& p = row.plan;
  const auto degree = [&](std::string_view column, int& value) {
    if (const auto given = r.integer(column, kDegree)) value = as_int(*given);
  };
  degree("tp", p.tp);
  degree("pp", p.pp);
  degree("cp", p.cp);
  degree("ep", p.ep);
  degree("virtual_stages", p.virtual_stages);
  degree("tensor_pieces", p.tensor_pieces);
  p.zero = as_int(r.integer("zero", {0, 3}).value_or(p.zero));
  p.micro_batch = r.integer("micro_batch", {1, 1 << 24}).value_or(p.micro_batch);
  p.global_batch = r.integer("global_batch", {1, 1 << 24}).value_or(p.global_batch);
  p.recompute = r.word("recompute", model::names_up_to(plan::kLastRecompute)).value_or(p.recompute);
  p.grad_reduce =
      r.word("grad_reduce", model::names_up_to(plan::GradReduce::kEnd)).value_or(p.grad_reduce);
  p.states = r.word("states", model::names_up_to(plan::States::kHost)).value_or(p.states);
  // of one rank there is nothing to split
  p.sequence_parallel =
      r.word("sequence_parallel", kBooleans).value_or(p.sequence_parallel) && p.tp > 1;
  if (p.tp == 1) p.tensor_pieces = 1;
  p.folded = r.word("folded", kBooleans).value_or(p.folded) && p.tp > 1;
  p.schedule = r.word("schedule", model::names_up_to(plan::kLastSchedule))
                   .value_or(p.virtual_stages > 1 && !plan::is_v_shaped(p.schedule)
                                 ? plan::Schedule::kInterleaved
                                 : p.schedule);
  // which they are, with one chunk or on one rank
  if ((p.schedule == plan::Schedule::kInterleaved && p.virtual_stages == 1) ||
      (plan::is_v_shaped(p.schedule) && p.pp == 1))
    p.schedule = plan::Schedule::k1F1B;
  p.virtual_stages = p.chunks();
  auto precisions = model::names_up_to(model::kLastPrecision);
  precisions.push_back({kFloat16, model::Precision::kBFloat16});
  p.precision = r.word("precision", precisions).value_or(p.precision);
  if (r.text("precision") == kFloat16) row.note = "fp16 is priced as bf16";
  p.sequence = row.model.max_positions;
  p.uneven_stages = true;
}

/// What a person can mend in a cell, said of that cell; plan::validate() would say it of every
/// layer of every stage.
void check_fit(RowReader& r, const TableRow& row) {
  const model::ModelSpec& m = row.model;
  const plan::UniformOptions& p = row.plan;
  if (m.heads > 0) r.must_divide("tp", p.tp, m.heads, "heads");
  if (m.kv_heads != m.heads) r.must_divide("tp", p.tp, m.kv_heads, "kv_heads");
  r.must_divide("tp", p.tp, m.ffn, "ffn features");
  r.must_divide("cp", p.cp, p.sequence, "tokens of a sequence");
  if (p.cp > 1 && m.causal && p.sequence % (2 * p.cp) != 0)
    r.fault("cp", kInconsistent, "a ring keeps 2 cp chunks of a sequence",
            "{} chunks do not divide {} tokens", 2 * p.cp, p.sequence);
  if (p.sequence_parallel)
    r.must_divide("tp", std::int64_t{p.tp} * p.cp, p.sequence, "tokens of a sequence (tp * cp)");
  const std::int64_t stages = std::int64_t{p.pp} * p.virtual_stages;
  if (stages > m.layers)
    r.fault("pp", kInconsistent, fmt::format("pp * virtual_stages is at most {}", m.layers),
            "{} stages for {} layers", stages, m.layers);
  if (p.virtual_stages > 1 && p.pp == 1)
    r.fault("virtual_stages", kInconsistent, "use pp above 1, or virtual_stages 1",
            "{} virtual stages without a pipeline", p.virtual_stages);
  if (plan::is_v_shaped(p.schedule)
          ? p.virtual_stages != 2
          : p.virtual_stages > 1 && p.schedule != plan::Schedule::kInterleaved)
    r.fault("schedule", kInconsistent, "interleaved has several, zb-v and dualpipe-v two",
            "schedule {} with {} virtual stages", plan::to_string(p.schedule), p.virtual_stages);
  std::int64_t experts = 0;
  for (int kind = 0; kind < m.kinds(); ++kind) experts = std::max(experts, m.of_kind(kind).experts);
  if (p.ep > 1 && experts == 0)
    r.fault("ep", kInconsistent, "state experts, or drop ep", "ep = {} and no experts", p.ep);
  if (p.ep > 1 && experts > 0) r.must_divide("ep", p.ep, experts, "experts");
}

}  // namespace

Result<TableRow> read_table_row(const base::CsvRecord& record, const TableHeader& header,
                                const TableDefaults& defaults, const std::string& file) {
  if (record.fault) return base::fail(*record.fault);
  RowReader r(record, header, file);
  if (record.cells.size() != header.count) {
    const base::CsvCell& last = record.cells[std::min(record.cells.size(), header.count + 1) - 1];
    r.sink().error({file, last.line, last.column}, kParse, "the row has {} cells, the header {}",
                   record.cells.size(), header.count);
    return r.sink().result(TableRow{});
  }
  TableRow row{.line = record.line,
               .cluster = r.text("cluster"),
               .model = {},
               .plan = defaults.plan,
               .software = r.text("software"),
               .note = {}};
  if (row.cluster.empty()) row.cluster = defaults.cluster.empty() ? "dgx-a100" : defaults.cluster;
  row.hosts = r.integer("hosts", {1, topologies::kMaxHosts}).value_or(defaults.hosts);
  row.gpus = r.integer("gpus", kDegree).value_or(0);
  row.dp = r.integer("dp", kDegree).value_or(defaults.plan.dp);
  row.model = read_model(r, defaults);
  read_adapter(r, defaults.model ? defaults.model->adapter : model::Adapter{}, row.model);
  read_strategy(r, row);
  if (r.sink().ok()) check_fit(r, row);
  return r.sink().result(std::move(row));
}

Result<void> resolve_row(TableRow& row, std::int64_t devices_per_host,
                         const base::CsvRecord& record, const TableHeader& header,
                         const std::string& file) {
  RowReader r(record, header, file);
  plan::UniformOptions& p = row.plan;
  const std::int64_t replica = std::int64_t{p.tp} * p.cp * p.pp;
  if (row.gpus == 0)
    row.gpus = row.dp > 0      ? replica * row.dp
               : row.hosts > 0 ? row.hosts * devices_per_host
                               : replica;
  if (row.dp == 0) {
    if (row.gpus % replica != 0)
      r.fault("gpus", kInconsistent, "dp is what they leave",
              "tp {} * cp {} * pp {} does not divide {} gpus", p.tp, p.cp, p.pp, row.gpus);
    row.dp = std::max<std::int64_t>(row.gpus / replica, 1);
  }
  if (r.sink().ok() && replica * row.dp != row.gpus)
    r.fault("gpus", kInconsistent, "leave dp or gpus empty, and it is derived",
            "tp {} * cp {} * pp {} * dp {} is {}, not {} gpus", p.tp, p.cp, p.pp, row.dp,
            replica * row.dp, row.gpus);
  if (row.gpus > plan::kMaxWorldSize)
    r.fault("gpus", kOutOfRange, fmt::format("a plan has at most {}", plan::kMaxWorldSize),
            "{} gpus", row.gpus);
  const std::int64_t needed = (row.gpus + devices_per_host - 1) / devices_per_host;
  if (row.hosts == 0) row.hosts = needed;
  if (row.hosts < needed)
    r.fault("hosts", kInconsistent, fmt::format("{} would do", needed),
            "{} hosts of {} devices for {} gpus", row.hosts, devices_per_host, row.gpus);
  if (row.hosts > topologies::kMaxHosts)
    r.fault("gpus", kOutOfRange, fmt::format("a cluster has at most {}", topologies::kMaxHosts),
            "{} hosts", row.hosts);
  if (!r.sink().ok()) return r.sink().result();
  p.dp = as_int(row.dp);
  if (p.ep > 1)
    r.must_divide(
        "ep", p.ep, std::int64_t{p.dp} * p.cp * (p.folded ? p.tp : 1),
        p.folded ? "ranks of a stage (tp * cp * dp)" : "ranks of the data group (cp * dp)");
  const std::int64_t unit = p.dp * p.micro_batch;
  if (p.global_batch % unit != 0) {
    r.fault("global_batch", kInconsistent, {},
            "dp {} * micro_batch {} does not divide a global batch of {} sequences", p.dp,
            p.micro_batch, p.global_batch);
  } else if (p.schedule == plan::Schedule::kInterleaved && p.global_batch / unit % p.pp != 0) {
    r.fault("global_batch", kInconsistent, "the interleaved schedule takes them in groups of pp",
            "{} micro-batches on {} pipeline ranks with virtual stages", p.global_batch / unit,
            p.pp);
  }
  return r.sink().result();
}

}  // namespace orrery::cli

#pragma once
/// \file
/// One row of `orrery simulate --table`: a model by its sizes, a cluster, and one strategy for all
/// layers.
///
/// An empty cell takes the option of the same name where the command has one (--tp, --seq is
/// --sequence-length), else what docs/schemas.md says. Derived, when empty:
///
///     dp        gpus / (tp cp pp)
///     gpus      tp cp pp dp, or all devices of the hosts when those are given and dp is not
///     hosts     ⌈gpus / devices of a host⌉
///     kv_heads  heads;  head size = hidden / heads
///     ffn       4 hidden, or gated, as Llama (arXiv 2302.13971, section 2.2): 2/3 of it,
///               ⌊8/3 hidden⌋ rounded up to 256
///
/// Without `gated` a model is a GPT-2 (LayerNorm, learned positions, GELU, biases, tied
/// embeddings), with it a Llama (RMSNorm, rotary positions, SiLU, no biases, separate head);
/// experts take Mixtral's place of the MLP.
#include <map>

#include "base/csv.h"
#include "base/options.h"
#include "base/result.h"
#include "model/spec.h"
#include "plan/program/plan.h"

namespace orrery::cli {

/// Columns that are read; docs/schemas.md says what an empty cell means.
const std::vector<std::string>& table_columns();
/// Columns that are written; and with --bands.
inline const std::vector<std::string> kTableResults{"step_time_s", "peak_memory_bytes", "mfu",
                                                    "status", "message"};
inline const std::vector<std::string> kTableBands{"step_time_low_s", "step_time_high_s"};

/// What empty cells mean beyond the table of columns: options of the command line.
struct TableDefaults {
  std::optional<model::ModelSpec> model;  // --model: shapes
  std::string cluster;                    // empty: dgx-a100
  std::int64_t hosts = 0;                 // 0: derived
  plan::UniformOptions plan;              // dp 0: derived; sequence 0: the model's, or 2048
};

/// A header's columns: [column of table_columns()] -> cell of a record.
struct TableHeader {
  std::map<std::string, std::size_t, std::less<>> cells;
  std::size_t count = 0;
};
/// Error: kDuplicateKey for a column given twice. `notes` gets a line for a column that looks like
/// a slip of a known one.
base::Result<TableHeader> read_table_header(const base::CsvRecord& record, const std::string& file,
                                            std::vector<std::string>& notes);

/// A row that was understood; whether it suits its cluster is resolve_row()'s question.
struct TableRow {
  std::uint32_t line = 0;
  std::string cluster;
  std::int64_t hosts = 0, gpus = 0, dp = 0;  // 0: derived
  model::ModelSpec model;
  plan::UniformOptions plan;
  std::string software;  // empty: that of all rows
  std::string note;      // "fp16 is priced as bf16"
};
/// Errors: every fault of the row at its line:column.
base::Result<TableRow> read_table_row(const base::CsvRecord& record, const TableHeader& header,
                                      const TableDefaults& defaults, const std::string& file);

/// Fills in hosts, gpus and dp for a cluster of `devices_per_host`. Errors: as above, at the cells
/// of `record`.
base::Result<void> resolve_row(TableRow& row, std::int64_t devices_per_host,
                               const base::CsvRecord& record, const TableHeader& header,
                               const std::string& file);

}  // namespace orrery::cli

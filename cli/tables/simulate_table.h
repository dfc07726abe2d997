#pragma once
#include "base/result.h"
#include "cli/inputs.h"
#include "cli/tables/table_row.h"

namespace orrery::cli {

struct TableRequest {
  std::string rows_file, out_file;      // out_file empty: the results go to stdout
  PriceNames prices;                    // of all rows; a row may name its software
  std::int64_t memory_limit_bytes = 0;  // 0: of each row's device
  int threads = 1;
  bool bands = false;  // adds the columns of kTableBands
  TableDefaults defaults;
};

/// `orrery simulate --table`: one plan a row, in the order of the rows, the same bytes with any
/// number of threads. A faulty row has status `error`, its diagnostics in `message` and on stderr,
/// and does not keep the others from running. A plan that needs more memory than there is has
/// status `out_of_memory` and all its numbers. The result is the exit code: 1 when a row was
/// faulty, else 0. Errors: of the file as a whole.
base::Result<int> simulate_table(const TableRequest& request);

}  // namespace orrery::cli

#pragma once
/// Forward + backward of whole blocks, trained: what a profile's prices of their operations are
/// held against.
#include <string>
#include <vector>

#include "base/result.h"
#include "model/segment.h"
#include "model/spec.h"

namespace orrery::executor {

struct BlockCase {
  model::ModelSpec model;                  // of one layer
  std::int64_t sequences = 1, tokens = 0;  // of a micro-batch
};

struct BlockTiming {
  struct Operation {
    model::SegmentShape shape;
    model::Phase phase = model::Phase::kF;
  };
  std::vector<Operation> operations;  // of one micro-batch, in order
  // from the first operation's begin to what follows the last: median of micro-batches, mean of
  // ranks
  double seconds = 0;
};

/// All cases take turns, on all ranks at once. On rank 0 the answer, elsewhere the same. Errors:
/// kBadValue, kInconsistent (ranks), kDevice.
base::Result<std::vector<BlockTiming>> time_blocks(const std::vector<BlockCase>& cases,
                                                   const std::string& device,
                                                   model::Precision precision);

}  // namespace orrery::executor

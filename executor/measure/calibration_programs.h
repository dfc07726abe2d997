#pragma once
#include <cstdint>
#include <vector>

#include "model/spec.h"
#include "plan/program/program.h"

namespace orrery::executor {

/// The Programs whose segments are measured: one process training the shares that tp and dp would
/// leave it. Segments of ZeRO do not depend on the sequences, so `sharded` at one of their numbers
/// is enough.
std::vector<plan::Program> programs_of(const model::ModelSpec& model, model::Precision precision,
                                       int ranks, std::int64_t sequences, bool sharded,
                                       std::int64_t tokens);

/// Steps whose collectives are held against the same alone: of tensor parallelism without and with
/// sequence parallelism, of data parallelism, of ZeRO-3.
std::vector<plan::Program> communicating_programs(const model::ModelSpec& model,
                                                  model::Precision precision, int world,
                                                  std::int64_t sequences, std::int64_t tokens);

}  // namespace orrery::executor

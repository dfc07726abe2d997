#pragma once
#include "executor/transport/communicator.h"

namespace orrery::executor {

/// An all-to-all as the Program means it (plan/program/program.h): blocks of dimension 0, or tokens
/// (dimension 1) against features (dimension 2) of [b, tokens, features], packed and unpacked
/// around the transport's exchange of blocks. Errors: those of the transport.
base::Result<void> all_to_all(Communicator& communicator, const Channel& channel,
                              const plan::Op& op, const at::Tensor& in, at::Tensor& out);

}  // namespace orrery::executor

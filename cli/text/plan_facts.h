#pragma once
#include <string>

#include "plan/program/plan.h"

namespace orrery::cli {

/// The plan in words: "Tensor parallel 4, data parallel 8; 4 pipeline ranks of 11 virtual stages,
/// 64 micro-batches; ZeRO 1; 54 of 80 layers recompute." Degrees of the layers, "1 to 4" where they
/// differ.
std::string plan_facts(const plan::Plan& plan);

}  // namespace orrery::cli

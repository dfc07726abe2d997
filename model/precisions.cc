#include "model/precisions.h"

#include "model/names.h"

namespace orrery::model {
namespace {

constexpr std::string_view kMixed = "Micikevicius et al., arXiv 1710.03740",
                           kEngine = "Transformer Engine, common/recipe";

std::pair<std::string_view, std::string_view> facts_of(Precision p) {
  switch (p) {
    case Precision::kFloat32: return {"all in fp32", "IEEE 754"};
    case Precision::kBFloat16:
      return {"bf16 with fp32 master weights, gradients and moments", kMixed};
    case Precision::kFp8Delayed:
      return {"bf16, products of blocks in fp8; a scale for each tensor, from steps before",
              kEngine};
    case Precision::kFp8Current:
      return {"the same; the scale is the tensor's own", "Transformer Engine; torchao tensorwise"};
    case Precision::kFp8Block:
      return {"the same; scales of 1 x 128 and 128 x 128", "DeepSeek-V3, arXiv 2412.19437"};
    case Precision::kMxFp8:
      return {"the same; scales of 1 x 32 (Blackwell)", "OCP Microscaling Formats 1.0"};
    case Precision::kNvFp4:
      return {"bf16, products of blocks in fp4; scales of 1 x 16 and of the tensor (Blackwell)",
              "arXiv 2509.25149"};
  }
  return {};
}

}  // namespace

std::vector<PrecisionEntry> list_precisions() {
  std::vector<PrecisionEntry> all;
  for (const auto& [name, value] : names_up_to(kLastPrecision))
    all.push_back({name, facts_of(value).first, facts_of(value).second});
  return all;
}

}  // namespace orrery::model

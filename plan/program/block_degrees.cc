#include "plan/program/block_degrees.h"

namespace orrery::plan {

std::vector<Extent> tensor_extents(const model::ModelSpec& block) {
  std::vector<Extent> all{{block.heads, "heads"}};
  if (block.kv_heads != block.heads) all.push_back({block.kv_heads, "kv_heads"});
  all.push_back({block.ffn, block.experts > 0 ? "ffn features of an expert" : "ffn features"});
  if (block.shared_ffn > 0) all.push_back({block.shared_ffn, "ffn features of the shared expert"});
  if (block.scans()) {
    all.push_back({block.scan.heads, "heads of a scan"});
    all.push_back({block.scan.groups, "groups of a scan"});
  }
  return all;
}

std::string_view unsplit_by_tensor(const model::ModelSpec& block) {
  if (block.qk_norm == model::QkNorm::kWhole) return "a norm over all heads";
  return block.indexed() ? "the heads that an indexer learns from" : "";
}

std::string_view unsplit_by_context(const model::ModelSpec& block) {
  return block.mixer == model::Mixer::kAttention ? "" : "the tokens of latent attention or a scan";
}

}  // namespace orrery::plan

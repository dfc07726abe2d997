#include "cli/block_shapes.h"

namespace orrery::cli {

std::vector<executor::BlockCase> blocks_of(std::span<const BlockRow> rows) {
  std::vector<executor::BlockCase> cases;
  for (const BlockRow& r : rows) {
    const bool gpt = r.family == model::Family::kGpt2;
    model::ModelSpec m = model::find_model(gpt ? "gpt2-tiny" : "llama-tiny").value();
    m.name = fmt::format("{} {} x {}, {} heads, {} x {} tokens", gpt ? "GPT" : "Llama", r.hidden,
                         r.ffn, r.heads, r.sequences, r.tokens);
    m.layers = 1;
    m.hidden = r.hidden;
    m.heads = r.heads;
    m.kv_heads = r.kv_heads;
    m.head_dim = r.hidden / r.heads;
    m.ffn = r.ffn;
    m.max_positions = r.tokens;
    cases.push_back({.model = std::move(m), .sequences = r.sequences, .tokens = r.tokens});
  }
  return cases;
}

std::vector<executor::BlockCase> held_out_blocks(bool cpu) {
  return blocks_of(cpu ? std::span<const BlockRow>(kHeldOutOnCpu) : kHeldOutOnGpu);
}

}  // namespace orrery::cli

// Hugging Face config.json from arbitrary bytes: a model whose counts are positive, or diagnostics.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto node = orrery::base::Node::parse_text(text, "config.json");
  if (!node) return 0;
  const auto spec = orrery::model::read_hf_config(*node, "fuzz");
  if (!spec) {
    ORRERY_CHECK(!spec.error().empty() && spec.error().front().where.file == "config.json");
    return 0;
  }
  ORRERY_CHECK(spec->parameters() > 0 && spec->block_parameters() > 0);
  ORRERY_CHECK(spec->forward_matmul_flops(2048) > 0);
  ORRERY_CHECK(spec->heads % spec->kv_heads == 0);
  return 0;
}

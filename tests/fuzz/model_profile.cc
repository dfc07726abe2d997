// A profile from arbitrary bytes: what is accepted has work for every shape and travels to JSON and
// back.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "model/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto node = base::Node::parse_text(text, "profile.json");
  if (!node) return 0;
  const auto profile = model::read_profile(*node);
  if (!profile) {
    ORRERY_CHECK(!profile.error().empty() && profile.error().front().where.file == "profile.json");
    return 0;
  }
  for (const model::OperatorPoint& point : profile->operators) {
    for (const model::Phase phase :
         {model::Phase::kF, model::Phase::kB, model::Phase::kG, model::Phase::kBG}) {
      ORRERY_CHECK(model::work(point.shape, phase).transient_bytes >= 0);
    }
  }
  const auto again = base::Node::parse_text(base::to_text(model::to_json(*profile)), "again.json");
  ORRERY_CHECK(again.has_value());
  const auto back = model::read_profile(*again);
  ORRERY_CHECK(back.has_value() && *back == *profile);
  return 0;
}

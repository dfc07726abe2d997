#include "costmodel/profiles/device_names.h"

#include <string>

#include "base/text.h"

namespace orrery::costmodel {

bool names_device(std::string_view given, std::string_view device) {
  const std::string a = base::to_lower(given);
  std::string b = base::to_lower(device);
  constexpr std::string_view kCore = "core of ";
  if (a == b) return true;
  if (b.starts_with(kCore)) b = b.substr(kCore.size());
  const auto prefix = [](const std::string& s, const std::string& t) {
    return !s.empty() && t.starts_with(s) &&
           (t.size() == s.size() || t[s.size()] == '-' || t[s.size()] == ' ');
  };
  return prefix(a, b) || prefix(b, a);
}

}  // namespace orrery::costmodel

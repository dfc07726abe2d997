#pragma once
#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace orrery::golden {

/// A command and what it needs; its whole output is expected/<name>.txt.
struct Case {
  std::string name;
  std::string arguments;
  std::map<std::string, std::string> files = {};  // made before the command runs
};
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.arguments; }

std::vector<Case> cases();

}  // namespace orrery::golden

#include "tests/support/paths.h"

namespace orrery::tests {

constinit const char* const kSourceDir = ORRERY_SOURCE_DIR;
constinit const char* const kCli = ORRERY_CLI;

}  // namespace orrery::tests

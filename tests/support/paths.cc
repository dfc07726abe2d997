#include "tests/support/paths.h"

namespace orrery::tests {

constinit const char* const kSourceDir = ORRERY_SOURCE_DIR;
constinit const char* const kCli = ORRERY_CLI;
constinit const char* const kCMake = ORRERY_CMAKE;
constinit const char* const kBuildDir = ORRERY_BUILD_DIR;

}  // namespace orrery::tests

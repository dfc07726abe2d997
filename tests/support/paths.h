#pragma once
/// Where the checkout and the command line under test lie. Not compile definitions, so that a
/// compiler cache serves every checkout.

namespace orrery::tests {

extern const char* const kSourceDir;  // root of the checkout
extern const char* const kCli;        // the program `orrery` of this build
extern const char* const kCMake;      // cmake that configured it
extern const char* const kBuildDir;   // of this build

}  // namespace orrery::tests

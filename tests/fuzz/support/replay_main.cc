// main() of the fuzz targets where the compiler has no libFuzzer: every seed, then mutations of
// every seed that depend on nothing but the seed. Usage: fuzz_NAME FOLDER_OR_FILE...
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/rng.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

/// One of: cut, flip a byte, delete a stretch, repeat a stretch, overwrite with a byte that readers
/// care about.
std::string mutate(std::string bytes, orrery::base::Rng& rng) {
  constexpr std::string_view kSpecial = "\t\n\r\"'{}[]:,-#&*!|>%@`\\0e.+~<? \x80\xff";
  const std::uint64_t steps = 1 + rng.below(4);
  for (std::uint64_t step = 0; step < steps && !bytes.empty(); ++step) {
    const std::size_t at = rng.below(bytes.size());
    const std::size_t length = 1 + rng.below(std::min<std::size_t>(16, bytes.size() - at));
    switch (rng.below(5)) {
      case 0: bytes.resize(at); break;
      case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng.below(8))); break;
      case 2: bytes.erase(at, length); break;
      case 3: bytes.insert(at, bytes.substr(at, length)); break;
      case 4: bytes[at] = kSpecial[rng.below(kSpecial.size())]; break;
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kMutationsPerSeed = 400;
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    if (std::filesystem::is_directory(argv[i])) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
        if (entry.is_regular_file()) files.push_back(entry.path());
      }
    } else {
      files.emplace_back(argv[i]);
    }
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    fmt::print(stderr, "no seeds\n");
    return 1;
  }
  run("");
  std::uint64_t seed = 0;
  for (const auto& file : files) {
    const auto bytes = orrery::base::read_file(file);
    if (!bytes) {
      fmt::print(stderr, "{}\n", orrery::base::to_string(bytes.error()));
      return 1;
    }
    run(*bytes);
    orrery::base::Rng rng(++seed);
    for (int i = 0; i < kMutationsPerSeed; ++i) run(mutate(*bytes, rng));
  }
  fmt::print("{} seeds, {} mutations each\n", files.size(), kMutationsPerSeed);
  return 0;
}

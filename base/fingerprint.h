#pragma once
/// Fingerprint of a run or an input: 128 bits of XXH3 over canonical bytes, printed as 32
/// hexadecimal digits.
///
/// Canonical: integers are 8 bytes little-endian, a text is its length (8 bytes) and its bytes, a
/// double its IEEE bits with -0 as +0 and every NaN the same. So add("ab"), add("c") differs from
/// add("a"), add("bc"), and the value is the same on every machine.

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace orrery::base {

class Fingerprint {
 public:
  Fingerprint();
  ~Fingerprint();

  template <std::integral I>
  Fingerprint& add(I value) {
    return add_word(static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
  }
  /// Each as add(value) would.
  Fingerprint& add(std::span<const std::int64_t> values);
  Fingerprint& add(double value);
  Fingerprint& add(std::string_view text);
  Fingerprint& add(const char* text) { return add(std::string_view(text)); }

  /// Digest of what was added so far, 32 lower-case hexadecimal digits; more can be added after.
  [[nodiscard]] std::string hex() const;

 private:
  Fingerprint& add_word(std::uint64_t word);
  struct State;
  std::unique_ptr<State> state_;
};

/// Fingerprint of one text.
[[nodiscard]] std::string fingerprint(std::string_view text);

}  // namespace orrery::base

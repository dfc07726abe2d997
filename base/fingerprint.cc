#include "base/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

namespace orrery::base {

/// Words are handed to XXH3 in portions: its call costs more than eight bytes' worth of hashing.
struct Fingerprint::State {
  XXH3_state_t xxh;
  std::array<unsigned char, 512> pending;
  std::size_t used = 0;

  void flush() {
    static_cast<void>(XXH3_128bits_update(&xxh, pending.data(), used));
    used = 0;
  }
};

Fingerprint::Fingerprint() : state_(std::make_unique<State>()) {
  static_cast<void>(XXH3_128bits_reset(&state_->xxh));
}
Fingerprint::~Fingerprint() = default;

Fingerprint& Fingerprint::add_word(std::uint64_t word) {
  State& s = *state_;
  if (s.used == s.pending.size()) s.flush();
  // a copy of its own: written in place, each byte might be s.used
  std::array<unsigned char, 8> bytes{};
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(word >> (8 * i));
  std::memcpy(s.pending.data() + s.used, bytes.data(), bytes.size());
  s.used += bytes.size();
  return *this;
}

Fingerprint& Fingerprint::add(std::span<const std::int64_t> values) {
  if constexpr (std::endian::native == std::endian::little) {
    state_->flush();
    static_cast<void>(XXH3_128bits_update(&state_->xxh, values.data(), values.size_bytes()));
  } else {
    for (const std::int64_t value : values) add(value);
  }
  return *this;
}

Fingerprint& Fingerprint::add(double value) {
  if (value == 0) value = 0.0;
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  return add_word(std::bit_cast<std::uint64_t>(value));
}

Fingerprint& Fingerprint::add(std::string_view text) {
  add_word(text.size());
  state_->flush();
  static_cast<void>(XXH3_128bits_update(&state_->xxh, text.data(), text.size()));
  return *this;
}

std::string Fingerprint::hex() const {
  State whole = *state_;
  whole.flush();
  const XXH128_hash_t digest = XXH3_128bits_digest(&whole.xxh);
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

std::string fingerprint(std::string_view text) { return Fingerprint().add(text).hex(); }

}  // namespace orrery::base

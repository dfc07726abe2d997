#pragma once
/// \file
/// A hash table of prices that only grows. A search asks tens of thousands of times for what it has
/// priced, so a look-up touches one slot and one entry: digests lie side by side, entries in
/// blocks. References stay valid as long as the table.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace orrery::costmodel {

template <std::size_t kWords, class Value>
class PriceTable {
 public:
  using Key = std::array<std::uint64_t, kWords>;
  struct Found {
    Value& value;  // as made by its default constructor, if fresh
    bool fresh;
  };
  Found operator[](const Key& key) {
    if (2 * entries_ >= slots_.size()) grow();
    const std::uint64_t digest = digest_of(key);
    Slot& slot = slots_[slot_of(digest, &key)];
    if (slot.entry != nullptr) return {slot.entry->value, false};
    if (entries_++ % kBlock == 0) blocks_.push_back(std::make_unique<Entry[]>(kBlock));
    Entry& entry = blocks_.back()[(entries_ - 1) % kBlock];
    entry.key = key;
    slot = {digest, &entry};
    return {entry.value, true};
  }
  std::size_t size() const { return entries_; }

 private:
  static constexpr std::size_t kBlock = 32, kFirstSlots = 256;
  struct Entry {
    Key key;
    Value value;
  };
  struct Slot {
    std::uint64_t digest = 0;
    Entry* entry = nullptr;
  };
  static std::uint64_t digest_of(const Key& key) {
    std::uint64_t digest = 0;
    for (const std::uint64_t word : key) {
      digest = (digest ^ word) * 0x9e3779b97f4a7c15ULL;
      digest ^= digest >> 32;
    }
    return digest;
  }
  static bool equal(const Key& a, const Key& b) {  // in line: a call of memcmp takes longer
    std::uint64_t differ = 0;
    for (std::size_t i = 0; i < kWords; ++i) differ |= a[i] ^ b[i];
    return differ == 0;
  }
  /// Where the key is, or would be; no key: a free slot.
  std::size_t slot_of(std::uint64_t digest, const Key* key) const {
    const std::size_t mask = slots_.size() - 1;
    const auto taken = [&](const Slot& s) {
      return s.entry != nullptr &&
             !(key != nullptr && s.digest == digest && equal(s.entry->key, *key));
    };
    std::size_t at = digest & mask;
    while (taken(slots_[at])) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    std::vector<Slot> before(slots_.empty() ? kFirstSlots : 2 * slots_.size());
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.entry != nullptr) slots_[slot_of(slot.digest, nullptr)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  std::vector<std::unique_ptr<Entry[]>> blocks_;
  std::size_t entries_ = 0;
};

}  // namespace orrery::costmodel

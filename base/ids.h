#pragma once
/// Dense indices with a type: a `LinkId` cannot index a vector of devices. And names by enumerator.
///
///   struct Link; using LinkId = Id<struct LinkTag>;
///   IdVector<LinkId, Link> links;  LinkId ib = links.push_back(...);  links[ib]
///   for (LinkId id : links.ids()) …

#include <fmt/format.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::base {

/// Index of a Tag object, from 0. No arithmetic, no conversion to int: raw() only.
/// Default-constructed = none.
template <class Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(std::uint32_t v) : v_(v) {}
  [[nodiscard]] constexpr std::uint32_t raw() const { return v_; }
  [[nodiscard]] constexpr bool valid() const { return v_ != kNone; }
  constexpr auto operator<=>(const Id&) const = default;

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t v_ = kNone;
};

/// Names of enumerators 0 to `kLast`, in their order. Another number of names does not compile.
template <auto kLast>
class EnumNames {
 public:
  template <class... Name>
  requires(sizeof...(Name) == as_index(kLast) + 1) constexpr explicit EnumNames(Name... names)
      : names_{names...} {}
  constexpr std::string_view operator[](decltype(kLast) e) const { return names_[as_index(e)]; }

 private:
  std::array<std::string_view, as_index(kLast) + 1> names_;
};

/// std::vector that can be indexed only by its own Id; the index is always checked.
template <class I, class T>
class IdVector {
 public:
  IdVector() = default;
  explicit IdVector(std::size_t n, const T& value = T{}) : data_(n, value) {}

  I push_back(T value) {
    data_.push_back(std::move(value));
    return I(count_of(data_) - 1);
  }
  void reserve(std::size_t n) { data_.reserve(n); }
  void resize(std::size_t n, const T& value = T{}) { data_.resize(n, value); }

  [[nodiscard]] typename std::vector<T>::reference operator[](I i) {
    ORRERY_CHECK(i.raw() < data_.size(), "id {} of {}", i.raw(), data_.size());
    return data_[i.raw()];
  }
  [[nodiscard]] typename std::vector<T>::const_reference operator[](I i) const {
    ORRERY_CHECK(i.raw() < data_.size(), "id {} of {}", i.raw(), data_.size());
    return data_[i.raw()];
  }
  [[nodiscard]] bool contains(I i) const { return i.raw() < data_.size(); }
  [[nodiscard]] std::size_t size() const { return data_.size(); }
  [[nodiscard]] bool empty() const { return data_.empty(); }
  /// The ids 0 … n-1, for range-based for (clang 14 takes no pipe of views).
  struct Ids {
    struct Iterator {
      std::uint32_t v;
      I operator*() const { return I(v); }
      void operator++() { ++v; }
      bool operator==(const Iterator&) const = default;
    };
    std::uint32_t n;
    Iterator begin() const { return {0}; }
    Iterator end() const { return {n}; }
  };
  Ids ids() const { return {count_of(data_)}; }
  [[nodiscard]] auto begin() { return data_.begin(); }
  [[nodiscard]] auto end() { return data_.end(); }
  [[nodiscard]] auto begin() const { return data_.begin(); }
  [[nodiscard]] auto end() const { return data_.end(); }
  /// The elements in order of id. Not for T = bool.
  [[nodiscard]] std::span<const T> raw() const { return data_; }
  [[nodiscard]] std::span<T> raw() { return data_; }

  bool operator==(const IdVector&) const = default;

 private:
  std::vector<T> data_;
};

/// Items by group.
struct Csr {
  std::vector<std::uint32_t> offsets, items;
  /// Ascending.
  std::span<const std::uint32_t> of(std::uint32_t group) const {
    return std::span(items).subspan(offsets[group], offsets[group + 1] - offsets[group]);
  }
};

/// Groups the items 0..count-1 by key(item) < groups (counting sort).
template <typename Key>
Csr group_by(std::uint32_t count, std::uint32_t groups, const Key& key) {
  Csr csr{std::vector<std::uint32_t>(as_index(groups) + 1, 0), std::vector<std::uint32_t>(count)};
  for (std::uint32_t i = 0; i < count; ++i) ++csr.offsets[key(i) + 1];
  for (std::uint32_t g = 0; g < groups; ++g) csr.offsets[g + 1] += csr.offsets[g];
  std::vector<std::uint32_t> next = csr.offsets;
  for (std::uint32_t i = 0; i < count; ++i) csr.items[next[key(i)]++] = i;
  return csr;
}

}  // namespace orrery::base

#pragma once
/// Dense indices with a type: a `LinkId` cannot index a vector of devices.
///
///   struct Link; using LinkId = Id<struct LinkTag>;
///   IdVector<LinkId, Link> links;  LinkId ib = links.push_back(...);  links[ib]
///   for (LinkId id : links.ids()) …

#include <fmt/format.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"

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

/// The ids 0 … n-1, for range-based for.
template <class I>
class IdRange {
 public:
  class iterator {
   public:
    using value_type = I;
    using difference_type = std::ptrdiff_t;
    constexpr iterator() = default;
    constexpr explicit iterator(std::uint32_t v) : v_(v) {}
    constexpr I operator*() const { return I(v_); }
    constexpr iterator& operator++() {
      ++v_;
      return *this;
    }
    constexpr iterator operator++(int) {
      iterator old = *this;
      ++v_;
      return old;
    }
    constexpr bool operator==(const iterator&) const = default;

   private:
    std::uint32_t v_ = 0;
  };
  constexpr explicit IdRange(std::uint32_t n) : n_(n) {}
  [[nodiscard]] constexpr iterator begin() const { return iterator(0); }
  [[nodiscard]] constexpr iterator end() const { return iterator(n_); }

 private:
  std::uint32_t n_;
};

/// std::vector that can be indexed only by its own Id; the index is always checked.
template <class I, class T>
class IdVector {
 public:
  IdVector() = default;
  explicit IdVector(std::size_t n, const T& value = T{}) : data_(n, value) {}

  I push_back(T value) {
    data_.push_back(std::move(value));
    return I(static_cast<std::uint32_t>(data_.size() - 1));
  }
  void reserve(std::size_t n) { data_.reserve(n); }
  void resize(std::size_t n, const T& value = T{}) { data_.resize(n, value); }
  void clear() { data_.clear(); }

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
  [[nodiscard]] IdRange<I> ids() const {
    return IdRange<I>(static_cast<std::uint32_t>(data_.size()));
  }
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

}  // namespace orrery::base

template <class Tag>
struct std::hash<orrery::base::Id<Tag>> {
  std::size_t operator()(orrery::base::Id<Tag> id) const noexcept {
    return std::hash<std::uint32_t>{}(id.raw());
  }
};

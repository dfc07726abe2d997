#pragma once
/// Tables of names for readers, derived from to_string() so that each name stands once.

#include <vector>

#include "base/config.h"
#include "base/numbers.h"

namespace orrery::model {

/// Rows of every enumerator from 0 to `last`, in order.
template <class E>
std::vector<base::Named<E>> names_up_to(E last) {
  std::vector<base::Named<E>> rows;
  for (int i = 0; i <= as_int(last); ++i)
    rows.push_back({to_string(static_cast<E>(i)), static_cast<E>(i)});
  return rows;
}

}  // namespace orrery::model

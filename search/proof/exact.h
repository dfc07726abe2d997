#pragma once
/// \file
/// Sums and products of the checkers, in 128 bits that know when they overflow.

namespace orrery::search {

using Exact = __int128;

struct Checked {
  bool overflow = false;
  Exact times(Exact a, Exact b) {
    Exact c = 0;
    overflow = __builtin_mul_overflow(a, b, &c) || overflow;
    return c;
  }
  Exact plus(Exact a, Exact b) {
    Exact c = 0;
    overflow = __builtin_add_overflow(a, b, &c) || overflow;
    return c;
  }
};

/// a / b rounded up. @pre b > 0.
inline Exact round_up(Exact a, Exact b) { return a > 0 ? (a - 1) / b + 1 : a / b; }

}  // namespace orrery::search

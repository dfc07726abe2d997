#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/text.h"

namespace orrery::base {
namespace {

std::string word() {
  return *rc::gen::container<std::string>(rc::gen::elementOf(std::string("abcd")));
}

RC_GTEST_PROP(EditDistance, IsZeroOnlyForEqualTexts, ()) {
  const std::string a = word(), b = word();
  RC_ASSERT((edit_distance(a, b) == 0) == (a == b));
}

RC_GTEST_PROP(EditDistance, IsSymmetricAndBounded, ()) {
  const std::string a = word(), b = word();
  const std::size_t d = edit_distance(a, b);
  RC_ASSERT(d == edit_distance(b, a));
  RC_ASSERT(d <= std::max(a.size(), b.size()));
  RC_ASSERT(d >= std::max(a.size(), b.size()) - std::min(a.size(), b.size()));
}

RC_GTEST_PROP(Nearest, FindsANameWithOneSlip, ()) {
  const std::vector<std::string> names = {"latency", "bandwidth", "hosts", "devices_per_host",
                                          "rails"};
  const std::string name = *rc::gen::elementOf(names);
  std::string slip = name;
  const auto at = *rc::gen::inRange<std::size_t>(0, name.size());
  switch (*rc::gen::inRange(0, 3)) {
    case 0: slip.erase(at, 1); break;
    case 1: slip.insert(at, 1, 'q'); break;
    default: slip[at] = 'q'; break;
  }
  RC_ASSERT(nearest(slip, names) == name);
}

RC_GTEST_PROP(Split, IsUndoneByJoin, (const std::string& text)) {
  RC_ASSERT(join(split(text, ','), ",") == text);
}

}  // namespace
}  // namespace orrery::base

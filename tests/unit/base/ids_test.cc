#include "base/ids.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

namespace orrery::base {
namespace {

using LinkId = Id<struct LinkTag>;
using DeviceId = Id<struct DeviceTag>;

static_assert(!std::is_convertible_v<LinkId, DeviceId>);
static_assert(!std::is_convertible_v<int, LinkId>);
static_assert(!std::is_convertible_v<LinkId, std::uint32_t>);
static_assert(!LinkId().valid() && LinkId(0).valid());

TEST(IdVector, GivesIdsInOrderAndFindsByThem) {
  IdVector<LinkId, std::string> links;
  const LinkId a = links.push_back("a");
  const LinkId b = links.push_back("b");
  EXPECT_LT(a, b);
  EXPECT_EQ(links[b], "b");
  links[a] = "c";
  std::string all;
  for (const LinkId id : links.ids()) all += links[id];
  for (const auto& link : links) all += link;
  EXPECT_EQ(all, "cbcb");
  EXPECT_TRUE(links.contains(b));
  EXPECT_FALSE(links.contains(LinkId(2)));
  EXPECT_EQ(links.raw().size(), 2U);
}

TEST(IdVector, HoldsBools) {
  IdVector<LinkId, bool> seen(3, false);
  seen[LinkId(1)] = true;
  EXPECT_FALSE(seen[LinkId(0)]);
  EXPECT_TRUE(seen[LinkId(1)]);
}

TEST(IdVectorDeathTest, ForeignOrMissingIdsAreOurBug) {
  const IdVector<LinkId, int> links(2);
  EXPECT_DEATH(static_cast<void>(links[LinkId(2)]), "id 2 of 2");
  EXPECT_DEATH(static_cast<void>(links[LinkId()]), "of 2");
}

}  // namespace
}  // namespace orrery::base

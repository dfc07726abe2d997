#include "costmodel/closed_form/rank_windows.h"

#include "base/numbers.h"
#include "base/sim_time.h"
#include "costmodel/cost_model.h"

namespace orrery::costmodel {

int RankWindows::canonical(int first, int count) {
  const auto [window, fresh] = windows_[{static_cast<std::uint64_t>(first) << 32 | as_u32(count)}];
  if (fresh) window = find(first, count);
  return window;
}

int RankWindows::find(int first, int count) {
  const int per_host = as_int(topology_.devices_per_host());
  if (RankBlocks::of(topology_, first, count)) return 0;
  if (per_host % count != 0 || first % count != 0) return first;
  if (topology_.host_copies()) first %= per_host;
  if (const auto known = known_.find({first, count}); known != known_.end()) return known->second;
  // In order, so that it does not depend on which window was asked for first.
  for (int at = 0; at <= first; at += count) {
    const auto [place, fresh] = known_.try_emplace({at, count});
    if (fresh) place->second = first_of_.try_emplace({count, picture(at, count)}, at).first->second;
  }
  return known_.at({first, count});
}

/// Links in the order in which the routes meet them: a number at every crossing, latency, rate and
/// level at the first.
RankWindows::Picture RankWindows::picture(int first, int count) const {
  Picture picture;
  std::map<topologies::LinkId, std::int64_t> numbers;
  for (int i = 0; i < count; ++i) {
    picture.push_back(&topology_.device_model(as_u32(first + i)) -
                      topology_.device_models().data());
    for (int j = 0; j < count; ++j) {
      const auto route = topology_.route(as_u32(first + i), as_u32(first + j));
      picture.push_back(-static_cast<std::int64_t>(route.size()) - 1);
      for (const topologies::LinkId id : route) {
        const auto [place, fresh] =
            numbers.try_emplace(id, static_cast<std::int64_t>(numbers.size()));
        picture.push_back(place->second);
        if (!fresh) continue;
        const topologies::Link& link = topology_.link(id);
        picture.push_back(base::ceil_ps(link.latency));
        picture.push_back(link.bytes_per_second);
        picture.push_back(topology_.in_host(link) ? 1 : 0);
      }
    }
  }
  return picture;
}

}  // namespace orrery::costmodel

#pragma once
/// The same transfers in SimGrid (model CM02 without cross-traffic and latency), one process for
/// each run: its engine is a singleton.
///
/// Each run returns what it measured through a pipe, with the CPU time and the peak memory of its
/// process.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/unit/sim/tree_ring.h"

#ifdef ORRERY_HAS_SIMGRID
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <simgrid/s4u.hpp>
#pragma GCC diagnostic pop
#endif

namespace orrery::sim::testing {

struct ProcessRun {
  std::vector<double> values;
  double cpu_s = 0;
  double peak_mb = 0;  // 10^6 bytes
};

/// Runs `work`, a function that returns numbers, in a process of its own.
template <typename Work>
ProcessRun in_process(const Work& work) {
  int ends[2];
  ORRERY_CHECK(pipe(ends) == 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  ORRERY_CHECK(child >= 0);
  if (child == 0) {
    close(ends[0]);
    const std::vector<double> values = work();
    const auto* bytes = reinterpret_cast<const char*>(values.data());
    for (std::size_t left = values.size() * sizeof(double); left > 0;) {
      const ssize_t n = write(ends[1], bytes, left);
      if (n <= 0) _exit(1);
      bytes += n;
      left -= static_cast<std::size_t>(n);
    }
    _exit(0);
  }
  close(ends[1]);
  ProcessRun run;
  std::string bytes;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;)
    bytes.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  rusage used{};
  ORRERY_CHECK(wait4(child, &status, 0, &used) == child && status == 0,
               "the process of a run ended with status {}", status);
  run.values.resize(bytes.size() / sizeof(double));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(run.values.data()));
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  run.cpu_s = seconds(used.ru_utime) + seconds(used.ru_stime);
  run.peak_mb = static_cast<double>(used.ru_maxrss) * 1024 / 1e6;
  return run;
}

#ifdef ORRERY_HAS_SIMGRID

/// An engine with the model that Orrery's network computes. @pre once per process.
inline void start_simgrid() {
  static std::vector<std::string> words = {"orrery",
                                           "--log=root.threshold:critical",
                                           "--cfg=network/model:CM02",
                                           "--cfg=network/crosstraffic:0",
                                           "--cfg=network/TCP-gamma:1e20",
                                           "--cfg=maxmin/precision:1e-12",
                                           "--cfg=surf/precision:1e-15"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  auto count = static_cast<int>(arguments.size());
  new simgrid::s4u::Engine(&count, arguments.data());
}

/// The ring of ring_all_reduce(), one actor a host. Returns when it ends, in seconds.
inline ProcessRun simgrid_ring(const TwoLevelTree& tree, const std::vector<std::uint32_t>& order,
                               std::int64_t bytes) {
  return in_process([&]() -> std::vector<double> {
    namespace s4u = simgrid::s4u;
    start_simgrid();
    auto* root = s4u::create_star_zone("core");
    std::vector<s4u::Host*> hosts(tree.hosts);
    for (std::uint32_t r = 0; r < tree.racks(); ++r) {
      const std::string name = "rack" + std::to_string(r);
      auto* rack = s4u::create_star_zone(name);
      rack->set_parent(root);
      auto* gateway = rack->create_router(name + "switch");
      for (std::uint32_t h = r * tree.hosts_per_rack; h < (r + 1) * tree.hosts_per_rack; ++h) {
        hosts[h] = rack->create_host("host" + std::to_string(h), 1e9);
        auto* link = rack->create_split_duplex_link(
            "link" + std::to_string(h), static_cast<double>(tree.host_bytes_per_second));
        link->set_latency(0)->seal();
        hosts[h]->seal();
        rack->add_route(hosts[h]->get_netpoint(), nullptr, nullptr, nullptr,
                        {{link, s4u::LinkInRoute::Direction::UP}}, true);
      }
      auto* up = root->create_split_duplex_link("up" + std::to_string(r),
                                                static_cast<double>(tree.rack_bytes_per_second()));
      up->set_latency(0)->seal();
      rack->seal();
      root->add_route(rack->get_netpoint(), nullptr, gateway, nullptr,
                      {{up, s4u::LinkInRoute::Direction::UP}}, true);
    }
    root->seal();
    const auto n = static_cast<std::uint32_t>(order.size());
    std::vector<s4u::Mailbox*> boxes;
    for (std::uint32_t i = 0; i < n; ++i) boxes.push_back(s4u::Mailbox::by_name(std::to_string(i)));
    static int payload = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      s4u::Actor::create("rank", hosts[order[i]], [&, i] {
        for (std::uint32_t step = 0; step < 2 * (n - 1); ++step) {
          const auto sent =
              boxes[(i + 1) % n]->put_async(&payload, static_cast<std::uint64_t>(bytes / n));
          boxes[i]->get<int>();
          sent->wait();
        }
      });
    }
    s4u::Engine::get_instance()->run();
    return {s4u::Engine::get_clock()};
  });
}

/// Transfers that start together, from host 2 i to host 2 i + 1 over links that they share: when
/// each ends, in seconds.
inline ProcessRun simgrid_transfers(const std::vector<std::int64_t>& capacities,
                                    const std::vector<std::vector<std::uint32_t>>& routes,
                                    const std::vector<std::int64_t>& bytes) {
  return in_process([&]() -> std::vector<double> {
    namespace s4u = simgrid::s4u;
    start_simgrid();
    auto* zone = s4u::create_full_zone("fabric");
    std::vector<const s4u::Link*> links;
    for (std::size_t l = 0; l < capacities.size(); ++l) {
      links.push_back(
          zone->create_link("link" + std::to_string(l), static_cast<double>(capacities[l]))
              ->set_latency(0)
              ->seal());
    }
    std::vector<double> ends(routes.size());
    for (std::size_t i = 0; i < routes.size(); ++i) {
      auto* from = zone->create_host("from" + std::to_string(i), 1e9)->seal();
      auto* to = zone->create_host("to" + std::to_string(i), 1e9)->seal();
      std::vector<s4u::LinkInRoute> route;
      for (const auto l : routes[i]) route.emplace_back(links[l]);
      zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, route, false);
      s4u::Actor::create("sender", from, [&ends, &bytes, i, from, to] {
        s4u::Comm::sendto(from, to, static_cast<std::uint64_t>(bytes[i]));
        ends[i] = s4u::Engine::get_clock();
      });
    }
    zone->seal();
    s4u::Engine::get_instance()->run();
    return ends;
  });
}

#endif

}  // namespace orrery::sim::testing

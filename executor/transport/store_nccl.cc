#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/numbers.h"
#include "executor/transport/store.h"

namespace orrery::executor {

using base::ErrorCode;

struct Store::Connection {
  c10::intrusive_ptr<c10d::Store> tcp, store;  // the second adds the attempt to keys
  std::string where, attempt;
};

namespace {

constexpr auto kConnects = std::chrono::seconds(120), kLooks = std::chrono::seconds(5);
// Between looks at a key: the store's own wait can be neither interrupted nor silenced.
constexpr std::chrono::microseconds kFirstPause{200}, kLongestPause{10'000};
constexpr int kErrorsOnly = 2;
constexpr std::size_t kPartBytes = 4 << 20;

template <class Call>
auto guarded(const std::string& where, Call call) -> base::Result<decltype(call())> {
  try {
    return call();
  } catch (const c10::Error& error) {
    return base::fail(ErrorCode::kCollective, "the store at {}: {}", where,
                      error.what_without_backtrace());
  } catch (const std::exception& error) {
    return base::fail(ErrorCode::kCollective, "the store at {}: {}", where, error.what());
  }
}

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

/// A value as it is kept: how many parts it has, and the first.
std::pair<std::size_t, std::string> split(const std::vector<std::uint8_t>& kept) {
  const auto mark = std::ranges::find(kept, static_cast<std::uint8_t>(';'));
  return {std::stoul(std::string(kept.begin(), mark)), std::string(mark + 1, kept.end())};
}

}  // namespace

base::Result<Store> Store::connect(const Launch& launch, const Rendezvous& rendezvous) {
  // LibTorch logs a backtrace for each call on a lost store; the errors below say it once.
  FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, kErrorsOnly);
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.isServer = launch.rank == 0 && !rendezvous.agent_serves;
  options.numWorkers = as_index(launch.world_size);
  options.waitWorkers = false;  // ranks that do not come are the watchdog's
  options.timeout = kConnects;
  auto made = std::make_shared<Connection>();
  made->where = fmt::format("{}:{}", rendezvous.host, rendezvous.port);
  made->attempt = rendezvous.attempt;
  TRY(made->tcp, guarded(made->where, [&]() -> c10::intrusive_ptr<c10d::Store> {
        return c10::make_intrusive<c10d::TCPStore>(rendezvous.host, options);
      }));
  made->store = c10::make_intrusive<c10d::PrefixStore>(made->attempt, made->tcp);
  return Store(std::move(made));
}

base::Result<Store> Store::another() const {
  auto made = std::make_shared<Connection>();
  made->where = connection_->where;
  made->attempt = connection_->attempt;
  TRY(made->tcp, guarded(made->where, [&] { return connection_->tcp->clone(); }));
  made->tcp->setTimeout(kLooks);
  made->store = c10::make_intrusive<c10d::PrefixStore>(made->attempt, made->tcp);
  return Store(std::move(made));
}

base::Result<void> Store::set(const std::string& key, const std::string& value) {
  const std::size_t parts = (value.size() + kPartBytes - 1) / kPartBytes;
  TRY_VOID(guarded(connection_->where, [&] {
    for (std::size_t i = 1; i < parts; ++i)
      connection_->store->set(fmt::format("{}/{}", key, i),
                              bytes_of(value.substr(i * kPartBytes, kPartBytes)));
    // last, so that who sees it finds the others
    connection_->store->set(key,
                            bytes_of(fmt::format("{};{}", parts, value.substr(0, kPartBytes))));
    return true;
  }));
  return {};
}

base::Result<std::string> Store::get(const std::string& key,
                                     const std::function<base::Result<void>()>& interrupted) {
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    TRY(const bool there,
        guarded(connection_->where, [&] { return connection_->store->check({key}); }));
    if (there) break;
    TRY_VOID(interrupted());
    std::this_thread::sleep_for(pause);
  }
  return guarded(connection_->where, [&] {
    auto [parts, value] = split(connection_->store->get(key));
    for (std::size_t i = 1; i < parts; ++i) {
      const auto part = connection_->store->get(fmt::format("{}/{}", key, i));
      value.append(part.begin(), part.end());
    }
    return value;
  });
}

base::Result<std::optional<std::string>> Store::look(const std::string& key) {
  return guarded(connection_->where, [&]() -> std::optional<std::string> {
    if (!connection_->store->check({key})) return std::nullopt;
    return split(connection_->store->get(key)).second;
  });
}

base::Result<std::string> Store::set_first(const std::string& key, const std::string& value) {
  return guarded(connection_->where, [&] {
    return split(connection_->store->compareSet(key, {}, bytes_of("1;" + value))).second;
  });
}

}  // namespace orrery::executor

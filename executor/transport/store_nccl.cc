#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/numbers.h"
#include "base/text.h"
#include "executor/transport/store.h"

namespace orrery::executor {

using base::ErrorCode;

struct Store::Connection {
  c10::intrusive_ptr<c10d::Store> store;
};

namespace {

template <class Call>
auto guarded(const char* what, Call call) -> base::Result<decltype(call())> {
  try {
    return call();
  } catch (const std::exception& error) {  // c10 and socket errors alike
    return base::fail(ErrorCode::kCollective, "{}: {}", what, error.what());
  }
}

}  // namespace

base::Result<Store> Store::connect(const Launch& launch) {
  const char *address = std::getenv("MASTER_ADDR"), *port = std::getenv("MASTER_PORT");
  if (address == nullptr || port == nullptr) {
    return base::fail(
        base::make_error(ErrorCode::kMissingKey,
                         "NCCL ranks meet at MASTER_ADDR and MASTER_PORT, which are not set")
            .with_hint(
                "start the ranks with torchrun, or set both to a host and a free port of rank 0"));
  }
  const auto number = base::parse_integer(port);
  if (!number || *number < 1 || *number > 65535)
    return base::fail(ErrorCode::kBadValue, "MASTER_PORT='{}' is not a port", port);
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool agent_serves = agent != nullptr && std::string_view(agent) == "True";
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(*number);
  options.isServer = launch.rank == 0 && !agent_serves;
  options.numWorkers = as_index(launch.world_size);
  options.timeout = std::chrono::seconds(120);
  auto connection = std::make_shared<Connection>();
  TRY(connection->store, guarded("store", [&]() -> c10::intrusive_ptr<c10d::Store> {
        auto tcp = c10::make_intrusive<c10d::TCPStore>(std::string(address), options);
        return c10::make_intrusive<c10d::PrefixStore>("orrery", std::move(tcp));
      }));
  return Store(std::move(connection));
}

base::Result<void> Store::set(const std::string& key, const std::string& value) {
  TRY_VOID(guarded("store", [&] {
    connection_->store->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    return true;
  }));
  return {};
}

base::Result<std::string> Store::get(const std::string& key) {
  TRY(const std::vector<std::uint8_t> bytes,
      guarded("store", [&] { return connection_->store->get(key); }));
  return std::string(bytes.begin(), bytes.end());
}

}  // namespace orrery::executor

#pragma once
/// A key-value store over TCP that NCCL ranks meet at: LibTorch's, so that under torchrun the
/// agent's own store serves. Keys are those of one attempt: what an earlier one left behind on a
/// store that outlives it is never seen.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "executor/launch/launch.h"
#include "executor/launch/rendezvous.h"

namespace orrery::executor {

class Store {
 public:
  /// Rank 0 serves at the address, unless torchrun's agent does
  /// (TORCHELASTIC_USE_AGENT_STORE=True), where it is a client like the others. Error: kCollective
  /// (no connection within two minutes).
  static base::Result<Store> connect(const Launch& launch, const Rendezvous& rendezvous);
  /// A connection of its own to the same store, for another thread.
  [[nodiscard]] base::Result<Store> another() const;

  /// Of any length: the store's own limit of 8 MiB a value is kept by parts.
  base::Result<void> set(const std::string& key, const std::string& value);
  /// Waits until some rank has set the key, or `interrupted` gives a reason to stop.
  base::Result<std::string> get(const std::string& key,
                                const std::function<base::Result<void>()>& interrupted);

  // Short values, at once.
  base::Result<std::optional<std::string>> look(const std::string& key);
  /// Sets the key unless it is set; what it then holds.
  base::Result<std::string> set_first(const std::string& key, const std::string& value);

 private:
  struct Connection;
  explicit Store(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  std::shared_ptr<Connection> connection_;
};

}  // namespace orrery::executor

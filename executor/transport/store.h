#pragma once
/// A key-value store over TCP that NCCL ranks meet at: LibTorch's, so that under torchrun the
/// agent's own store serves.
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "executor/launch/launch.h"

namespace orrery::executor {

class Store {
 public:
  /// At MASTER_ADDR:MASTER_PORT. Rank 0 serves, unless torchrun's agent does
  /// (TORCHELASTIC_USE_AGENT_STORE=True), where it is a client like the others. Errors: kMissingKey
  /// (variables), kCollective (no connection within two minutes).
  static base::Result<Store> connect(const Launch& launch);

  base::Result<void> set(const std::string& key, const std::string& value);
  /// Waits until some rank has set the key.
  base::Result<std::string> get(const std::string& key);

 private:
  struct Connection;
  explicit Store(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  std::shared_ptr<Connection> connection_;
};

}  // namespace orrery::executor

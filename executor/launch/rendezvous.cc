#include "executor/launch/rendezvous.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/text.h"

namespace orrery::executor {

using base::ErrorCode;

namespace {

const char* text_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

/// Hosts of a Slurm step; mpirun may start ranks on fewer of them.
std::string nodes(const Launch& launch) {
  if (launch.source == "mpirun") return "";
  const std::string step = text_of("SLURM_STEP_NODELIST");
  return step.empty() ? text_of("SLURM_JOB_NODELIST") : step;
}

// What counts the starts of a job, by launcher.
std::string attempt_of(const Launch& launch) {
  const bool slurm = !nodes(launch).empty();
  return fmt::format("orrery/{}.{}/{}", text_of(slurm ? "SLURM_JOB_ID" : "TORCHELASTIC_RUN_ID"),
                     text_of(slurm ? "SLURM_STEP_ID" : ""),
                     text_of(slurm ? "SLURM_RESTART_COUNT" : "TORCHELASTIC_RESTART_COUNT"));
}

}  // namespace

std::string first_host(std::string_view nodes) {
  const std::size_t open = nodes.find_first_of("[,");
  if (open == std::string_view::npos || nodes[open] == ',')
    return std::string(nodes.substr(0, open));
  const std::size_t end = nodes.find_first_of("-,]", open);
  return std::string(nodes.substr(0, open)) + std::string(nodes.substr(open + 1, end - open - 1));
}

bool has_rendezvous(const Launch& launch) {
  return std::getenv("MASTER_ADDR") != nullptr || !nodes(launch).empty();
}

base::Result<Rendezvous> find_rendezvous(const Launch& launch) {
  Rendezvous found;
  found.attempt = attempt_of(launch);
  found.agent_serves = std::string_view(text_of("TORCHELASTIC_USE_AGENT_STORE")) == "True";
  if (std::getenv("MASTER_ADDR") == nullptr && !nodes(launch).empty()) {
    constexpr std::int64_t kFirstPort = 20'000, kPorts = 20'000;  // below those of connections
    const auto job = base::parse_integer(text_of("SLURM_JOB_ID")).value_or(0);
    const auto step = base::parse_integer(text_of("SLURM_STEP_ID")).value_or(0);
    found.host = first_host(nodes(launch));
    found.port = static_cast<std::uint16_t>(kFirstPort + (job * 16 + step) % kPorts);
    return found;
  }
  const char *address = std::getenv("MASTER_ADDR"), *port = std::getenv("MASTER_PORT");
  if (address == nullptr || port == nullptr) {
    return base::fail(
        base::make_error(ErrorCode::kMissingKey,
                         "NCCL ranks meet at MASTER_ADDR and MASTER_PORT, which are not set")
            .with_hint("start the ranks with orrery train --ranks, torchrun, srun or mpirun, or "
                       "set both to a host and a free port of rank 0"));
  }
  const auto number = base::parse_integer(port);
  if (!number || *number < 1 || *number > 65535)
    return base::fail(ErrorCode::kBadValue, "MASTER_PORT='{}' is not a port", port);
  found.host = address;
  found.port = static_cast<std::uint16_t>(*number);
  return found;
}

base::Result<std::uint16_t> free_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  const bool bound = listener >= 0 && ::bind(listener, plain, length) == 0 &&
                     ::getsockname(listener, plain, &length) == 0;
  const int error = errno;
  if (listener >= 0) ::close(listener);
  if (!bound) return base::fail(ErrorCode::kIo, "a free port: {}", std::strerror(error));
  return ntohs(address.sin_port);
}

}  // namespace orrery::executor

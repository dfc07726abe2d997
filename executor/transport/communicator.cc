#include "executor/transport/communicator.h"

#include <array>
#include <string_view>

#include "base/text.h"

namespace orrery::executor {

using base::ErrorCode;

namespace {

using Made = base::Result<std::unique_ptr<Communicator>>;

// A rank is given by what launched it; self and stub need nothing.
struct Backend {
  std::string_view name;
  Made (*make)(const Launch&, int world_size, c10::Device);
};

Made make_self(const Launch&, int, c10::Device) { return make_self_communicator(); }
Made make_stub(const Launch& launch, int world_size, c10::Device) {
  return make_stub_communicator(launch.rank, world_size);
}
Made make_mpi(const Launch&, int, c10::Device) {
#ifdef ORRERY_HAS_MPI
  return make_mpi_communicator();
#else
  return base::fail(ErrorCode::kMissingFeature, "this build of orrery has no MPI");
#endif
}
Made make_nccl(const Launch& launch, int, c10::Device device) {
  return make_nccl_communicator(launch, device);
}

constexpr std::array kBackends = {Backend{"self", make_self}, Backend{"mpi", make_mpi},
                                  Backend{"nccl", make_nccl}, Backend{"stub", make_stub}};

}  // namespace

base::Result<Channel> channel_of(Communicator& communicator, const plan::Group& group,
                                 plan::Stream stream) {
  std::vector<int> ranks;
  for (int i = 0; i < group.size; ++i)
    ranks.push_back(group.member(group.base(communicator.rank()), i));
  return communicator.channel(ranks, stream);
}

std::string resolve_backend(const std::string& backend, const std::string& device,
                            const Launch& launch) {
  if (backend != "auto") return backend;
  if (launch.world_size == 1) return "self";
  return device == "cuda" ? "nccl" : "mpi";
}

Made make_communicator(const std::string& backend, const Launch& launch, int world_size,
                       c10::Device device) {
  std::vector<std::string> names;
  for (const Backend& b : kBackends) {
    if (b.name == backend) return b.make(launch, world_size, device);
    names.emplace_back(b.name);
  }
  return base::fail(base::make_error(ErrorCode::kBadValue, "unknown backend '{}'", backend)
                        .with_hint(base::did_you_mean(backend, names, "backends")));
}

}  // namespace orrery::executor

#pragma once
/// Bytes between the ranks of one communicator, processes of this host: for every ordered pair a
/// ring in memory that they share, a file of the folder ORRERY_FAKE_RINGS. A ring holds kRingBytes,
/// so a message above that waits for its receiver, as one above NCCL's buffers does.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace orrery::tests::fake {

inline constexpr std::size_t kRingBytes = 4096;

/// One message under way. Messages of a pair go in order.
struct Message {
  bool send = false;
  int peer = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0, moved = 0;
  bool opened = false;  // its length has gone before it
};

class SharedRings {
 public:
  /// Joins `ranks` processes under `name`; returns when all have.
  SharedRings(const std::string& name, int rank, int ranks);
  ~SharedRings();
  SharedRings(const SharedRings&) = delete;
  SharedRings& operator=(const SharedRings&) = delete;

  /// Moves what can be moved now of messages that go together. True when something moved.
  /// Throws std::length_error when a message meets a receiver of another length.
  bool progress(std::vector<Message>& messages);
  [[nodiscard]] static bool ended(const Message& m) { return m.opened && m.moved == m.bytes; }

 private:
  struct Ring;
  struct Region;
  Ring& ring(int from, int to);
  bool advance(Message& m);

  int rank_, ranks_;
  std::size_t mapped_bytes_ = 0;
  Region* region_ = nullptr;
};

}  // namespace orrery::tests::fake

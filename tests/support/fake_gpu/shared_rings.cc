#include "tests/support/fake_gpu/shared_rings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace orrery::tests::fake {

// Positions only grow; zeroed memory is an empty ring.
struct SharedRings::Ring {
  std::atomic<std::uint64_t> written, read;
  std::array<std::byte, kRingBytes> bytes;

  std::size_t put(const std::byte* from, std::size_t n) {
    const std::uint64_t at = written.load(std::memory_order_relaxed);
    const std::size_t room = kRingBytes - (at - read.load(std::memory_order_acquire));
    n = std::min(n, room);
    for (std::size_t i = 0; i < n; ++i) bytes[(at + i) % kRingBytes] = from[i];
    written.store(at + n, std::memory_order_release);
    return n;
  }
  std::size_t take(std::byte* to, std::size_t n) {
    const std::uint64_t at = read.load(std::memory_order_relaxed);
    n = std::min<std::size_t>(n, written.load(std::memory_order_acquire) - at);
    for (std::size_t i = 0; i < n; ++i) to[i] = bytes[(at + i) % kRingBytes];
    read.store(at + n, std::memory_order_release);
    return n;
  }
};

struct SharedRings::Region {
  std::atomic<int> joined;
  Ring rings[1];  // ranks * ranks of them
};

SharedRings::SharedRings(const std::string& name, int rank, int ranks)
    : rank_(rank), ranks_(ranks) {
  mapped_bytes_ = sizeof(Region) + sizeof(Ring) * static_cast<std::size_t>(ranks * ranks);
  const char* folder = std::getenv("ORRERY_FAKE_RINGS");
  if (folder == nullptr) throw std::runtime_error("ORRERY_FAKE_RINGS is not set");
  const std::string path = std::string(folder) + "/" + name;
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) throw std::system_error(errno, std::generic_category(), path);
  void* mapped = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(mapped_bytes_)) == 0)
    mapped = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), path);
  region_ = static_cast<Region*>(mapped);
  ++region_->joined;
  while (region_->joined.load() < ranks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

SharedRings::~SharedRings() { ::munmap(region_, mapped_bytes_); }

SharedRings::Ring& SharedRings::ring(int from, int to) {
  return region_->rings[from * ranks_ + to];
}

bool SharedRings::advance(Message& m) {
  Ring& r = m.send ? ring(rank_, m.peer) : ring(m.peer, rank_);
  bool moved = false;
  if (!m.opened) {
    std::uint64_t length = m.bytes;
    auto* bytes = reinterpret_cast<std::byte*>(&length);
    if (m.send) {
      if (kRingBytes - (r.written.load() - r.read.load()) < sizeof length) return false;
      r.put(bytes, sizeof length);
    } else {
      if (r.written.load() - r.read.load() < sizeof length) return false;
      r.take(bytes, sizeof length);
      if (length != m.bytes) throw std::length_error("sent and received lengths differ");
    }
    m.opened = moved = true;
  }
  const std::size_t n = m.send ? r.put(m.data + m.moved, m.bytes - m.moved)
                               : r.take(m.data + m.moved, m.bytes - m.moved);
  m.moved += n;
  return moved || n > 0;
}

bool SharedRings::progress(std::vector<Message>& messages) {
  std::set<std::pair<bool, int>> blocked;
  bool moved = false;
  for (Message& m : messages) {
    if (ended(m) || blocked.contains({m.send, m.peer})) continue;
    moved |= advance(m);
    if (!ended(m)) blocked.emplace(m.send, m.peer);
  }
  return moved;
}

}  // namespace orrery::tests::fake

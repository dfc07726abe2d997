#include "executor/transport/watchdog_nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/numbers.h"
#include "base/text.h"
#include "executor/transport/checks_nccl.h"

namespace orrery::executor {

using base::ErrorCode;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

namespace {

constexpr const char *kFailure = "failure", *kLeft = "left";
std::string beat_key(int rank) { return "beat/" + std::to_string(rank); }
std::string read_key(int rank) { return "read/" + std::to_string(rank); }
double seconds_since(Watchdog::Clock::time_point t) {
  return real(duration_cast<milliseconds>(Watchdog::Clock::now() - t).count()) / 1e3;
}

/// The first line is the message, the others are notes.
base::Diagnostics diagnostics_of(const std::string& failure) {
  std::vector<std::string> lines = base::split(failure, '\n');
  base::Diagnostic d = base::make_error(ErrorCode::kCollective, "{}", lines.front());
  d.notes.assign(lines.begin() + 1, lines.end());
  return {std::move(d)};
}

}  // namespace

Watchdog::Watchdog(int rank, int ranks, Store store, std::chrono::seconds stall)
    : rank_(rank), ranks_(ranks), store_(std::move(store)), stall_(stall) {
  place_.rank = rank;
  std::ignore = write_beat(status());  // so that its silence is noticed from the start
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  stop();
  for (const Flight& f : flights_) cudaEventDestroy(f.passed);
  for (cudaEvent_t event : spare_) cudaEventDestroy(event);
}

void Watchdog::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ends_.notify_all();
  thread_.join();
  std::ignore = store_.set(beat_key(rank_), kLeft);
}

void Watchdog::at(const Place& place) {
  const std::lock_guard lock(mutex_);
  place_ = place;
  moved_ = Clock::now();
}

void Watchdog::waits_for(const char* what) {
  const std::lock_guard lock(mutex_);
  waits_for_ = what;
  moved_ = Clock::now();
}

void Watchdog::watch(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(comm);
}

base::Result<void> Watchdog::issued(cudaStream_t stream, std::vector<at::Tensor> tensors) {
  const std::lock_guard lock(mutex_);
  while (!flights_.empty() && passed(flights_.front())) flights_.pop_front();
  Flight flight{
      .passed = nullptr, .issued = Clock::now(), .place = place_, .tensors = std::move(tensors)};
  if (spare_.empty()) {
    TRY_VOID(
        check(cudaEventCreateWithFlags(&flight.passed, cudaEventDisableTiming), "cudaEventCreate"));
  } else {
    flight.passed = spare_.back();
    spare_.pop_back();
  }
  flights_.push_back(std::move(flight));
  return check(cudaEventRecord(flights_.back().passed, stream), "cudaEventRecord");
}

// When an operation ended is known from below only: it was issued, and not yet over at the last
// look at all of them.
bool Watchdog::passed(const Flight& f) {
  if (cudaEventQuery(f.passed) == cudaErrorNotReady) return false;
  spare_.push_back(f.passed);
  moved_ = std::max({moved_, looked_, f.issued});
  return true;
}

// Streams pass in their own order, so any may be first.
void Watchdog::retire() {
  std::erase_if(flights_, [this](const Flight& f) { return passed(f); });
  looked_ = Clock::now();
}

base::Result<void> Watchdog::healthy() const {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) return {};
  return base::fail(diagnostics_of(failure_));
}

void Watchdog::report(const base::Diagnostics& diagnostics) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
  }
  const base::Diagnostic& first = diagnostics.front();
  std::string why = fmt::format("rank {} failed: {}", rank_, first.message);
  for (const std::string& note : first.notes) why += "\n" + note;
  fail(std::move(why), true);
}

void Watchdog::when_stuck(std::function<void(const base::Diagnostics&)> stuck) {
  const std::lock_guard lock(mutex_);
  stuck_ = std::move(stuck);
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  for (int tick = 1; !ends_.wait_for(lock, kTick, [&] { return ended_; }); ++tick) {
    retire();
    if (tick % (kBeat / kTick) != 0) continue;
    lock.unlock();
    if (const std::optional<std::string> why = look()) return end_by(*why);
    lock.lock();
  }
}

/// The rank's own thread now ends with the failure; else this one ends the process.
void Watchdog::end_by(const std::string& why) {
  std::unique_lock lock(mutex_);
  if (ends_.wait_for(lock, kGrace, [&] { return ended_; }) || !stuck_) return;
  const auto stuck = stuck_;
  lock.unlock();
  stuck(diagnostics_of(why));
}

void Watchdog::await_readers() {
  const auto until = Clock::now() + kGrace;
  for (int r = 0; r < ranks_; ++r)
    while (r != rank_ && Clock::now() < until) {
      if (const auto read = store_.look(read_key(r)); !read || *read) break;
      std::this_thread::sleep_for(kTick);
    }
}

/// Why the job has failed, when it has; then all ranks can know, and its communicators are aborted.
std::optional<std::string> Watchdog::look() {
  const Status own = status();
  std::optional<std::string> why = asynchronous_error();
  if (!why) {
    const auto written = write_beat(own);
    if (!written) why = written.error().front().message + ": whoever serves it has ended";
  }
  if (!why) {
    if (auto failed = store_.look(kFailure); failed && *failed) {
      fail(**failed, false);
      return *failed;
    }
    why = lost_peer(own);
  }
  if (!why) why = stalled(own);
  if (!why) return std::nullopt;
  fail(*why, true);
  const std::lock_guard lock(mutex_);
  return failure_;
}

base::Result<void> Watchdog::write_beat(const Status& own) {
  return store_.set(beat_key(rank_), fmt::format("{}\n{}\n{}\n{}", ++beats_, own.waits ? 1 : 0,
                                                 own.since.time_since_epoch().count(), own.place));
}

std::optional<std::string> Watchdog::asynchronous_error() {
  const std::lock_guard lock(mutex_);
  for (const ncclComm_t comm : comms_) {
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess || state == ncclInProgress) continue;
    if (state == ncclSuccess) continue;
    const Place at = flights_.empty() ? place_ : flights_.front().place;
    return fmt::format("NCCL failed: {}\nat {}", ncclGetErrorString(state), to_string(at));
  }
  return std::nullopt;
}

std::optional<std::string> Watchdog::lost_peer(const Status& own) {
  const auto now = Clock::now();
  const int peer = (rank_ + 1) % ranks_;
  if (peer == rank_) return std::nullopt;
  const auto beat = store_.look(beat_key(peer));
  if (!beat || !*beat || **beat != peer_beat_ || **beat == kLeft) {
    if (beat && *beat) peer_beat_ = **beat;
    peer_seen_ = now;
    return std::nullopt;
  }
  if (now - peer_seen_ < kSilence) return std::nullopt;
  const auto last = status_of(peer);
  return fmt::format(
      "rank {} has ended or does not run: no sign of it for {} s\nlast seen at {}\nmissed at {}",
      peer, kSilence.count(), last ? last->place : "its start", own.place);
}

Watchdog::Status Watchdog::status() {
  const std::lock_guard lock(mutex_);
  retire();
  Status s;
  s.since = moved_;
  s.waits = !flights_.empty() || waits_for_ != nullptr;
  s.place = to_string(flights_.empty() ? place_ : flights_.front().place);
  if (flights_.empty() && waits_for_ != nullptr) s.place += fmt::format(", {}", waits_for_);
  if (!s.waits && place_.operation.empty())
    s.since = Clock::now();  // its own affairs between steps
  return s;
}

std::optional<Watchdog::Status> Watchdog::status_of(int rank) {
  const auto beat = store_.look(beat_key(rank));
  if (!beat || !*beat) return std::nullopt;
  const std::vector<std::string> words = base::split(**beat, '\n');
  if (words.size() != 4) return std::nullopt;
  return Status{words[1] == "1",
                Clock::time_point(Clock::duration(base::parse_integer(words[2]).value_or(0))),
                words[3]};
}

/// Of all ranks the one that others wait for: one that stands without waiting, else the one that
/// has waited longest.
std::optional<std::string> Watchdog::stalled(const Status& own) {
  if (Clock::now() - own.since < stall_) return std::nullopt;
  Status worst = own;
  std::vector<std::string> others;
  for (int r = 0; r < ranks_; ++r) {
    const auto its = r == rank_ ? std::optional(own) : status_of(r);
    if (!its) continue;
    others.push_back(fmt::format("{} for {:.1f} s at {}", its->waits ? "waits" : "works",
                                 seconds_since(its->since), its->place));
    if (std::pair(its->waits, its->since) < std::pair(worst.waits, worst.since)) worst = *its;
  }
  std::string why =
      fmt::format("no rank moves on; {} {} {:.1f} s", worst.place,
                  worst.waits ? "has waited for other ranks for" : "has not ended for",
                  seconds_since(worst.since));
  constexpr std::size_t kShown = 8;
  for (std::size_t i = 0; i < std::min(kShown, others.size()); ++i) why += "\n" + others[i];
  return why;
}

void Watchdog::fail(std::string why, bool publish) {
  if (publish) {
    if (const auto first = store_.set_first(kFailure, why); first) why = *first;
  }
  std::ignore = store_.set(read_key(rank_), "");  // whoever serves the store may go now
  // A call in progress gets a moment to return; one that waits for a lost peer does not.
  std::unique_lock in_use(in_use_, milliseconds(500));
  std::vector<ncclComm_t> comms;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = why;
    comms = std::exchange(comms_, {});
  }
  for (const ncclComm_t comm : comms) ncclCommAbort(comm);
}

}  // namespace orrery::executor

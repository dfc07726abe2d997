#include "plan/program/arena.h"

#include <algorithm>
#include <array>
#include <limits>
#include <list>
#include <numeric>
#include <utility>

#include "base/numbers.h"
#include "plan/program/liveness.h"

namespace orrery::plan {
namespace {

/// The last operation of each stream, + 1; 0: none.
using Clock = std::array<std::uint32_t, kStreams>;

void raise(Clock& clock, const Clock& other) {
  for (std::size_t s = 0; s < clock.size(); ++s) clock[s] = std::max(clock[s], other[s]);
}
bool over(const Clock& users, const Clock& ended) {
  for (std::size_t s = 0; s < users.size(); ++s)
    if (users[s] > ended[s]) return false;
  return true;
}

/// A buffer from its write until it is free in issue order, operations [begin, end); until
/// `unused`, operations of other streams may look at it.
struct Life {
  std::size_t write = 0;  // into Arena::offsets
  std::uint32_t begin = 0, end = 0, unused = 0;
  std::int64_t bytes = 0, offset = 0;
  Clock users{};
};

/// Finds lives that overlap in time: of each window of operations those that touch it.
class Windows {
 public:
  Windows(std::size_t operations, std::size_t lives)
      : size_(std::max<std::size_t>(1, operations / kWindows)),
        of_window_(operations / size_ + 1),
        seen_(lives, 0) {}

  void add(std::size_t number, const Life& life) {
    for (std::size_t w = life.begin / size_; w <= (life.unused - 1) / size_; ++w)
      of_window_[w].push_back(number);
  }
  /// Each once: those with operations in [begin, end), and a few others.
  template <class Visit>
  void each(std::uint32_t begin, std::uint32_t end, const Visit& visit) {
    ++turn_;
    for (std::size_t w = begin / size_; w <= (end - 1) / size_; ++w) {
      for (const std::size_t number : of_window_[w]) {
        if (seen_[number] == turn_) continue;
        seen_[number] = turn_;
        visit(number);
      }
    }
  }

 private:
  static constexpr std::size_t kWindows = 256;
  std::size_t size_;
  std::vector<std::vector<std::size_t>> of_window_;
  std::vector<std::uint32_t> seen_;
  std::uint32_t turn_ = 0;
};

class Placement {
 public:
  Placement(const Program& program, const RankClass& rank_class, const Expansion& expansion,
            const Launches* launches, Order order, const std::function<bool(const Op&)>& holds)
      : program_(program),
        expansion_(expansion),
        launches_(launches),
        by_stream_(order == Order::kByStream),
        prefers_apart_(by_stream_),
        holds_(holds),
        instances_(program, rank_class) {
    arena_.write_begin.push_back(0);
    for (const OpInstance& o : expansion.ops)
      arena_.write_begin.push_back(arena_.write_begin.back() + as_u32(o.op->writes.size()));
    arena_.offsets.assign(arena_.write_begin.back(), Arena::kElsewhere);
    arena_.waits.resize(expansion.ops.size());
  }

  Arena run() {
    find_next_of_streams();
    find_lives();
    find_most_alive();
    if (by_stream_) find_late_users();
    place_all();
    if (by_stream_) find_waits();
    return std::move(arena_);
  }

 private:
  static constexpr auto kNever = std::numeric_limits<std::uint32_t>::max();
  /// Operations behind a free within which it matters who may still look.
  static constexpr std::uint32_t kLookAhead = 1024;
  /// A block may be larger than what is alive by this part of it.
  static constexpr std::int64_t kMostLost = 50;
  [[nodiscard]] const Op& op(std::uint32_t i) const { return *expansion_.ops[i].op; }
  [[nodiscard]] std::uint32_t count() const { return as_u32(expansion_.ops.size()); }
  [[nodiscard]] std::uint32_t launch_of(std::uint32_t i) const {
    const bool joined = launches_ != nullptr && launches_->joined[i] == Joined::kAll;
    return joined ? launches_->with[i] : i;
  }

  void find_next_of_streams() {
    next_of_stream_.assign(count(), kNever);
    Clock last{};
    for (std::uint32_t i = 0; i < count(); ++i) {
      const auto stream = as_index(op(i).stream);
      if (last[stream] > 0) next_of_stream_[last[stream] - 1] = i;
      last[stream] = i + 1;
    }
  }

  void find_lives() {
    constexpr std::size_t kNone = ~std::size_t{0};
    std::vector<std::size_t> live(instances_.size(), kNone);
    std::vector<std::uint32_t> sent;  // [life] until when it may be under way
    for (std::uint32_t i = 0; i < count(); ++i) {
      const OpInstance& o = expansion_.ops[i];
      const auto at = [&](const BufferRef& r) -> std::size_t& {
        return live[instances_.at(r, o.layer, o.micro_batch)];
      };
      for (std::size_t w = 0; w < o.op->writes.size() && holds_(*o.op); ++w) {
        const std::int64_t bytes = program_.buffers[o.op->writes[w].buffer].device_bytes();
        if (bytes == 0) continue;
        at(o.op->writes[w]) = lives_.size();
        lives_.push_back(
            {.write = arena_.write_begin[i] + w,
             .begin = launch_of(i),
             .end = count(),
             .unused = count(),
             .bytes = (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment});
      }
      const auto use = [&](const BufferRef& r, bool sends) {
        if (at(r) == kNone) return;
        Life& life = lives_[at(r)];
        life.users[as_index(o.op->stream)] = i + 1;
        // whoever writes there next may not wait for a send that nothing followed
        if (sends) sent[at(r)] = std::max(sent[at(r)], std::min(next_of_stream_[i], count()));
      };
      sent.resize(lives_.size(), 0);
      for (const BufferRef& r : accesses(*o.op)) use(r, copies_out(*o.op));
      for (const Leg& leg : o.op->legs) use(leg.buffer, leg.send);
      for (const BufferRef& r : o.op->frees) {
        if (at(r) == kNone) continue;
        use(r, frees_late(*o.op));
        const std::size_t number = std::exchange(at(r), kNone);
        Life& dead = lives_[number];
        dead.end = dead.unused = std::max(i + 1, sent[number]);
      }
    }
  }

  void find_most_alive() {
    std::vector<std::int64_t> change(count() + 1, 0);
    for (const Life& l : lives_) {
      change[l.begin] += l.bytes;
      change[l.end] -= l.bytes;
    }
    std::int64_t alive = 0;
    for (const std::int64_t bytes : change)
      arena_.alive_bytes = std::max(arena_.alive_bytes, alive += bytes);
  }

  /// What is sure to have ended when operation i starts, if those before it started so.
  [[nodiscard]] Clock clock_of(std::uint32_t i, const std::vector<Clock>& clocks,
                               const Clock& issued) const {
    const auto stream = as_index(op(i).stream);
    Clock clock = issued[stream] > 0 ? clocks[issued[stream] - 1] : Clock{};
    clock[stream] = issued[stream];
    for (const std::uint32_t before : expansion_.dependencies_of(i))
      add_ended(clock, before, clocks);
    return clock;
  }
  void add_ended(Clock& clock, std::uint32_t ended, const std::vector<Clock>& clocks) const {
    raise(clock, clocks[ended]);
    const auto stream = as_index(op(ended).stream);
    clock[stream] = std::max(clock[stream], ended + 1);
  }

  /// Until when operations of other streams may look at what is freed, as far as that matters for
  /// who writes next on the stream of compute.
  void find_late_users() {
    std::vector<Clock> clocks(count());
    Clock issued{};
    std::vector<std::vector<std::size_t>> freed(count() + 1);
    for (std::size_t n = 0; n < lives_.size(); ++n) freed[lives_[n].end].push_back(n);
    std::vector<std::size_t> waiting;
    for (std::uint32_t i = 0; i < count(); ++i) {
      clocks[i] = clock_of(i, clocks, issued);
      issued[as_index(op(i).stream)] = i + 1;
      waiting.insert(waiting.end(), freed[i].begin(), freed[i].end());
      if (op(i).stream != Stream::kCompute) continue;
      std::erase_if(waiting, [&](std::size_t n) {
        if (!over(lives_[n].users, clocks[i])) return false;
        lives_[n].unused = std::max(i, lives_[n].end);
        return true;
      });
    }
    for (const std::size_t n : waiting) lives_[n].unused = count();
    for (Life& life : lives_) life.unused = std::min(life.unused, life.end + kLookAhead);
  }

  /// In the best of three orders: large ones first, those that are large for long, those that live
  /// long.
  void place_all() {
    const auto length = [](const Life& l) { return real(l.end - l.begin); };
    place_in_order([](const Life& l) { return real(l.bytes); });
    place_in_order([&](const Life& l) { return real(l.bytes) * length(l); });
    place_in_order(length);
    prefers_apart_ = false;  // room before overlap
    if (arena_.bytes > arena_.alive_bytes + arena_.alive_bytes / kMostLost)
      place_in_order([](const Life& l) { return real(l.bytes); });
    for (const Life& life : lives_) arena_.offsets[life.write] = life.offset;
  }
  template <class Key>
  void place_in_order(const Key& key) {
    if (arena_.bytes == arena_.alive_bytes) return;
    std::vector<std::size_t> order(lives_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(
        order, [&](std::size_t a, std::size_t b) { return key(lives_[a]) > key(lives_[b]); });
    std::vector<Life> lives = lives_;
    Windows placed(count(), lives.size());
    std::int64_t bytes = 0;
    for (const std::size_t n : order) {
      Life& life = lives[n];
      life.offset = prefers_apart_ ? place_apart(life, lives, placed)
                                   : lowest(life, lives, placed, &Life::end);
      bytes = std::max(bytes, life.offset + life.bytes);
      placed.add(n, life);
    }
    if (arena_.bytes > 0 && bytes >= arena_.bytes) return;
    arena_.bytes = bytes;
    lives_ = std::move(lives);
  }
  /// The lowest place free while it lives, and nothing else that lives until `end_of`.
  std::int64_t lowest(const Life& life, const std::vector<Life>& lives, Windows& placed,
                      std::uint32_t Life::*end_of) {
    find_taken(life, lives, placed, end_of);
    std::int64_t place = 0;
    for (const Span& taken : taken_) {
      if (place + life.bytes <= taken.begin) break;
      place = std::max(place, taken.end);
    }
    return place;
  }
  /// Where nobody looks any more, if that is within what lives at once; else where it is longest
  /// ago that somebody might.
  std::int64_t place_apart(const Life& life, const std::vector<Life>& lives, Windows& placed) {
    const std::int64_t apart = lowest(life, lives, placed, &Life::unused);
    if (apart + life.bytes <= arena_.alive_bytes) return apart;
    const std::int64_t least = lowest(life, lives, placed, &Life::end);
    std::vector<Span> before;  // with the operation that frees it
    placed.each(life.begin, life.begin + 1, [&](std::size_t n) {
      const Life& l = lives[n];
      if (l.end <= life.begin && l.unused > life.begin)
        before.push_back({l.offset, l.offset + l.bytes, l.end});
    });
    std::int64_t best = least, place = 0;
    std::uint32_t best_end = kNever;
    const auto look = [&](std::int64_t end) {
      if (place + life.bytes > end) return;
      std::uint32_t last = 0;
      for (const Span& b : before)
        if (b.begin < place + life.bytes && place < b.end) last = std::max(last, b.freed);
      if (last >= best_end) return;
      best = place;
      best_end = last;
    };
    for (const Span& taken : taken_) {
      look(std::min(taken.begin, arena_.alive_bytes));
      place = std::max(place, taken.end);
    }
    look(arena_.alive_bytes);
    return best;
  }
  /// Bytes of those that live at the same time, in order.
  void find_taken(const Life& life, const std::vector<Life>& lives, Windows& placed,
                  std::uint32_t Life::*end_of) {
    taken_.clear();
    placed.each(life.begin, life.*end_of, [&](std::size_t n) {
      const Life& other = lives[n];
      if (other.begin < life.*end_of && life.begin < other.*end_of)
        taken_.push_back({other.offset, other.offset + other.bytes, 0});
    });
    std::ranges::sort(taken_, {}, &Span::begin);
  }

  /// Bytes and who looked at them last.
  struct Past {
    std::int64_t begin = 0, end = 0;
    Clock users{};
  };

  void find_waits() {
    std::vector<std::vector<std::size_t>> begins(count());
    for (std::size_t n = 0; n < lives_.size(); ++n) begins[lives_[n].begin].push_back(n);
    std::vector<Clock> clocks(count());
    Clock issued{};
    for (std::uint32_t i = 0; i < count(); ++i) {
      clocks[i] = clock_of(i, clocks, issued);
      issued[as_index(op(i).stream)] = i + 1;
      for (const std::size_t n : begins[i]) {
        for (const Past& past : replace(lives_[n])) wait_for(past.users, i, clocks);
      }
    }
  }
  void wait_for(const Clock& users, std::uint32_t i, std::vector<Clock>& clocks) {
    for (const std::uint32_t user : users) {
      if (user == 0 || clocks[i][as_index(op(user - 1).stream)] >= user) continue;
      arena_.waits[i].push_back(user - 1);
      add_ended(clocks[i], user - 1, clocks);
    }
  }
  /// Those who looked at the bytes before; now the life's users do.
  std::vector<Past> replace(const Life& life) {
    std::vector<Past> found;
    const std::int64_t begin = life.offset, end = life.offset + life.bytes;
    for (auto past = past_.begin(); past != past_.end();) {
      if (past->end <= begin || end <= past->begin) {
        ++past;
        continue;
      }
      found.push_back(*past);
      if (past->begin < begin) past_.push_back({past->begin, begin, past->users});
      if (end < past->end) past_.push_back({end, past->end, past->users});
      past = past_.erase(past);
    }
    past_.push_back({begin, end, life.users});
    return found;
  }

  const Program& program_;
  const Expansion& expansion_;
  const Launches* launches_;
  bool by_stream_, prefers_apart_;
  const std::function<bool(const Op&)>& holds_;
  InstanceMap instances_;
  std::vector<std::uint32_t> next_of_stream_;
  std::vector<Life> lives_;
  struct Span {
    std::int64_t begin = 0, end = 0;
    std::uint32_t freed = 0;
  };
  std::vector<Span> taken_;
  std::list<Past> past_;
  Arena arena_;
};

}  // namespace

Arena arena(const Program& program, const RankClass& rank_class, const Expansion& expansion,
            const Launches* launches, Order order, const std::function<bool(const Op&)>& holds) {
  return Placement(program, rank_class, expansion, launches, order, holds).run();
}

}  // namespace orrery::plan

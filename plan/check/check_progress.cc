/// Communication between classes: sends against receives, one order of collectives, and progress.
///
/// All ranks of a class run one list, so a collective whose groups stay inside the class is
/// symmetric: the same op of the same list on every member. What can go wrong stands between
/// classes, and one representative rank per class shows it.

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include "base/numbers.h"
#include "plan/check/check_internal.h"

namespace orrery::plan::checker {

namespace {

using OpIndex = std::uint32_t;  ///< of a class, in issue order

/// A leg or a member's side of a spanning collective.
struct Post {
  ClassIndex cls = 0;
  OpIndex op = 0;
  auto operator<=>(const Post&) const = default;
};

/// The transfers from one class to another along one pair of streams and one rank distance: n-th
/// send meets n-th receive.
struct ChannelKey {
  Stream sending_end = Stream::kForwardSend;
  ClassIndex sender = 0, receiver = 0;
  int offset = 0;
  auto operator<=>(const ChannelKey&) const = default;
};
struct LegPost {
  Post post;
  BufferRef buffer;
};
struct Channel {
  std::vector<LegPost> sends, receives;
};

/// The n-th collectives of the classes that a group spans. The key is what the members share: who
/// they are, and how they are spaced.
struct SpanKey {
  std::vector<ClassIndex> classes;
  int size = 0, stride = 0;
  auto operator<=>(const SpanKey&) const = default;
};

constexpr OpIndex kNoOp = ~OpIndex{0};

/// Who touched an instance last: its writer, and since then the latest reader on every stream.
struct LastAccess {
  OpIndex writer = kNoOp;
  std::array<OpIndex, kStreams> readers;
  LastAccess() { readers.fill(kNoOp); }
};

class ProgressChecker {
 public:
  ProgressChecker(std::span<const ClassStep> steps, FaultList& faults)
      : steps_(steps), faults_(faults) {}

  void run() {
    const std::size_t before = faults_.size();
    for (std::size_t c = 0; c < steps_.size(); ++c) collect(c);
    match_channels();
    match_collectives();
    // A missing partner stops everything behind it: what the walk would report then are echoes.
    if (faults_.size() == before) walk();
    if (faults_.size() == before) walk_threads();
  }

 private:
  const Program& program() const { return *steps_.front().program; }
  const ClassStep& step(const Post& p) const { return steps_[p.cls]; }
  const OpInstance& instance(const Post& p) const { return step(p).ops[p.op]; }
  std::string describe(const Post& p) const {
    return fmt::format("{} of stage {}", step(p).describe(p.op), step(p).rank_class->stage);
  }
  template <class... Args>
  void fault(FaultKind kind, const Post& p, fmt::format_string<Args...> format, Args&&... args) {
    faults_.add(kind, step(p).rank_class->stage, p.op, format, std::forward<Args>(args)...);
  }

  void collect(ClassIndex c) {
    const ClassStep& s = steps_[c];
    for (OpIndex i = 0; i < s.ops.size(); ++i) {
      const Op& op = *s.ops[i].op;
      if (op.kind == OpKind::kExchange) {
        for (const Leg& leg : op.legs) collect_leg({c, i}, op, leg);
      } else if (op.kind == OpKind::kCollective) {
        collect_collective({c, i}, op);
      }
    }
  }

  void collect_leg(const Post& post, const Op& op, const Leg& leg) {
    const RankClass& k = *step(post).rank_class;
    const std::int64_t peer = std::int64_t{k.first_rank} + leg.peer_offset;
    const auto first = class_index(program(), peer),
               last = class_index(program(), peer + k.count - 1);
    if (!first || first != last) {
      fault(kWrongPeer, post, "{}: peers at distance {} are not the ranks of one stage",
            describe(post), leg.peer_offset);
      return;
    }
    const Stream sending = sending_end(op.stream);
    if (leg.send) {
      channels_[{sending, post.cls, *first, leg.peer_offset}].sends.push_back({post, leg.buffer});
    } else {
      channels_[{sending, *first, post.cls, -leg.peer_offset}].receives.push_back(
          {post, leg.buffer});
    }
  }

  void collect_collective(const Post& post, const Op& op) {
    const RankClass& k = *step(post).rank_class;
    const Group& group = program().groups[op.group];
    if (within_class(k, group)) return;
    auto [known, fresh] = spans_of_.try_emplace({post.cls, op.group});
    if (fresh) {
      std::vector<ClassIndex> classes = classes_of_group(program(), group, k.first_rank);
      if (classes == classes_of_group(program(), group, k.first_rank + k.count - 1))
        known->second = std::move(classes);
    }
    if (known->second.empty()) {
      fault(kCollectiveOrder, post,
            "{}: group '{}' of {} ranks at stride {} leads outside the world or differs between "
            "the ranks of the stage",
            describe(post), group.name, group.size, group.stride);
      return;
    }
    spans_[{known->second, group.size, group.stride}][post.cls].push_back(post.op);
  }

  // ---- matching ----
  void match_channels() {
    for (const auto& [key, channel] : channels_) {
      const std::size_t n = std::min(channel.sends.size(), channel.receives.size());
      for (std::size_t i = 0; i < n; ++i) match(channel.sends[i], channel.receives[i]);
      for (std::size_t i = n; i < channel.sends.size(); ++i)
        unmatched(key, channel.sends[i].post, true);
      for (std::size_t i = n; i < channel.receives.size(); ++i)
        unmatched(key, channel.receives[i].post, false);
    }
  }

  void join(const Post& a, const Post& b) {
    partner_[a].push_back(b);
    partner_[b].push_back(a);
  }

  void match(const LegPost& send, const LegPost& receive) {
    join(send.post, receive.post);
    const BufferDecl& from = program().buffers[send.buffer.buffer];
    const BufferDecl& to = program().buffers[receive.buffer.buffer];
    if (from.bytes() != to.bytes() || from.dtype != to.dtype) {
      fault(kSizeMismatch, send.post, "{} sends {} bytes of {} and {} receives {} of {}",
            describe(send.post), from.bytes(), model::to_string(from.dtype), describe(receive.post),
            to.bytes(), model::to_string(to.dtype));
    }
    const OpInstance &a = instance(send.post), &b = instance(receive.post);
    if (a.micro_batch != b.micro_batch) {
      fault(kWrongPeer, send.post, "{} meets {}: another micro-batch", describe(send.post),
            describe(receive.post));
    }
  }

  /// A leg without partner points the wrong way if, somewhere else, a leg of the other side waits
  /// for this class.
  void unmatched(const ChannelKey& key, const Post& post, bool is_send) {
    const bool wrong_peer = std::ranges::any_of(channels_, [&](const auto& other) {
      if (other.first == key || other.first.sending_end != key.sending_end) return false;
      const Channel& c = other.second;
      return is_send ? other.first.sender == key.sender && c.receives.size() > c.sends.size()
                     : other.first.receiver == key.receiver && c.sends.size() > c.receives.size();
    });
    if (wrong_peer) {
      fault(kWrongPeer, post, "{} has no counterpart on that peer, and another stage waits for it",
            describe(post));
    } else {
      fault(is_send ? kUnmatchedSend : kUnmatchedReceive, post, "{}: stage {} has no {} for it",
            describe(post), steps_[is_send ? key.receiver : key.sender].rank_class->stage,
            is_send ? "receive" : "send");
    }
  }

  void match_collectives() {
    for (const auto& [key, sequences] : spans_) {
      for (const ClassIndex member : key.classes) {
        if (sequences.contains(member)) continue;
        const Post post{sequences.begin()->first, sequences.begin()->second.front()};
        fault(kCollectiveOrder, post, "{}: stage {} belongs to the group and never joins",
              describe(post), steps_[member].rank_class->stage);
      }
      const auto& [first_class, first] = *sequences.begin();
      for (const auto& [c, sequence] : sequences)
        match_sequence({first_class, 0}, first, {c, 0}, sequence);
    }
  }

  void match_sequence(Post a, const std::vector<OpIndex>& first, Post b,
                      const std::vector<OpIndex>& second) {
    for (std::size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
      if (i >= first.size() || i >= second.size()) {
        Post& extra = i < first.size() ? a : b;
        extra.op = i < first.size() ? first[i] : second[i];
        fault(kCollectiveOrder, extra, "{}: the rest of the group has no {}-th collective",
              describe(extra), i + 1);
        return;
      }
      a.op = first[i];
      b.op = second[i];
      const Op &x = *instance(a).op, &y = *instance(b).op;
      if (std::tuple(x.collective, x.reduce, x.dim) != std::tuple(y.collective, y.reduce, y.dim) ||
          x.name != y.name) {
        fault(kCollectiveOrder, b, "{} meets {} in one group", describe(b), describe(a));
        return;
      }
      if (x.bytes != y.bytes) {
        fault(kSizeMismatch, b, "{} has {} bytes and {} has {}", describe(b), y.bytes, describe(a),
              x.bytes);
      }
      if (a.cls != b.cls) join(a, b);
    }
  }

  // ---- progress ----
  struct Walker {
    std::vector<OpIndex> queue[kStreams];
    std::size_t head[kStreams] = {};
    std::vector<bool> reached, ended;
    std::vector<OpIndex> dependency_begin, dependencies;
  };

  void walk() {
    for (const ClassStep& s : steps_) walkers_.push_back(make_walker(s));
    until_none_moves([&](ClassIndex c) { return advance(c); });
    for (std::size_t c = 0; c < walkers_.size(); ++c) report_stuck(c);
  }

  template <class Advance>  // bool(ClassIndex)
  void until_none_moves(const Advance& advance) const {
    for (bool moved = true; moved;) {
      moved = false;
      for (ClassIndex c = 0; c < steps_.size(); ++c) moved = advance(c) || moved;
    }
  }

  static Walker make_walker(const ClassStep& s) {
    Walker w;
    w.reached.assign(s.ops.size(), false);
    w.ended.assign(s.ops.size(), false);
    w.dependency_begin.push_back(0);
    std::vector<LastAccess> last(s.instances.size());
    std::map<PoolId, std::vector<OpIndex>> releases;
    std::map<PoolId, std::size_t> acquired;
    for (OpIndex i = 0; i < s.ops.size(); ++i) {
      const Op& op = *s.ops[i].op;
      w.queue[as_index(op.stream)].push_back(i);
      for (const Access& a : s.accesses_of(i)) {
        if (a.kind != AccessKind::kFree) depend(s, last[a.instance], a.kind, i, w.dependencies);
      }
      if (op.acquire) {
        const std::size_t k = acquired[*op.acquire]++;
        const auto capacity = as_index(s.program->pools[*op.acquire].capacity);
        const std::vector<OpIndex>& r = releases[*op.acquire];
        // A rank that runs in issue order never gets to a release that is issued later: it waits
        // for itself.
        if (k >= capacity) w.dependencies.push_back(k - capacity < r.size() ? r[k - capacity] : i);
      }
      if (op.release) releases[*op.release].push_back(i);
      w.dependency_begin.push_back(static_cast<OpIndex>(w.dependencies.size()));
    }
    return w;
  }

  /// Read after write, write after read, write after write; what a stream's own order gives is left
  /// out.
  static void depend(const ClassStep& s, LastAccess& last, AccessKind kind, OpIndex op,
                     std::vector<OpIndex>& dependencies) {
    const Stream stream = s.ops[op].op->stream;
    const auto add = [&](OpIndex on) {
      if (on != kNoOp && s.ops[on].op->stream != stream) dependencies.push_back(on);
    };
    add(last.writer);
    if (kind == AccessKind::kRead) {
      last.readers[as_index(stream)] = op;
      return;
    }
    for (const OpIndex reader : last.readers) add(reader);
    last.readers.fill(kNoOp);
    last.writer = op;
  }

  /// Lets a class run until every stream's head waits. True if anything ended or was reached.
  bool advance(ClassIndex c) {
    Walker& w = walkers_[c];
    bool any = false;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < kStreams; ++s) {
        while (w.head[s] < w.queue[s].size() && try_end(w, {c, w.queue[s][w.head[s]]}, any)) {
          ++w.head[s];
          moved = any = true;
        }
      }
    }
    return any;
  }

  bool try_end(Walker& w, const Post& p, bool& any) {
    if (waits_for(w, p.op)) return false;
    if (!w.reached[p.op]) w.reached[p.op] = any = true;
    if (step(p).ops[p.op].op->kind != OpKind::kCompute && absent_partner(p)) return false;
    w.ended[p.op] = true;
    return true;
  }

  static std::optional<OpIndex> waits_for(const Walker& w, OpIndex op) {
    for (OpIndex d = w.dependency_begin[op]; d < w.dependency_begin[op + 1]; ++d) {
      if (!w.ended[w.dependencies[d]]) return w.dependencies[d];
    }
    return std::nullopt;
  }

  std::optional<Post> absent_partner(const Post& p) const {
    const auto it = partner_.find(p);
    if (it == partner_.end()) return std::nullopt;
    for (const Post& q : it->second) {
      if (!walkers_[q.cls].reached[q.op]) return q;
    }
    return std::nullopt;
  }

  void report_stuck(ClassIndex c) {
    const Walker& w = walkers_[c];
    for (std::size_t s = 0; s < kStreams; ++s) {
      if (w.head[s] == w.queue[s].size()) continue;
      const Post p{c, w.queue[s][w.head[s]]};
      if (const auto op = waits_for(w, p.op)) {
        const Post on{c, *op};
        fault(kDeadlock, p, "{} waits for {}", describe(p),
              *op == p.op ? "a release that is not issued before it" : describe(on));
      } else if (const auto partner = absent_partner(p)) {
        fault(kDeadlock, p, "{} waits for its counterpart {}", describe(p), describe(*partner));
      }
    }
  }

  // ---- progress of one thread per rank ----
  /// A rank may run all its streams from one thread in issue order: it blocks in collectives and
  /// receives; a send is posted and left, and ends before the next operation of its stream
  /// (executor, simulation without overlap). Streams that progress alone do not imply this.
  struct Thread {
    OpIndex next = 0;
    std::array<OpIndex, kStreams> posted;  // sends
    Thread() { posted.fill(kNoOp); }
  };

  void walk_threads() {
    for (Walker& w : walkers_) w.reached.assign(w.reached.size(), false);
    std::vector<Thread> threads(steps_.size());
    until_none_moves([&](ClassIndex c) { return advance_thread(c, threads[c]); });
    for (std::size_t c = 0; c < threads.size(); ++c) report_stuck_thread(c, threads[c]);
  }

  bool advance_thread(ClassIndex c, Thread& t) {
    const std::span<const OpInstance> ops = steps_[c].ops;
    bool moved = false;
    for (; t.next < ops.size(); ++t.next, moved = true) {
      const Op& op = *ops[t.next].op;
      OpIndex& before = t.posted[as_index(op.stream)];
      if (before != kNoOp && absent_partner({c, before})) return moved;
      before = kNoOp;
      std::vector<bool>::reference reached = walkers_[c].reached[t.next];
      if (!reached) reached = moved = true;
      if (is_send(op))
        before = t.next;
      else if (op.kind != OpKind::kCompute && absent_partner({c, t.next}))
        return moved;
    }
    return moved;
  }
  static bool is_send(const Op& op) {
    return op.kind == OpKind::kExchange &&
           std::ranges::all_of(op.legs, [](const Leg& leg) { return leg.send; });
  }

  void report_stuck_thread(ClassIndex c, const Thread& t) {
    const ClassStep& s = steps_[c];
    if (t.next == s.ops.size()) return;
    const OpIndex before = t.posted[as_index(s.ops[t.next].op->stream)];
    const Post p{c, before != kNoOp ? before : t.next};
    if (const auto partner = absent_partner(p)) {
      fault(kDeadlock, p,
            "{} waits for its counterpart {}, when every rank runs its operations in turn",
            describe(p), describe(*partner));
    }
  }

  std::span<const ClassStep> steps_;
  FaultList& faults_;
  std::map<ChannelKey, Channel> channels_;
  std::map<std::pair<ClassIndex, GroupId>, std::vector<ClassIndex>> spans_of_;
  std::map<SpanKey, std::map<ClassIndex, std::vector<OpIndex>>> spans_;
  std::map<Post, std::vector<Post>> partner_;  // what must be reached before an op can end
  std::vector<Walker> walkers_;
};

}  // namespace

void check_progress(std::span<const ClassStep> steps, FaultList& faults) {
  if (!steps.empty()) ProgressChecker(steps, faults).run();
}

}  // namespace orrery::plan::checker

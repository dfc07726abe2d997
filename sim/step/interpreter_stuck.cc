/// Who waits for whom when nothing can progress.

#include <string>

#include "sim/step/interpreter.h"

namespace orrery::sim {
namespace {

constexpr std::size_t kNotes = 24;

}  // namespace

std::string Interpreter::describe(std::uint32_t c, std::uint32_t op) const {
  const PreparedClass& k = *classes_[c].prepared;
  const plan::OpInstance& instance = k.expansion.ops[op];
  return fmt::format("stage {} {} '{}' (layer {}, micro-batch {})", k.rank_class->stage,
                     plan::to_string(instance.op->stream), instance.op->name, instance.layer,
                     instance.micro_batch);
}

base::Diagnostic Interpreter::stuck() const {
  base::Diagnostic d = base::make_error(base::ErrorCode::kInconsistent,
                                        "the program cannot progress after {} ps", now_);
  for (std::uint32_t c = 0; c < classes_.size(); ++c) {
    for (const Lane& lane : classes_[c].lanes) {
      if (lane.head == kNone || lane.started || lane.waiting_for == kNone) continue;
      d.notes.push_back(describe(c, lane.head) + " waits for " + describe(c, lane.waiting_for));
    }
  }
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    const Waiting& w = channels_[i];
    const auto& channel = step_.channels[i];
    for (std::size_t j = w.first; j < w.posted.size(); ++j) {
      const std::uint32_t peer = w.sends ? channel.receiver : channel.sender;
      d.notes.push_back(fmt::format("{} waits for the matching {} of stage {}",
                                    describe(w.posted[j].first.rank_class, w.posted[j].first.op),
                                    w.sends ? "receive" : "send",
                                    step_.classes[peer].rank_class->stage));
    }
  }
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    for (const Party& party : arrivals_[i]) {
      d.notes.push_back(fmt::format("{} waits for {} of {} stages of its group",
                                    describe(party.rank_class, party.op),
                                    step_.crossings[i].classes.size() - arrivals_[i].size(),
                                    step_.crossings[i].classes.size()));
    }
  }
  if (d.notes.size() > kNotes) {
    const std::size_t more = d.notes.size() - kNotes;
    d.notes.resize(kNotes);
    d.notes.push_back(fmt::format("and {} more", more));
  }
  return d;
}

}  // namespace orrery::sim

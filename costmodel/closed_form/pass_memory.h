#pragma once
/// \file
/// What the calls of a pass do to memory.
#include <initializer_list>
#include <vector>

#include "costmodel/closed_form/stage_memory.h"

namespace orrery::costmodel {

/// Calls of one pass in issue order, as memory changes; ZeRO-3 gathers and copies from the host run
/// ahead of their layers where plan::with_prefetch places them, `depth` of them. Equal layers are
/// turns of a loop: but for the first turn, and the last `depth`, whose gathers ran ahead of
/// earlier turns, each issues the same calls. So a few turns are listed, the second stands for
/// those like it, and the work does not grow with the number of layers.
class PassCalls {
 public:
  struct Call {
    plan::TemplateMemory call;  // of a layer: holds its gather, the two are taken apart again
    plan::TemplateMemory gather = {};
    // of what it leaves, what its copy to the host behind it takes away when the next copy begins
    std::int64_t copied_bytes = 0;
  };
  explicit PassCalls(int depth, bool counts = true) : depth_(depth), counts_(counts) {}
  void add(std::initializer_list<Call> turn, int turns = 1);
  [[nodiscard]] PassMemory pass_memory() const;
  /// @pre nothing is copied to the host.
  [[nodiscard]] plan::TemplateMemory memory() const { return pass_memory().before; }

 private:
  struct Step {
    plan::TemplateMemory call, gather;
    std::int64_t copied_bytes = 0;
    bool gathers = false;
    int more = 0;  // turns that it stands for beside its own
  };
  int depth_;
  bool counts_;  // else it stays empty
  std::vector<Step> steps_;
};

}  // namespace orrery::costmodel

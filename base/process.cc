#include "base/process.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

// What jemalloc reads at its start: huge pages, an eighth of a search's time was page faults; and
// large blocks kept when they are freed as small ones are, a sixth of a long search was new ones.
extern "C" {
const char* malloc_conf = "thp:always,oversize_threshold:0";
}

namespace orrery::base {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargest = 32 << 20;  // beyond, glibc maps a block of its own whatever one asks
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 16 << 20);
#endif
}

}  // namespace orrery::base

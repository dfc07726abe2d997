#pragma once

namespace orrery::base {

/// Tells glibc's allocator to keep what is freed for what is allocated next, instead of giving it
/// back to the system. A simulation takes and frees the same megabytes for every plan, and a
/// quarter of its time went into page faults. Of the whole process: for main() to call. Without
/// effect where the C library is not glibc.
void keep_freed_memory();

}  // namespace orrery::base

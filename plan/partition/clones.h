#pragma once
/// \file
/// Loops that pay for wide registers: compiled for several instruction sets, chosen when the
/// program starts. All give the same: integers, and doubles that -ffp-contract=off leaves unfused.
///
/// GCC alone: clang 14 leaves a member function out, and sanitizers are not up yet when the choice
/// is made.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ORRERY_CLONES(...) __attribute__((target_clones(__VA_ARGS__, "default")))
#else
#define ORRERY_CLONES(...)
#endif

// MYDIST_LOOP marks a function that loops over parameters: it is compiled for AVX-512, for AVX2 and
// for every CPU, and the dynamic linker takes the one for this CPU. All give the same bits, as no
// rule adds up elements and these files are compiled without fused multiply-adds.
// Such a function is no template, and no other file of the folder has one of its name: clang 14
// makes a global symbol even for one of an unnamed namespace. Its pointers are __restrict, or the
// compiler could not take several elements at once.
#pragma once

#include <cstddef>

// A sanitizer is not ready yet when the dynamic linker chooses.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MYDIST_LOOPS_ARE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define MYDIST_LOOPS_ARE_SANITIZED 1
#endif
#endif

// Other C libraries than glibc cannot choose.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(MYDIST_LOOPS_ARE_SANITIZED)
#define MYDIST_LOOP __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MYDIST_LOOP
#endif

// A part of loops, inlined into each of them.
#define MYDIST_LOOP_PART inline __attribute__((always_inline))

// SPDX-License-Identifier: Apache-2.0
// The choice of the kernels that this processor runs best.
#include "kernels/kernels.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

// Returns whether the processor has AVX2 and the conversions of float16, for which not all compilers have a check. The
// result is cached, because virtual machines take microseconds for the instruction that tells.
static bool has_avx2(void) {
    enum { UNKNOWN, NO, YES };
    static atomic_int found;
    unsigned a, b, c, d;
    if (atomic_load_explicit(&found, memory_order_relaxed) == UNKNOWN)
        atomic_store(&found,
                     __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) ? YES : NO);
    return atomic_load_explicit(&found, memory_order_relaxed) == YES;
}
#endif

// The sets, best first. The compiler's check includes whether the operating system saves the registers.
static const struct kernels *supported(size_t index) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && index-- == 0)
        return &kernels_avx512;
    if (has_avx2() && index-- == 0)
        return &kernels_avx2;
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
    if (index-- == 0)
        return &kernels_neon;
#endif
    return index == 0 ? &kernels_portable : NULL;
}

const struct kernels *kernels_named(const char *name) {
    if (name == NULL)
        return kernels_chosen();
    const struct kernels *one;
    for (size_t index = 0; (one = supported(index)) != NULL; index++)
        if (strcmp(one->name, name) == 0)
            return one;
    return NULL;
}

const struct kernels *kernels_chosen(void) {
    const char *wanted = getenv("P4REDUCE_SIMD");
    const struct kernels *named = wanted != NULL ? kernels_named(wanted) : NULL;
    return named != NULL ? named : supported(0);
}

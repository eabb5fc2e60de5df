// SPDX-License-Identifier: Apache-2.0
// A spin lock for a few instructions. Acquire and release order what it guards between the threads that hold it.
#ifndef NATIVE_SPINLOCK_H
#define NATIVE_SPINLOCK_H

#include <stdatomic.h>

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static inline void spin_lock(atomic_uint *lock) {
    while (atomic_exchange_explicit(lock, 1, memory_order_acquire) != 0)
        while (atomic_load_explicit(lock, memory_order_relaxed) != 0)
            relax();
}

static inline void spin_unlock(atomic_uint *lock) {
    atomic_store_explicit(lock, 0, memory_order_release);
}

#endif

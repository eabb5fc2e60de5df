// SPDX-License-Identifier: Apache-2.0
// Waiting for a word in memory that processes share.
#ifndef P4REDUCE_LOCAL_FUTEX_H
#define P4REDUCE_LOCAL_FUTEX_H

#include "base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

// Returns when the word is no longer `seen`, some seconds are over, or for no reason.
static inline void futex_wait(_Atomic uint32_t *word, uint32_t seen, double seconds) {
    const struct timespec limit = as_timespec(seconds);
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

static inline void futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#endif

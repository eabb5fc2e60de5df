// SPDX-License-Identifier: Apache-2.0
// Bitmaps of the ranks that are waited for, and their description in words.
#ifndef P4REDUCE_AWAITED_H
#define P4REDUCE_AWAITED_H

#include "wire/constants.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
    AWAITED_WORDS = MAX_RANKS / 32,
    AWAITED_NAMED = 32, // ranks that a text names; it counts the others
    AWAITED_TEXT_BYTES = 6 * AWAITED_NAMED + 24,
};

static inline void awaited_add(uint32_t awaited[AWAITED_WORDS], unsigned rank) {
    awaited[rank / 32] |= UINT32_C(1) << rank % 32;
}

// Writes "rank 3", "ranks 1, 3" or "ranks 0, 1, ..., 31 and 9 more", as list_ranks in errors.py does. Returns false if
// the bitmap is empty.
static inline bool awaited_ranks(const uint32_t awaited[AWAITED_WORDS], char text[AWAITED_TEXT_BYTES]) {
    char ranks[6 * AWAITED_NAMED] = "";
    size_t used = 0;
    unsigned count = 0;
    for (unsigned rank = 0; rank < MAX_RANKS; rank++)
        if (awaited[rank / 32] >> rank % 32 & 1 && count++ < AWAITED_NAMED)
            used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%u", used ? ", " : "", rank);
    used = (size_t)snprintf(text, AWAITED_TEXT_BYTES, "rank%s %.*s", count > 1 ? "s" : "", (int)used, ranks);
    if (count > AWAITED_NAMED)
        snprintf(text + used, AWAITED_TEXT_BYTES - used, " and %u more", count - AWAITED_NAMED);
    return count > 0;
}

#endif

// SPDX-License-Identifier: Apache-2.0
// Bitmaps of the ranks that are waited for, and their description in words.
#ifndef P4REDUCE_AWAITED_H
#define P4REDUCE_AWAITED_H

#include "wire/constants.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { AWAITED_TEXT_BYTES = 5 * MAX_RANKS + 8 };

static inline void awaited_add(uint32_t awaited[8], unsigned rank) {
    awaited[rank / 32] |= UINT32_C(1) << rank % 32;
}

// Writes "rank 3" or "ranks 1, 3". Returns false if the bitmap is empty.
static inline bool awaited_ranks(const uint32_t awaited[8], char text[AWAITED_TEXT_BYTES]) {
    char ranks[AWAITED_TEXT_BYTES] = "";
    size_t used = 0;
    unsigned count = 0;
    for (unsigned rank = 0; rank < MAX_RANKS; rank++)
        if (awaited[rank / 32] >> rank % 32 & 1)
            used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%u", count++ ? ", " : "", rank);
    snprintf(text, AWAITED_TEXT_BYTES, "rank%s %.*s", count > 1 ? "s" : "", (int)used, ranks);
    return count > 0;
}

#endif

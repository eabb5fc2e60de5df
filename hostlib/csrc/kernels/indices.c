// SPDX-License-Identifier: Apache-2.0
#include "p4reduce_indices.h"

#include "base/min.h"

#include <stdbool.h>

enum { WORD = 32, LONG = 64, GROUP = 64 };

uint64_t p4reduce_find_indices(const uint32_t *words, uint64_t count, uint32_t mask, int64_t *indices) {
    uint64_t found = 0;
    for (uint64_t from = 0; from < count; from += GROUP) {
        const uint64_t to = min_of(from + GROUP, count);
        uint32_t any = 0;
        for (uint64_t i = from; i < to; i++)
            any |= words[i];
        if ((any & mask) == 0)
            continue;
        for (uint64_t i = from; i < to; i++) {
            indices[found] = (int64_t)i; // overwritten if it does not count; a branch would be unpredictable
            found += (words[i] & mask) != 0;
        }
    }
    return found;
}

static void set_bit(uint32_t *words, uint64_t at) {
    words[at / WORD] |= UINT32_C(1) << at % WORD;
}

void p4reduce_encode_indices(const int64_t *indices, uint64_t count, uint32_t low, uint32_t *words) {
    if (low >= LONG) {
        for (uint64_t i = 0; i < count; i++)
            set_bit(words, (uint64_t)indices[i]);
        return;
    }
    uint64_t at = 0;
    for (uint32_t bit = 0; bit < low; bit++)
        for (uint64_t i = 0; i < count;) {
            const uint64_t offset = at % WORD, some = min_of(WORD - offset, count - i);
            uint32_t word = 0;
            for (uint64_t j = 0; j < some; j++)
                word |= (uint32_t)((uint64_t)indices[i + j] >> bit & 1) << (offset + j);
            words[at / WORD] |= word;
            i += some;
            at += some;
        }
    for (uint64_t i = 0; i < count; i++)
        set_bit(words, at + ((uint64_t)indices[i] >> low) + i);
}

// Finds the numbers, from 0, of the bits from `from` to `to` that are set. Returns false if they are not `count`.
static bool bits_set(const uint32_t *words, uint64_t from, uint64_t to, uint64_t count, int64_t *indices) {
    uint64_t found = 0;
    for (uint64_t word = from / WORD; word * WORD < to; word++) {
        uint32_t bits = words[word];
        if (word == from / WORD)
            bits &= UINT32_MAX << from % WORD;
        if (to - word * WORD < WORD)
            bits &= ~(UINT32_MAX << (to - word * WORD));
        for (; bits != 0; bits &= bits - 1) {
            if (found == count)
                return false;
            indices[found++] = (int64_t)(word * WORD + (uint64_t)__builtin_ctz(bits) - from);
        }
    }
    return found == count;
}

p4reduce_status p4reduce_decode_indices(const uint32_t *words, uint64_t bits, uint64_t count, uint32_t low,
                                        uint64_t bound, int64_t *indices) {
    const bool is_bitmap = low >= LONG;
    if (!bits_set(words, is_bitmap ? 0 : low * count, bits, count, indices))
        return P4REDUCE_INVALID;
    if (is_bitmap)
        return (uint64_t)indices[count - 1] < bound ? P4REDUCE_OK : P4REDUCE_INVALID;
    for (uint64_t i = 0; i < count; i++)
        indices[i] = (int64_t)(((uint64_t)indices[i] - i) << low);
    uint64_t at = 0;
    for (uint32_t bit = 0; bit < low; bit++)
        for (uint64_t i = 0; i < count;) {
            const uint64_t offset = at % WORD, some = min_of(WORD - offset, count - i);
            const uint32_t word = words[at / WORD] >> offset;
            for (uint64_t j = 0; j < some; j++)
                indices[i + j] |= (int64_t)(word >> j & 1) << bit;
            i += some;
            at += some;
        }
    bool increases = indices[0] >= 0 && (uint64_t)indices[count - 1] < bound;
    for (uint64_t i = 1; i < count; i++)
        increases &= indices[i - 1] < indices[i];
    return increases ? P4REDUCE_OK : P4REDUCE_INVALID;
}

uint64_t p4reduce_union_indices(const int64_t *const *lists, const uint64_t *counts, uint32_t list_count,
                                uint64_t *bitmap, uint64_t bound, int64_t *indices) {
    for (uint32_t list = 0; list < list_count; list++)
        for (uint64_t i = 0; i < counts[list]; i++) {
            const uint64_t index = (uint64_t)lists[list][i];
            bitmap[index / LONG] |= UINT64_C(1) << index % LONG;
        }
    uint64_t found = 0;
    for (uint64_t from = 0; from < bound; from += LONG)
        for (uint64_t bits = bitmap[from / LONG]; bits != 0; bits &= bits - 1)
            indices[found++] = (int64_t)(from + (uint64_t)__builtin_ctzll(bits));
    return found;
}

void p4reduce_locate_indices(const int64_t *all, const int64_t *indices, uint64_t count, int64_t *where) {
    int64_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        while (all[at] < indices[i])
            at++;
        where[i] = at;
    }
}

// SPDX-License-Identifier: Apache-2.0
#include "rows.h"

#include <stdlib.h>
#include <string.h>

static unsigned place_of(const struct destination *to, size_t size) {
    uint32_t hash = to->address.sin_addr.s_addr ^ (uint32_t)to->address.sin_port << 16 ^ (uint32_t)size;
    return hash * UINT32_C(2654435769) >> 26; // Fibonacci hashing, to 6 bits
}

_Static_assert(ROWS == 64, "so many places has the hash");

static bool same(const struct destination *one, const struct destination *other) {
    return one->port == other->port && one->address.sin_port == other->address.sin_port &&
           one->address.sin_addr.s_addr == other->address.sin_addr.s_addr;
}

static void send_row(struct rows *rows, unsigned place) {
    struct row *row = rows->places[place].row;
    udp_send_row(&rows->places[place].to, rows->thread, row);
    row->count = 0;
    rows->waiting &= ~(UINT64_C(1) << place);
}

void rows_add(struct rows *rows, const struct destination *to, const uint8_t *data, size_t size) {
    unsigned place = place_of(to, size);
    struct row *row = rows->places[place].row;
    if (row == NULL)
        row = rows->places[place].row = calloc(1, sizeof *row);
    if (row == NULL || size > MAX_DATAGRAM)
        return; // lost, as in a network
    if (row->count != 0 && (row->size != size || !same(&rows->places[place].to, to)))
        send_row(rows, place);
    rows->places[place].to = *to;
    row->size = size;
    memcpy(row_end(row), data, size);
    row->count++;
    rows->waiting |= UINT64_C(1) << place;
    if (row_is_full(row))
        send_row(rows, place);
}

void rows_flush(struct rows *rows) {
    while (rows->waiting != 0)
        send_row(rows, (unsigned)__builtin_ctzll(rows->waiting));
}

void rows_destroy(struct rows *rows) {
    for (unsigned place = 0; place < ROWS; place++)
        free(rows->places[place].row);
}

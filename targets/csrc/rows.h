// SPDX-License-Identifier: Apache-2.0
// What comes of the long way, in rows to one destination each.
#ifndef NATIVE_ROWS_H
#define NATIVE_ROWS_H

#include "udp.h"

#define ROWS 64

struct rows {
    unsigned thread;
    struct {
        struct destination to;
        struct row *row; // NULL: not used yet
    } places[ROWS];
    uint64_t waiting; // bit i: places[i] has datagrams to send
};

// Puts a datagram into the row of its size and destination, which may send others.
void rows_add(struct rows *rows, const struct destination *to, const uint8_t *data, size_t size);
// Sends what has been added.
void rows_flush(struct rows *rows);
void rows_destroy(struct rows *rows);

#endif

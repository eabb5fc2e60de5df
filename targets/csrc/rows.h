// SPDX-License-Identifier: Apache-2.0
// Datagrams of one size on their way to UDP ports, one after the other: a row is sent in one call and split up by the
// kernel (UDP_SEGMENT). One piece of memory is what the kernel copies fastest, by more than it costs to fill it.
#ifndef NATIVE_ROWS_H
#define NATIVE_ROWS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_SEGMENTS 64 // as many as every kernel takes
#define MAX_DATAGRAM 65507
#define ROWS 64

struct thread;
struct udp_port;

struct destination {
    struct udp_port *port;
    struct sockaddr_in address;
};

struct row {
    size_t size; // of each
    unsigned count;
    uint8_t data[MAX_DATAGRAM];
};

// Where the next datagram goes; `size` is the row's already, or the row is empty.
static inline uint8_t *row_end(struct row *row) {
    return row->data + row->count * row->size;
}

static inline bool row_is_full(const struct row *row) {
    return row->count == MAX_SEGMENTS || (row->count + 1) * row->size > MAX_DATAGRAM;
}

// Rows to one destination each.
struct rows {
    struct {
        struct destination to;
        struct row *row; // NULL: not used yet
    } places[ROWS];
    uint64_t waiting; // bit i: places[i] has datagrams to send
};

// Puts a datagram into the row of its size and destination, which may send others.
void rows_add(struct thread *thread, const struct destination *to, const uint8_t *data, size_t size);
// Sends what has been added.
void rows_flush(struct thread *thread);
void rows_destroy(struct rows *rows);

#endif

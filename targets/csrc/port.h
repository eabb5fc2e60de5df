// SPDX-License-Identifier: Apache-2.0
// Ports of the switch. A UDP port has a socket in each thread; any other belongs to one thread.
#ifndef NATIVE_PORT_H
#define NATIVE_PORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ALL_THREADS (~0U)

struct port;
struct thread;

struct port_kind {
    // The file descriptor to wait for in this thread.
    int (*descriptor)(const struct port *port, unsigned thread);
    // Processes a limited number of waiting packets, and returns it.
    unsigned (*receive)(struct port *port, struct thread *thread);
    // Sends a frame: with a thread, perhaps at the next `flush`; without (NULL), at once.
    void (*send)(struct port *port, struct thread *thread, const uint8_t *frame, size_t length);
    void (*flush)(struct port *port, struct thread *thread);
    void (*close)(struct port *port);
    bool udp; // the ports are `struct udp_port`
};

struct port {
    const struct port_kind *kind;
    unsigned number;
    unsigned thread;           // the port's thread, or ALL_THREADS
    _Atomic uint64_t received; // packets, like the next two
    _Atomic uint64_t sent;
    _Atomic uint64_t dropped; // could not be sent
};

static inline void port_count(_Atomic uint64_t *counter, uint64_t count) {
    atomic_fetch_add_explicit(counter, count, memory_order_relaxed);
}

#endif

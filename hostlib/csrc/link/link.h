// SPDX-License-Identifier: Apache-2.0
// How packets travel between a worker and the switch. Never blocks; used by one thread.
#ifndef P4REDUCE_LINK_H
#define P4REDUCE_LINK_H

#include "protocol/worker.h"

#include <errno.h>
#include <sys/uio.h>

// One of several aggregators: where it is, when it was last heard, and the last errno about a packet to it.
struct quiet {
    const char *address;
    double heard_at;
    int trouble;
};

struct link {
    // How many aggregators share the job's slots, and for a link that leads to one of them, which; 0 where there is
    // one.
    uint32_t aggregators, aggregator;
    int socket;  // becomes readable when `receive` has something, writable when `send` can go on
    bool full;   // the kernel takes no more for now
    int trouble; // the last errno that the kernel said against a packet, since one has arrived
    bool fatal;  // and it will always say that
    bool singly; // to be set by the engine: send no super-packets
    // An operation of so many packets begins, and no other is under way. May be NULL.
    void (*expect)(struct link *link, uint64_t packets);
    // Hands what has arrived to the worker, some of it at least. Returns how many packets it was; 0 for none.
    unsigned (*receive)(struct link *link, p4reduce_worker *worker, double now);
    // Sends payloads, of which those to one aggregator are neighbours, the longest come first, and so those of equal
    // length are neighbours too. There is room before each for the headers of a frame. Returns how many it took, the
    // first of them; what the kernel refuses is lost, as on a wire. `grouped` is set for those that went in
    // super-packets.
    uint32_t (*send)(struct link *link, const struct iovec *payloads, uint32_t count, bool *grouped);
    // Of several aggregators, the one that has left packets unanswered for longest. NULL where there is but one.
    struct quiet (*quietest)(const struct link *link);
    void (*describe)(const struct link *link, char *text, size_t room);
    void (*free)(struct link *link);
};

// Return NULL on error.
struct link *udp_open(int socket, p4reduce_error *error);
struct link *striped_open(const int *sockets, uint32_t aggregators, p4reduce_error *error); // UDP sockets
struct link *packet_socket_open(int socket, const uint8_t *headers, const struct layout *layout, p4reduce_error *error);

// Gives the worker a packet that has come: its slot field is the aggregator's, and becomes the job's.
static inline void link_hand_over(const struct link *link, p4reduce_worker *worker, uint8_t *payload, size_t length,
                                  double now) {
    if (link->aggregators > 1 && length >= AGGREGATION_SIZE) {
        const uint32_t half = load_16(payload + AGGREGATION_SLOT);
        const uint32_t mapped = ((half >> 1) * link->aggregators + link->aggregator) << 1 | (half & 1);
        if (mapped > UINT16_MAX)
            return; // none that a worker has ever sent
        store_16(payload + AGGREGATION_SLOT, (uint16_t)mapped);
    }
    p4reduce_worker_receive(worker, payload, length, now);
}

// Deals with what the kernel said to a send. Returns whether the packets must be tried again later.
static inline bool link_refused(struct link *link, int error) {
    if (error == EAGAIN || error == EWOULDBLOCK)
        return link->full = true;
    link->trouble = error;
    link->fatal |= error == EMSGSIZE;
    return false;
}

#endif

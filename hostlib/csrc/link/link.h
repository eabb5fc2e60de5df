// SPDX-License-Identifier: Apache-2.0
// Links, which carry packets between a worker and the switch. They never block. One thread at a time uses a link.
#ifndef P4REDUCE_LINK_H
#define P4REDUCE_LINK_H

#include "protocol/worker.h"
#include "wire/ipv6.h"

#include <errno.h>
#include <sys/uio.h>

// The state of an aggregator: its address, when its last packet arrived, and the last errno for a packet to it.
struct aggregator_state {
    const char *address;
    double heard_at;
    int trouble;
};

// A link, as the engine sees it. Each kind of link has a structure of its own that begins with this one.
struct link {
    // How many aggregators share the job's slots, and which of them this link leads to; the numbers of spares follow. 0
    // if this is the only link: then packets have the worker's job, generation and slots.
    uint32_t aggregators, aggregator;
    // A list, linked by `next_carried`, of aggregators that are lost: their packets go the way of this link's, each
    // with another `job`, number << 16 | generation.
    struct link *carried, *next_carried;
    uint32_t job;
    // XOR with this mask turns the worker's job number and generation into those in packets to and from the aggregator,
    // and back. Any others stay others.
    uint32_t job_mask;
    int socket;  // readable when `receive` has packets, writable when `send` can go on
    bool full;   // the kernel takes no more for now
    int trouble; // the kernel's last errno for a packet, if none has arrived since then
    bool fatal;  // the kernel will always refuse such packets
    bool singly; // the engine sets it: send no super-packets
    // Announces an operation of about `packets` packets, while no other is under way. May be NULL.
    void (*expect)(struct link *link, uint64_t packets);
    // Hands packets that have arrived to the worker, but not always all. Returns how many; 0 if there are none.
    unsigned (*receive)(struct link *link, p4reduce_worker *worker, double now);
    // Sends payloads, sorted by aggregator and then by length, the longest first. There is room before each for the
    // headers of a frame. Returns how many it took, from the first on. A packet that the kernel refuses is lost, as on
    // a wire. `grouped` is set for those that were sent in super-packets.
    uint32_t (*send)(struct link *link, const struct iovec *payloads, uint32_t count, bool *grouped);
    // Returns the aggregator that has left packets unanswered for longest. NULL if there is only one aggregator.
    struct aggregator_state (*longest_silent)(const struct link *link);
    // Sends the packets of one aggregator to the switch of another from now on, under the number << 16 | generation
    // `job`. Returns false if there are no such aggregators. NULL if there is only one aggregator.
    bool (*redirect)(struct link *link, uint32_t aggregator, uint32_t via, uint32_t job);
    void (*describe)(const struct link *link, char *text, size_t room);
    void (*free)(struct link *link);
};

// These return NULL on error. The sockets stay the caller's, who must not use or close them before the link is freed.
struct link *udp_open(int socket, p4reduce_error *error);
// `count` UDP sockets, of which the last `spares` lead to aggregators without slots. `jobs`: number << 16 | generation
// at each aggregator, if they differ from the worker's, `own`; or NULL.
struct link *striped_open(const int *sockets, uint32_t count, uint32_t spares, const uint32_t *jobs, uint32_t own,
                          p4reduce_error *error);
// `headers`: those of frames to the switch, frame_headers_size of them.
struct link *packet_socket_open(int socket, const uint8_t *headers, const struct layout *layout, p4reduce_error *error);

// Returns the length of a frame's Ethernet, IP and UDP headers, by its EtherType; 0 if that is neither IPv4 nor IPv6.
static inline size_t frame_headers_size(const uint8_t *frame) {
    const uint32_t type = load_16(frame + ETHERNET_TYPE);
    return type == ETHERTYPE_IPV4 ? UDP_HEADERS_SIZE : type == ETHERTYPE_IPV6 ? UDP_IPV6_HEADERS_SIZE : 0;
}

// Turns a packet's job and generation from the worker's into the aggregator's, or back.
static inline void link_mask_job(const struct link *link, uint8_t *payload) {
    if (link->job_mask != 0)
        store_32(payload + AGGREGATION_JOB, load_32(payload + AGGREGATION_JOB) ^ link->job_mask);
}

// Hands the worker a packet that has arrived. Its job, generation and slot are the aggregator's, and become the job's.
static inline void link_hand_over(const struct link *link, p4reduce_worker *worker, uint8_t *payload, size_t length,
                                  bool marked, double now) {
    if (link->aggregators > 0 && length >= AGGREGATION_SIZE) {
        for (const struct link *other = link->carried; other != NULL; other = other->next_carried)
            if (other->job == load_32(payload + AGGREGATION_JOB)) {
                link = other;
                break;
            }
        if (link->aggregator >= link->aggregators)
            return; // a spare carries no slots of its own
        link_mask_job(link, payload);
        const uint32_t half = load_16(payload + AGGREGATION_SLOT);
        const uint32_t mapped = ((half >> 1) * link->aggregators + link->aggregator) << 1 | (half & 1);
        if (mapped > UINT16_MAX)
            return; // no worker has sent it
        store_16(payload + AGGREGATION_SLOT, (uint16_t)mapped);
    }
    worker_receive(worker, payload, length, marked, now);
}

// Handles the kernel's error for a send. Returns whether the packets must be sent again later.
static inline bool link_refused(struct link *link, int error) {
    if (error == EAGAIN || error == EWOULDBLOCK)
        return link->full = true;
    link->trouble = error;
    link->fatal |= error == EMSGSIZE;
    return false;
}

#endif

// SPDX-License-Identifier: Apache-2.0
// A network in virtual time, for Python: hosts that run the C worker (p4reduce_worker.h), switches that run the native
// plane (native.h), and links between them.
//
// A simulation is one thread's. The same calls with the same seed give the same packets at the same times, which
// `simulator_digest` shows. Times are in picoseconds from the start, so that a byte's time at 400 Gbit/s, 20 ps, is
// exact. Functions that add something return its index, from 0, or a negative errno.
#ifndef SIMULATOR_H
#define SIMULATOR_H

#include <stddef.h>
#include <stdint.h>

#include "native.h"
#include "p4reduce_worker.h"

#define SIMULATOR_API __attribute__((visibility("default")))

struct simulation;

// One direction of a cable, with the queue before it.
struct simulator_link {
    uint64_t rate;     // bits a second; 0: no limit
    uint64_t delay;    // propagation
    uint64_t queue;    // bytes that may wait, the packet included; others are dropped at the tail; 0: no limit
    uint64_t mark;     // bytes that wait from which on packets are marked (CE, RFC 3168); 0: never
    uint64_t burst;    // bytes that may leave at once after a pause: those of a token bucket; 0: of a cable
    uint32_t overhead; // bytes on the wire in addition to the frame: preamble, check sequence, gap
    uint32_t reserved; // 0
    double loss;       // share of the packets that are lost at random, after they have used the link
};

// The processor of a host, which does one thing at a time, and its clock.
struct simulator_host {
    uint32_t ip;
    uint32_t reserved;     // 0
    uint64_t receive;      // for each packet
    uint64_t receive_byte; // for each byte of a payload
    uint64_t send;
    uint64_t send_byte;
    uint64_t scan_block; // for each block of a tensor that is scanned for non-zeros
    double clock_offset; // seconds that the host's clock is ahead at the start
    double clock_drift;  // seconds that it gains in a second
};

// The processing of a packet by a switch. A switching chip has a delay alone, software uses a processor as well.
struct simulator_switch {
    uint64_t delay;   // of each packet, between its arrival and its departure
    uint64_t receive; // processor time for each packet that arrives
    uint64_t send;    // processor time for each packet that leaves
};

// An aggregator of a rank's slots: a switch, and the job's number and generation there.
struct simulator_aggregator {
    uint32_t ip;
    uint16_t udp_port; // from which the rank sends to it; different for each aggregator of a rank
    uint16_t job;
    uint16_t generation;
    uint16_t reserved; // 0
};

struct simulator_link_counts {
    uint64_t packets; // accepted, also those that were lost on the way
    uint64_t bytes;   // of these, with the overhead
    uint64_t dropped; // at the tail of the queue
    uint64_t lost;    // at random
    uint64_t marked;
    uint64_t longest_wait; // for the link to be free
};

struct simulator_operation {
    uint32_t rank;
    int32_t status; // p4reduce_status; -1: it has not ended
    uint64_t started;
    uint64_t ended;
};

// A message of a system whose hosts compute the sums. It is sent once all messages that it waits for have arrived at
// its source; of messages at one host, the one that may be sent first is sent first, whole.
struct simulator_message {
    uint64_t bytes;
    uint32_t source;    // a node
    uint32_t path;      // its links are paths[path] and on, up to SIMULATOR_PATH_END
    uint32_t waits_for; // how many messages; 0: it is sent at the start
    uint32_t after;     // the messages that wait for it are successors[after] and on
    uint32_t after_count;
    uint32_t reserved; // 0
    uint64_t started;  // result: when its first packet was sent, and when its last had been received
    uint64_t ended;
};
#define SIMULATOR_PATH_END UINT32_MAX

struct simulator_messages {
    struct simulator_message *messages;
    const uint32_t *successors;
    const uint32_t *paths;
    uint32_t count;
    uint32_t headers;  // bytes of a packet in addition to its part of a message, without the links' overhead
    uint32_t payload;  // most bytes of a message in a packet
    uint32_t reserved; // 0
};

// Returns NULL without memory. `longest`: bytes of the longest frame.
SIMULATOR_API struct simulation *simulator_new(uint64_t seed, size_t longest);
SIMULATOR_API void simulator_free(struct simulation *simulation);

// Add nodes and the links between them: `from_port` is the port of a switch; a host has one link, from port 0. `native`
// and `plane` stay the caller's; a switch where both are NULL forwards messages alone.
SIMULATOR_API int simulator_add_switch(struct simulation *simulation, struct native_switch *native, struct plane *plane,
                                       const struct simulator_switch *settings);
SIMULATOR_API int simulator_add_host(struct simulation *simulation, const struct simulator_host *settings);
SIMULATOR_API int simulator_add_link(struct simulation *simulation, unsigned from, unsigned from_port, unsigned to,
                                     unsigned to_port, const struct simulator_link *settings);

// Adds a rank at a host that has none. Slot s is at aggregator s mod `count`.
SIMULATOR_API int simulator_add_rank(struct simulation *simulation, unsigned host,
                                     const p4reduce_membership *membership, const p4reduce_timing *timing,
                                     const struct simulator_aggregator *aggregators, unsigned count,
                                     p4reduce_error *error);

// Submits an operation at a time to come. The request's `on_end` and `context` are ignored.
SIMULATOR_API int simulator_submit(struct simulation *simulation, unsigned rank, const p4reduce_request *request,
                                   uint64_t at);

// Starts messages now, once in a simulation. All that is referred to stays the caller's until they have ended.
SIMULATOR_API int simulator_start_messages(struct simulation *simulation, const struct simulator_messages *messages);

// Counts the bytes that leave on each link in each interval of this length, the first of which begins at `from`.
SIMULATOR_API void simulator_record(struct simulation *simulation, uint64_t interval, uint64_t from);

// From now on writes each packet that arrives, on any link, to a file in the format of pcap with nanoseconds: its first
// `snap` bytes. Returns 0 or a negative errno. Errors of later writes are those of `simulator_end_capture`.
SIMULATOR_API int simulator_capture(struct simulation *simulation, const char *path, uint32_t snap);
SIMULATOR_API int simulator_end_capture(struct simulation *simulation);

// Runs until all operations and messages have ended, the time is `until`, or `events` events have happened. Returns how
// many have not ended, or -ENOMEM.
SIMULATOR_API long simulator_run(struct simulation *simulation, uint64_t until, uint64_t events);

SIMULATOR_API uint64_t simulator_now(const struct simulation *simulation);
SIMULATOR_API uint64_t simulator_events(const struct simulation *simulation);
// Returns a hash of all events so far: of their times, links and packets.
SIMULATOR_API uint64_t simulator_digest(const struct simulation *simulation);
SIMULATOR_API void simulator_link_counts(const struct simulation *simulation, unsigned link,
                                         struct simulator_link_counts *counts);
// Returns the bytes of each interval so far, which belong to the simulation, and how many intervals these are.
SIMULATOR_API const uint64_t *simulator_recorded(const struct simulation *simulation, unsigned link, size_t *count);
SIMULATOR_API void simulator_operation(const struct simulation *simulation, unsigned operation,
                                       struct simulator_operation *state, p4reduce_error *error);
SIMULATOR_API void simulator_rank_stats(const struct simulation *simulation, unsigned rank, p4reduce_stats *stats);
// Returns how many packets switches sent to ports without a link, and hosts received that were not for their rank.
SIMULATOR_API uint64_t simulator_strays(const struct simulation *simulation);

#endif

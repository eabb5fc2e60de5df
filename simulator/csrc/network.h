// SPDX-License-Identifier: Apache-2.0
// Packets, links and nodes of a simulation, and its state. Who has a packet's pointer owns the packet.
#ifndef NETWORK_H
#define NETWORK_H

#include <stdio.h>

#include "calendar.h"
#include "simulator.h"

struct packet {
    struct packet *next; // in a queue, or in the list of free packets
    struct link *link;   // on which it travels
    size_t length;
    struct message *message; // NULL: the frame has the contents
    uint32_t hop;            // of the message's path
    uint8_t frame[];         // from the Ethernet header on; as long as `longest` of the simulation
};

struct link {
    struct simulator_link settings;
    uint32_t number;
    struct node *to;
    unsigned to_port;
    uint64_t random;
    uint64_t free_at; // when the last packet that was accepted has left, if there is no burst
    struct simulator_link_counts counts;
    uint64_t *recorded; // bytes by interval
    size_t recorded_count, recorded_room;
};

struct operation {
    struct simulator_operation state;
    p4reduce_request request;
    p4reduce_error error;
    struct simulation *simulation;
    struct node *host;
};

#define SWITCH_PORTS 512
#define MOST_AGGREGATORS 32

struct switch_node {
    struct simulator_switch settings;
    struct native_switch *native;
    struct plane *plane;
    struct link *ports[SWITCH_PORTS];
};

struct host_node {
    struct simulator_host settings;
    struct link *link;
    p4reduce_worker *worker;  // NULL: no rank is at this host
    uint16_t job, generation; // as the worker has them
    struct simulator_aggregator aggregators[MOST_AGGREGATORS];
    unsigned aggregator_count;
    struct packet *first, *last; // received, not handled yet
    uint64_t scanned;            // blocks whose scan has been accounted for
    unsigned since_tick;         // packets handled since the timers ran
    uint64_t turn_at;            // time of the earliest EVENT_TURN to come
};

struct node {
    bool is_host;
    uint64_t busy_until;
    union {
        struct switch_node as_switch;
        struct host_node as_host;
    };
};

struct player; // of messages

struct simulation {
    uint64_t seed;
    size_t longest; // bytes of a frame
    struct calendar calendar;
    uint64_t now;
    uint64_t happened;
    uint64_t digest;
    uint64_t strays;
    uint64_t interval; // of recording; 0: none
    uint64_t record_from;
    struct packet *free_packets;
    struct slab *slabs; // the memory of all packets
    FILE *capture; // NULL: none
    uint32_t snap; // bytes of a packet that are captured
    struct node **nodes;
    struct link **links;
    struct node **ranks; // their hosts
    struct operation **operations;
    struct player *player; // NULL: there are no messages
    unsigned node_count, link_count, rank_count, operation_count;
    unsigned pending; // operations and messages that have not ended
    bool out_of_memory;
};

// Returns a packet with room for the longest frame, or NULL without memory, which the simulation remembers.
struct packet *packet_new(struct simulation *simulation);
void packet_free(struct simulation *simulation, struct packet *packet);
// Frees the memory of all packets, wherever they are.
void packets_free(struct simulation *simulation);

// Sends a packet on a link at a time, which must not be before that of the link's last packet. NULL is accepted.
void link_send(struct simulation *simulation, struct link *link, struct packet *packet, uint64_t at);

// Writes a packet that arrives now to the capture.
void capture_packet(struct simulation *simulation, const struct packet *packet);

// Handle a packet that arrives now.
void switch_receive(struct simulation *simulation, struct node *node, struct packet *packet);
void host_receive(struct simulation *simulation, struct node *node, struct packet *packet);

// Handle what a host has to do now, or the operation to be submitted now.
void host_turn(struct simulation *simulation, struct node *node);
void host_start(struct simulation *simulation, struct operation *operation);

// Handle a message's packet that arrives now, the next packet that a sender may send, and the end of a message.
void message_receive(struct simulation *simulation, struct packet *packet);
void message_send(struct simulation *simulation, void *sender);
void message_end(struct simulation *simulation, struct message *message);
void player_free(struct player *player);

// Returns the next number of a random sequence (SplitMix64).
static inline uint64_t random_next(uint64_t *state) {
    uint64_t bits = *state += UINT64_C(0x9E3779B97F4A7C15);
    bits = (bits ^ bits >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    bits = (bits ^ bits >> 27) * UINT64_C(0x94D049BB133111EB);
    return bits ^ bits >> 31;
}

// Mixes a number into the digest (FNV-1a by words, with the upper half folded in).
static inline void digest_add(struct simulation *simulation, uint64_t number) {
    const uint64_t mixed = (simulation->digest ^ number) * UINT64_C(0x100000001B3);
    simulation->digest = mixed ^ mixed >> 32;
}

#endif

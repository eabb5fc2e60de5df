// SPDX-License-Identifier: Apache-2.0
// A link is a queue whose contents follow from one number, the time at which it is free: packets leave in order at the
// link's rate, so the bytes that wait are those that leave until then. A packet needs one event, its arrival.
#include "network.h"

#include <stdlib.h>
#include <string.h>

#include "wire/headers.h"

static const uint64_t PS_PER_S = UINT64_C(1000000000000);

// Returns how long the link needs for so many bytes.
static uint64_t time_of(const struct link *link, uint64_t bytes) {
    return link->settings.rate == 0 ? 0 : (uint64_t)((__uint128_t)bytes * 8 * PS_PER_S / link->settings.rate);
}

static bool is_lost(struct link *link) {
    return link->settings.loss > 0 && (double)(random_next(&link->random) >> 11) * 0x1p-53 < link->settings.loss;
}

// Sets CE in the IP header, and updates its checksum (RFC 1624).
static void mark(uint8_t *frame) {
    uint8_t *ipv4 = frame + ETHERNET_SIZE;
    const uint32_t before = load_16(ipv4);
    ipv4[IPV4_TOS] |= ECN_CE;
    uint32_t sum = (~load_16(ipv4 + IPV4_CHECKSUM) & 0xFFFFu) + (~before & 0xFFFFu) + load_16(ipv4);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    store_16(ipv4 + IPV4_CHECKSUM, ~sum);
}

// Adds bytes that leave at a time to the link's record.
static void record(struct simulation *simulation, struct link *link, uint64_t at, uint64_t bytes) {
    const size_t index = (at - simulation->record_from) / simulation->interval;
    if (index >= link->recorded_room) {
        const size_t room = 2 * index + 64;
        uint64_t *recorded = realloc(link->recorded, room * sizeof *recorded);
        if (recorded == NULL) {
            simulation->out_of_memory = true;
            return;
        }
        memset(recorded + link->recorded_room, 0, (room - link->recorded_room) * sizeof *recorded);
        link->recorded = recorded;
        link->recorded_room = room;
    }
    link->recorded[index] += bytes;
    link->recorded_count = index + 1;
}

void link_send(struct simulation *simulation, struct link *link, struct packet *packet, uint64_t at) {
    if (packet == NULL)
        return;
    if (link == NULL) {
        simulation->strays++;
        packet_free(simulation, packet);
        return;
    }
    const uint64_t bytes = packet->length + link->settings.overhead, time = time_of(link, bytes);
    const uint64_t wait = link->free_at > at ? link->free_at - at : 0;
    if (link->settings.queue != 0 && wait + time > time_of(link, link->settings.queue)) {
        link->counts.dropped++;
        packet_free(simulation, packet);
        return;
    }
    if (link->settings.mark != 0 && wait >= time_of(link, link->settings.mark)) {
        link->counts.marked++;
        mark(packet->frame);
    }
    // A token bucket: after a pause, the link is as if it had been free for some time already.
    const uint64_t burst = time_of(link, link->settings.burst), start = at > burst ? at - burst : 0;
    link->free_at = (link->free_at > start ? link->free_at : start) + time;
    const uint64_t leaves = link->free_at > at ? link->free_at : at;
    link->counts.packets++;
    link->counts.bytes += bytes;
    if (wait > link->counts.longest_wait)
        link->counts.longest_wait = wait;
    if (simulation->interval != 0 && leaves >= simulation->record_from)
        record(simulation, link, leaves, bytes);
    if (is_lost(link)) {
        link->counts.lost++;
        packet_free(simulation, packet);
        return;
    }
    packet->link = link;
    calendar_add(&simulation->calendar, leaves + link->settings.delay, EVENT_ARRIVAL, packet);
}

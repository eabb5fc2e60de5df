// SPDX-License-Identifier: Apache-2.0
// A host runs a worker as an engine does: it handles the packets that have arrived, and the timers when there are none
// left, or after TICK_AT packets. Each step uses the host's processor, and the next one begins when it is free. A worker
// sees its host's clock at the end of the step.
//
// `turn_at` is the earliest turn in the calendar. Later ones may be there too, which then find nothing to do. So the
// timers, which nearly each packet moves, need few events.
#include "network.h"

#include <math.h>
#include <string.h>

#include "wire/headers.h"

static const double S_PER_PS = 1e-12;
static const uint64_t NEVER_PS = UINT64_MAX;
enum { TICK_AT = 61, BATCH = 64, DONT_FRAGMENT = 0x4000 };

static double clock_at(const struct host_node *host, uint64_t time) {
    return host->settings.clock_offset + (double)time * S_PER_PS * (1 + host->settings.clock_drift);
}

// Returns when the host's clock shows `seconds`, or a moment later: never before.
static uint64_t time_at(const struct host_node *host, double seconds) {
    const double time = ceil((seconds - host->settings.clock_offset) / (1 + host->settings.clock_drift) / S_PER_PS);
    if (!(time < 0x1p62))
        return NEVER_PS;
    uint64_t found = time > 0 ? (uint64_t)time : 0;
    while (clock_at(host, found) < seconds) // rounding
        found += 1 + found / (UINT64_C(1) << 50);
    return found;
}

static void write_headers(const struct host_node *host, const struct simulator_aggregator *to, uint8_t *frame,
                          size_t payload) {
    uint8_t *ipv4 = frame + ETHERNET_SIZE, *udp = ipv4 + IPV4_SIZE;
    store_48(frame + ETHERNET_DST, UINT64_C(0x0200) << 32 | to->ip);
    store_48(frame + ETHERNET_SRC, UINT64_C(0x0200) << 32 | host->settings.ip);
    store_16(frame + ETHERNET_TYPE, ETHERTYPE_IPV4);
    memset(ipv4, 0, IPV4_SIZE);
    ipv4[IPV4_VERSION] = 0x45;
    ipv4[IPV4_TOS] = ECN_ECT_0;
    store_16(ipv4 + IPV4_TOTAL_LENGTH, (uint32_t)(IPV4_SIZE + UDP_SIZE + payload));
    store_16(ipv4 + IPV4_FLAGS, DONT_FRAGMENT);
    ipv4[IPV4_TTL] = DEFAULT_TTL;
    ipv4[IPV4_PROTOCOL] = PROTOCOL_UDP;
    store_32(ipv4 + IPV4_SRC, host->settings.ip);
    store_32(ipv4 + IPV4_DST, to->ip);
    uint32_t sum = 0;
    for (unsigned at = 0; at < IPV4_SIZE; at += 2)
        sum += load_16(ipv4 + at);
    sum = (sum & 0xFFFF) + (sum >> 16);
    store_16(ipv4 + IPV4_CHECKSUM, ~(sum + (sum >> 16)));
    store_16(udp + UDP_SRC_PORT, to->udp_port);
    store_16(udp + UDP_DST_PORT, AGGREGATION_PORT);
    store_16(udp + UDP_LENGTH, (uint32_t)(UDP_SIZE + payload));
    store_16(udp + UDP_CHECKSUM, 0);
}

// Changes the fields of a payload that differ between the worker and an aggregator: the slot, and the job's number and
// generation.
static void translate(uint8_t *payload, uint32_t slot, uint16_t job, uint16_t generation) {
    store_16(payload + AGGREGATION_SLOT, slot << 1 | (load_16(payload + AGGREGATION_SLOT) & 1));
    store_16(payload + AGGREGATION_JOB, job);
    store_16(payload + AGGREGATION_GENERATION, generation);
}

static uint32_t slot_of(const uint8_t *payload) {
    return load_16(payload + AGGREGATION_SLOT) >> 1;
}

static void send_payload(struct simulation *simulation, struct host_node *host, const p4reduce_payload *payload,
                         uint64_t at) {
    struct packet *packet = packet_new(simulation);
    if (packet == NULL)
        return;
    uint8_t *copy = packet->frame + UDP_HEADERS_SIZE;
    memcpy(copy, payload->bytes, payload->length);
    const uint32_t slot = slot_of(copy);
    const struct simulator_aggregator *to = &host->aggregators[slot % host->aggregator_count];
    translate(copy, slot / host->aggregator_count, to->job, to->generation);
    write_headers(host, to, packet->frame, payload->length);
    packet->length = UDP_HEADERS_SIZE + payload->length;
    link_send(simulation, host->link, packet, at);
}

// Accounts for the worker's last scan, and sends what the worker has for its switches, one packet after the other.
static void finish_step(struct simulation *simulation, struct node *node) {
    struct host_node *host = &node->as_host;
    p4reduce_payload payloads[BATCH];
    size_t count;
    const uint64_t scanned = p4reduce_worker_scanned(host->worker);
    node->busy_until += (scanned - host->scanned) * host->settings.scan_block;
    host->scanned = scanned;
    while ((count = p4reduce_worker_take(host->worker, payloads, BATCH)) != 0)
        for (size_t i = 0; i < count; i++) {
            node->busy_until += host->settings.send + payloads[i].length * host->settings.send_byte;
            send_payload(simulation, host, &payloads[i], node->busy_until);
        }
}

// Returns the payload of a packet from one of the rank's aggregators, as the worker knows it; otherwise NULL.
static uint8_t *accept(const struct host_node *host, struct packet *packet) {
    uint8_t *frame = packet->frame, *udp = frame + ETHERNET_SIZE + IPV4_SIZE, *payload = frame + UDP_HEADERS_SIZE;
    if (packet->length < UDP_HEADERS_SIZE + AGGREGATION_SIZE || load_16(frame + ETHERNET_TYPE) != ETHERTYPE_IPV4 ||
        load_16(udp + UDP_SRC_PORT) != AGGREGATION_PORT ||
        load_32(frame + ETHERNET_SIZE + IPV4_DST) != host->settings.ip)
        return NULL;
    for (unsigned index = 0; index < host->aggregator_count; index++) {
        const struct simulator_aggregator *from = &host->aggregators[index];
        if (load_16(udp + UDP_DST_PORT) != from->udp_port)
            continue;
        if (load_16(payload + AGGREGATION_JOB) != from->job ||
            load_16(payload + AGGREGATION_GENERATION) != from->generation)
            return NULL;
        translate(payload, slot_of(payload) * host->aggregator_count + index, host->job, host->generation);
        return payload;
    }
    return NULL;
}

static void handle_packet(struct simulation *simulation, struct node *node, struct packet *packet) {
    struct host_node *host = &node->as_host;
    uint8_t *payload = accept(host, packet);
    if (payload == NULL) {
        simulation->strays++;
    } else {
        const size_t length = packet->length - UDP_HEADERS_SIZE;
        node->busy_until += host->settings.receive + length * host->settings.receive_byte;
        const bool marked = (packet->frame[ETHERNET_SIZE + IPV4_TOS] & ECN_MASK) == ECN_CE;
        const double now = clock_at(host, node->busy_until);
        (marked ? p4reduce_worker_receive_marked : p4reduce_worker_receive)(host->worker, payload, length, now);
        host->since_tick++;
        finish_step(simulation, node);
    }
    packet_free(simulation, packet);
}

static void handle_timers(struct simulation *simulation, struct node *node) {
    struct host_node *host = &node->as_host;
    host->since_tick = 0;
    if (time_at(host, p4reduce_worker_deadline(host->worker)) > node->busy_until)
        return;
    p4reduce_worker_tick(host->worker, clock_at(host, node->busy_until));
    finish_step(simulation, node);
    node->busy_until++; // so that time passes between two ticks that find nothing to do
}

static void plan_turn(struct simulation *simulation, struct node *node) {
    struct host_node *host = &node->as_host;
    uint64_t next = host->first != NULL ? 0 : time_at(host, p4reduce_worker_deadline(host->worker));
    if (next < node->busy_until)
        next = node->busy_until;
    if (next < host->turn_at) {
        host->turn_at = next;
        calendar_add(&simulation->calendar, next, EVENT_TURN, node);
    }
}

// Waits until the host's processor is free. Returns whether it is.
static bool begin(struct simulation *simulation, struct node *node) {
    if (node->busy_until > simulation->now)
        return false;
    node->busy_until = simulation->now;
    return true;
}

void host_turn(struct simulation *simulation, struct node *node) {
    struct host_node *host = &node->as_host;
    if (host->turn_at == simulation->now)
        host->turn_at = NEVER_PS;
    if (begin(simulation, node)) {
        struct packet *packet = host->first;
        if (packet != NULL) {
            host->first = packet->next;
            handle_packet(simulation, node, packet);
        }
        if (host->first == NULL || host->since_tick >= TICK_AT)
            handle_timers(simulation, node);
    }
    plan_turn(simulation, node);
}

void host_receive(struct simulation *simulation, struct node *node, struct packet *packet) {
    struct host_node *host = &node->as_host;
    if (host->worker == NULL) {
        simulation->strays++;
        packet_free(simulation, packet);
        return;
    }
    packet->next = NULL;
    if (host->first == NULL)
        host->first = packet;
    else
        host->last->next = packet;
    host->last = packet;
    if (node->busy_until <= simulation->now)
        host_turn(simulation, node);
    else
        plan_turn(simulation, node);
}

static void on_end(void *context, const p4reduce_error *error) {
    struct operation *operation = context;
    operation->state.ended = operation->host->busy_until;
    operation->state.status = error == NULL ? P4REDUCE_OK : error->status;
    if (error != NULL)
        operation->error = *error;
    operation->simulation->pending--;
}

void host_start(struct simulation *simulation, struct operation *operation) {
    struct node *node = operation->host;
    if (!begin(simulation, node)) { // an application's thread waits for the processor, too
        calendar_add(&simulation->calendar, node->busy_until, EVENT_START, operation);
        return;
    }
    struct host_node *host = &node->as_host;
    operation->state.started = simulation->now;
    operation->request.on_end = on_end;
    operation->request.context = operation;
    operation->error.size = sizeof operation->error;
    const p4reduce_status status = p4reduce_worker_submit(host->worker, &operation->request,
                                                          clock_at(host, simulation->now), &operation->error);
    if (status != P4REDUCE_OK)
        on_end(operation, &operation->error);
    finish_step(simulation, node);
    plan_turn(simulation, node);
}

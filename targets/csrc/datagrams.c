// SPDX-License-Identifier: Apache-2.0
#include "datagrams.h"

#include "admission.h"
#include "packet.h"
#include "pipeline.h"

#define DONT_FRAGMENT 0x4000

size_t udp_headers_size(const struct udp_port *udp) {
    return ip_is_ipv4(udp->ip) ? UDP_HEADERS_SIZE : UDP_IPV6_HEADERS_SIZE;
}

static void write_ipv4(uint8_t *ipv4, struct ip from, struct ip to, unsigned ecn, size_t payload) {
    memset(ipv4, 0, IPV4_SIZE);
    ipv4[IPV4_VERSION] = 0x45;
    ipv4[IPV4_TOS] = (uint8_t)ecn;
    store_16(ipv4 + IPV4_TOTAL_LENGTH, (uint32_t)(IPV4_SIZE + payload));
    store_16(ipv4 + IPV4_FLAGS, DONT_FRAGMENT);
    ipv4[IPV4_TTL] = DEFAULT_TTL;
    ipv4[IPV4_PROTOCOL] = PROTOCOL_UDP;
    store_32(ipv4 + IPV4_SRC, ip_last_32(from));
    store_32(ipv4 + IPV4_DST, ip_last_32(to));
    store_16(ipv4 + IPV4_CHECKSUM, ipv4_checksum(ipv4));
}

static void write_ipv6(uint8_t *ipv6, struct ip from, struct ip to, unsigned ecn, size_t payload) {
    memset(ipv6, 0, IPV6_SIZE);
    ipv6[IPV6_VERSION] = 6 << 4;
    ipv6_set_ecn(ipv6, ecn);
    store_16(ipv6 + IPV6_PAYLOAD_LENGTH, (uint32_t)payload);
    ipv6[IPV6_NEXT_HEADER] = PROTOCOL_UDP;
    ipv6[IPV6_HOP_LIMIT] = DEFAULT_TTL;
    ip_store(ipv6 + IPV6_SRC, from);
    ip_store(ipv6 + IPV6_DST, to);
}

void udp_write_headers(const struct udp_port *udp, uint8_t *frame, struct ip ip, uint16_t udp_port, unsigned ecn,
                       size_t length) {
    const bool ipv4 = ip_is_ipv4(udp->ip);
    uint8_t *datagram = frame + udp_headers_size(udp) - UDP_SIZE;
    store_48(frame + ETHERNET_DST, ip_mac(udp->ip));
    store_48(frame + ETHERNET_SRC, ip_mac(ip));
    store_16(frame + ETHERNET_TYPE, ipv4 ? ETHERTYPE_IPV4 : ETHERTYPE_IPV6);
    (ipv4 ? write_ipv4 : write_ipv6)(frame + ETHERNET_SIZE, ip, udp->ip, ecn, UDP_SIZE + length);
    store_16(datagram + UDP_SRC_PORT, udp_port);
    store_16(datagram + UDP_DST_PORT, AGGREGATION_PORT);
    store_16(datagram + UDP_LENGTH, (uint32_t)(UDP_SIZE + length));
    store_16(datagram + UDP_CHECKSUM, 0);
}

// The sender of the datagrams in one message, looked up once.
struct flow {
    struct sender sender;
    unsigned ecn;
    size_t headers_size; // of a frame around a datagram
    bool is_valid;
    uint64_t identity; // job, generation and worker, as in the header
    struct member member;
    struct delivery *delivery; // NULL: its packets take the general path
};

static void process_frame(struct thread *thread, const struct udp_port *udp, const struct flow *flow,
                          const uint8_t *data, size_t length) {
    uint8_t *frame = context_frame(&thread->context);
    udp_write_headers(udp, frame, flow->sender.ip, flow->sender.udp_port, flow->ecn, length);
    memcpy(frame + flow->headers_size, data, length);
    pipeline_process(&thread->context, flow->sender.port, flow->headers_size + length);
}

// --- the fast path ---------------------------------------------------------------------------------------------------

static uint64_t identity_of(const struct header *header) {
    return (uint64_t)header->job << 24 | (uint64_t)header->generation << 8 | header->worker;
}

static void look_up_flow(struct thread *thread, struct flow *flow, const struct header *header) {
    const struct plane *plane = thread->context.plane;
    bool from_parent;
    flow->is_valid = true;
    flow->identity = identity_of(header);
    flow->delivery = NULL;
    // Packets of a job whose parent is another switch take the general path.
    if (find_member(plane, &flow->sender, header, header->worker, &flow->member) &&
        find_uplink(plane, &flow->sender, header->job, &from_parent) == NULL)
        flow->delivery = results_delivery(&thread->results, plane, header->job, flow->member.group);
}

// Applies a datagram that starts a round or adds to one, if its result can be sent in a batch. Otherwise it changes
// nothing and returns false: the datagram takes the general path.
static bool try_fast_path(struct thread *thread, struct flow *flow, const uint8_t *datagram, size_t length) {
    const size_t ingress_length = flow->headers_size + length;
    const struct slots *slots = &thread->context.plane->slots;
    if (length < AGGREGATION_SIZE)
        return false;
    const struct header header = header_read(datagram);
    if (header.op != OP_DATA || !well_formed(&slots->layout, &header, length))
        return false;
    if (!flow->is_valid || identity_of(&header) != flow->identity)
        look_up_flow(thread, flow, &header);
    if (flow->delivery == NULL || !owns_half(&flow->member, &header))
        return false;
    uint32_t index = half_of(&flow->member, &header);
    if (index >= slots->layout.halves)
        return false;

    const struct contribution data =
        contribution_of(&slots->layout, &flow->member, &header, datagram + AGGREGATION_SIZE, 0, flow->ecn);
    struct half *half = slots_half(slots, index);
    if (!thread->alone)
        half_lock(half);
    enum outcome outcome = half_classify(half, &data);
    bool applied = outcome == OUTCOME_STARTED || outcome == OUTCOME_ADDED;
    if (applied) {
        struct count *outcomes = thread->context.counters->outcomes;
        count_packet(&thread->context.counters->jobs[flow->member.number], ingress_length);
        count_packet(&outcomes[outcome], ingress_length);
        if (half_apply(slots, half, &data, outcome)) {
            count_packet(&outcomes[OUTCOME_COMPLETED], ingress_length);
            results_add(&thread->results, slots, flow->delivery, half, datagram, header.active, flow->ecn);
        }
    }
    if (!thread->alone)
        half_unlock(half);
    return applied;
}

bool fast_path_allowed(const struct plane *plane, const struct udp_port *udp) {
    const struct key own_address = key_of_ip(udp->ip);
    bool own;
    table_apply(&plane->tables[TABLE_OWN_ADDRESSES], &own_address, &own);
    return own &&
           table_apply(&plane->tables[TABLE_LOSS_IN], &(struct key){{udp->port.number}}, NULL)->id != ACTION_LOSE &&
           udp->port.number != plane->layout.cpu_port;
}

unsigned process_datagrams(struct thread *thread, const struct udp_port *udp, const struct message *message,
                           bool fast_path) {
    struct flow flow = {
        .sender = {.port = udp->port.number, .ip = message->ip, .udp_port = message->udp_port},
        .ecn = message->ecn,
        .headers_size = udp_headers_size(udp),
    };
    unsigned count = 0;
    size_t at = 0;
    do { // also for an empty datagram
        size_t size = message->length - at < message->segment_size ? message->length - at : message->segment_size;
        if (thread->context.plane != NULL && !(fast_path && try_fast_path(thread, &flow, message->data + at, size)))
            process_frame(thread, udp, &flow, message->data + at, size);
        at += size;
        count++;
    } while (at < message->length);
    return count;
}

// SPDX-License-Identifier: Apache-2.0
// A packet to the aggregator: is it well formed, who may send it, what does its slot make of it, and what is the
// answer.
#include "pipeline.h"

#define ALL 0xFF // lanes

struct aggregation {
    struct context *context;
    struct packet *packet;
    uint64_t switch_mac;
    struct half *half;
    struct contribution data;
    unsigned group;
    const struct action *uplink; // NULL: this switch is the root of the job's tree
    bool from_parent;
    bool complete;
    bool send_up; // the partial sums, to the parent
};

static unsigned lanes_in(unsigned lanes) {
    return (unsigned)__builtin_popcount(lanes);
}

static bool malformed(const struct packet *packet, const struct layout *layout) {
    if (packet->truncated || packet->bad_checksum)
        return true;
    const uint8_t *header = packet->aggregation;
    unsigned active = header[AGGREGATION_ACTIVE], present = header[AGGREGATION_PRESENT];
    size_t length = UDP_SIZE + AGGREGATION_SIZE + keys_length(layout) + lanes_in(packet->values) * lane_length(layout);
    size_t growth = lanes_in(active & all_lanes(layout) & ~packet->values) * lane_length(layout);
    return header[AGGREGATION_VERSION_OP] >> 4 != PROTOCOL_VERSION || load16(packet->udp + UDP_LENGTH) != length ||
           load16(packet->ipv4 + IPV4_TOTAL_LENGTH) != length + IPV4_SIZE || (active & ~all_lanes(layout)) != 0 ||
           (present & ~active) != 0 || growth > layout->max_growth || (packet->from_cpu && growth != 0);
}

// A pool that reaches beyond the registers reads zeros there, and writes nothing.
static struct half *half_of_pool(struct aggregation *aggregation, uint32_t index, struct half *nowhere) {
    const struct slots *slots = &aggregation->context->plane->slots;
    if (index < slots->layout.halves)
        return slots_half(slots, index);
    memset(nowhere, 0, slots->stride);
    return nowhere;
}

// p4src/include/admission.p4
static enum outcome admit(struct aggregation *aggregation, struct half *nowhere) {
    const struct packet *packet = aggregation->packet;
    const uint8_t *header = packet->aggregation;
    uint8_t member = aggregation->from_parent ? PARENT : header[AGGREGATION_WORKER];
    uint64_t first = jobs_key_first(load32(packet->ipv4 + IPV4_SRC), load16(packet->udp + UDP_SRC_PORT),
                                    load16(header + AGGREGATION_JOB));
    uint64_t second = jobs_key_second(packet->ingress_port, load16(header + AGGREGATION_GENERATION), member);
    bool hit;
    const struct action *job = table_apply(&aggregation->context->plane->tables[TABLE_JOBS], first, second, &hit);
    if (!hit)
        return OUTCOME_NOT_ADMITTED;
    // An entry without `admit` has a pool of no halves.
    uint32_t slot = load16(header + AGGREGATION_SLOT);
    if (slot >= job->arguments[3] || (slot & 1) != (load32(header + AGGREGATION_SEQ) & 1))
        return OUTCOME_BAD_SLOT;
    aggregation->half = half_of_pool(aggregation, (uint32_t)job->arguments[2] + slot, nowhere);
    aggregation->group = (unsigned)job->arguments[4];
    aggregation->data = (struct contribution){
        .worker_bit = (uint32_t)job->arguments[0],
        .full_bitmap = (uint32_t)job->arguments[1],
        .parent_bit = aggregation->uplink != NULL ? PARENT_BIT : 0,
        .worker = header[AGGREGATION_WORKER],
        .seq = load32(header + AGGREGATION_SEQ),
        .fingerprint = load32(header + AGGREGATION_FINGERPRINT),
        .active = header[AGGREGATION_ACTIVE],
        .present = header[AGGREGATION_PRESENT],
        .keys = packet->keys,
        .values = packet->keys + keys_length(&aggregation->context->plane->layout),
    };
    return OUTCOME_STARTED;
}

// p4src/include/uplink.p4
static void find_parent(struct aggregation *aggregation) {
    const struct packet *packet = aggregation->packet;
    bool hit;
    const struct action *uplink = table_apply(&aggregation->context->plane->tables[TABLE_UPLINKS],
                                              load16(packet->aggregation + AGGREGATION_JOB), 0, &hit);
    if (uplink->id != ACTION_UPLINK)
        return;
    aggregation->uplink = uplink;
    aggregation->from_parent = hit && packet->ingress_port == uplink->arguments[0] &&
                               load32(packet->ipv4 + IPV4_SRC) == uplink->arguments[2] &&
                               load16(packet->udp + UDP_SRC_PORT) == uplink->arguments[3];
}

static bool may_send(const struct aggregation *aggregation, unsigned op) {
    if (op == OP_ERROR)
        return true;
    return aggregation->from_parent ? op == OP_RESULT || op == OP_STATUS : op == OP_DATA;
}

// STARTED stands for a packet that its slot has to see.
static enum outcome examine(struct aggregation *aggregation, struct half *nowhere) {
    const struct packet *packet = aggregation->packet;
    const struct plane *plane = aggregation->context->plane;
    if (malformed(packet, &plane->layout))
        return OUTCOME_MALFORMED;
    unsigned op = packet->aggregation[AGGREGATION_VERSION_OP] & 0xF;
    if (!packet->from_cpu) {
        if (op == OP_HELLO)
            return OUTCOME_HELLO;
        find_parent(aggregation);
        if (!may_send(aggregation, op))
            return OUTCOME_FORBIDDEN;
        enum outcome outcome = admit(aggregation, nowhere);
        return outcome == OUTCOME_STARTED && op == OP_ERROR ? OUTCOME_MISMATCH : outcome;
    }
    if (op != OP_RESET && op != OP_QUERY)
        return OUTCOME_FORBIDDEN;
    unsigned half = load16(packet->aggregation + AGGREGATION_SLOT);
    if (half >= plane->layout.halves)
        return OUTCOME_BAD_SLOT;
    aggregation->half = slots_half(&plane->slots, half);
    return OUTCOME_STARTED;
}

// --- answers: p4src/include/replies.p4 -------------------------------------------------------------------------------

// Back to the sender, or, when it is multicast, from the switch to whom the egress will name.
static void turn_around(struct aggregation *aggregation, enum op op) {
    struct packet *packet = aggregation->packet;
    packet->aggregation[AGGREGATION_VERSION_OP] = (uint8_t)(PROTOCOL_VERSION << 4 | op);
    memcpy(packet->ethernet + ETHERNET_DST, packet->ethernet + ETHERNET_SRC, 6);
    store48(packet->ethernet + ETHERNET_SRC, aggregation->switch_mac);
    uint32_t own = load32(packet->ipv4 + IPV4_DST);
    memcpy(packet->ipv4 + IPV4_DST, packet->ipv4 + IPV4_SRC, 4);
    store32(packet->ipv4 + IPV4_SRC, own);
    packet->ipv4[IPV4_TTL] = DEFAULT_TTL;
    memcpy(packet->udp + UDP_DST_PORT, packet->udp + UDP_SRC_PORT, 2);
    store16(packet->udp + UDP_SRC_PORT, AGGREGATION_PORT);
    store16(packet->udp + UDP_CHECKSUM, 0);
}

// From this switch, as a worker of its parent.
static void to_parent(struct aggregation *aggregation, struct verdict *verdict, enum op op) {
    struct packet *packet = aggregation->packet;
    const uint64_t *parent = aggregation->uplink->arguments;
    packet->aggregation[AGGREGATION_VERSION_OP] = (uint8_t)(PROTOCOL_VERSION << 4 | op);
    packet->aggregation[AGGREGATION_WORKER] = (uint8_t)parent[4];
    store48(packet->ethernet + ETHERNET_SRC, aggregation->switch_mac);
    store48(packet->ethernet + ETHERNET_DST, parent[1]);
    memcpy(packet->ipv4 + IPV4_SRC, packet->ipv4 + IPV4_DST, 4);
    store32(packet->ipv4 + IPV4_DST, (uint32_t)parent[2]);
    packet->ipv4[IPV4_TTL] = DEFAULT_TTL;
    store16(packet->udp + UDP_SRC_PORT, AGGREGATION_PORT);
    store16(packet->udp + UDP_DST_PORT, (uint32_t)parent[3]);
    store16(packet->udp + UDP_CHECKSUM, 0);
    verdict->egress_port = (unsigned)parent[0];
}

// The parent says which of its workers; the workers here are others.
static void name_worker(struct aggregation *aggregation) {
    uint8_t *worker = aggregation->packet->aggregation + AGGREGATION_WORKER;
    *worker = *worker == aggregation->uplink->arguments[4] ? aggregation->half->envoy : NOBODY;
}

// Makes room for the values of `lanes` in place of those that came; what followed them goes on following.
static uint8_t *set_lanes(struct aggregation *aggregation, unsigned lanes) {
    struct packet *packet = aggregation->packet;
    const struct layout *layout = &aggregation->context->plane->layout;
    uint8_t *values = packet->keys + keys_length(layout);
    size_t rest = (size_t)(packet->frame + packet->length - packet->payload);
    uint8_t *payload = values + lanes_in(lanes) * lane_length(layout);
    memmove(payload, packet->payload, rest);
    packet->payload = payload;
    packet->length = (size_t)(payload + rest - packet->frame);
    packet->values = lanes;
    packet->aggregation[AGGREGATION_PRESENT] = (uint8_t)lanes;
    size_t length = (size_t)(payload - packet->udp);
    store16(packet->udp + UDP_LENGTH, (uint32_t)length);
    store16(packet->ipv4 + IPV4_TOTAL_LENGTH, (uint32_t)(length + IPV4_SIZE));
    return values;
}

static void without_values(struct aggregation *aggregation, uint32_t word) {
    set_lanes(aggregation, 0);
    aggregation->packet->aggregation[AGGREGATION_ACTIVE] = 0;
    memset(aggregation->packet->keys, 0, keys_length(&aggregation->context->plane->layout));
    store32(aggregation->packet->keys, word);
}

// Keys, and the values of the active lanes, or of those of them that are in `lanes`, from the registers.
static void from_slot(struct aggregation *aggregation, unsigned lanes) {
    const struct slots *slots = &aggregation->context->plane->slots;
    lanes &= aggregation->packet->aggregation[AGGREGATION_ACTIVE];
    uint8_t *values = set_lanes(aggregation, lanes);
    memcpy(aggregation->packet->keys, half_keys(aggregation->half), keys_length(&slots->layout));
    for (unsigned lane = 0; lane < slots->layout.lanes; lane++) {
        if ((lanes >> lane & 1) == 0)
            continue;
        memcpy(values, half_lane(slots, aggregation->half, lane), lane_length(&slots->layout));
        values += lane_length(&slots->layout);
    }
}

static void to_controller(struct aggregation *aggregation, struct verdict *verdict, uint32_t bitmap) {
    verdict->egress_port = aggregation->context->plane->layout.cpu_port;
    verdict->packet_in = true;
    verdict->bitmap = bitmap;
}

static void tell_mismatch(struct aggregation *aggregation, struct verdict *verdict) {
    uint8_t *header = aggregation->packet->aggregation;
    if ((header[AGGREGATION_VERSION_OP] & 0xF) == OP_ERROR) {
        without_values(aggregation, load32(aggregation->packet->keys));
    } else {
        without_values(aggregation, aggregation->data.fingerprint);
        store32(header + AGGREGATION_FINGERPRINT, aggregation->half->fingerprint);
    }
    if (aggregation->uplink != NULL && !aggregation->from_parent) {
        to_parent(aggregation, verdict, OP_ERROR);
        return;
    }
    if (aggregation->from_parent)
        header[AGGREGATION_WORKER] = NOBODY;
    turn_around(aggregation, OP_ERROR);
    verdict->multicast_group = aggregation->group;
}

static void reply(struct aggregation *aggregation, struct verdict *verdict, enum outcome outcome) {
    struct packet *packet = aggregation->packet;
    const struct half *half = aggregation->half;
    if (aggregation->complete) {
        if (aggregation->from_parent)
            name_worker(aggregation);
        turn_around(aggregation, OP_RESULT);
        from_slot(aggregation, ALL);
        verdict->multicast_group = aggregation->group;
        return;
    }
    if (aggregation->send_up) {
        to_parent(aggregation, verdict, OP_DATA);
        from_slot(aggregation, half->present);
        return;
    }
    switch (outcome) {
    case OUTCOME_REPLAYED:
        turn_around(aggregation, OP_RESULT);
        from_slot(aggregation, ALL);
        verdict->egress_port = packet->ingress_port;
        break;
    case OUTCOME_AHEAD:
        if (aggregation->from_parent) {
            name_worker(aggregation);
            verdict->multicast_group = aggregation->group;
        } else {
            verdict->egress_port = packet->ingress_port;
        }
        turn_around(aggregation, OP_STATUS);
        without_values(aggregation, half->bitmap);
        break;
    case OUTCOME_MISMATCH:
        tell_mismatch(aggregation, verdict);
        break;
    case OUTCOME_QUERY:
        from_slot(aggregation, ALL);
        store32(packet->aggregation + AGGREGATION_SEQ, half->seq);
        store32(packet->aggregation + AGGREGATION_FINGERPRINT, half->fingerprint);
        to_controller(aggregation, verdict, half->bitmap);
        break;
    case OUTCOME_HELLO:
    case OUTCOME_RESET:
        to_controller(aggregation, verdict, 0);
        break;
    default:
        verdict->drop = true;
        break;
    }
}

// --- p4src/bmv2/aggregation.p4 ---------------------------------------------------------------------------------------

static enum outcome see(struct aggregation *aggregation) {
    struct half *half = aggregation->half;
    const struct packet *packet = aggregation->packet;
    unsigned op = packet->aggregation[AGGREGATION_VERSION_OP] & 0xF;
    if (packet->from_cpu) {
        if (op == OP_QUERY)
            return OUTCOME_QUERY;
        half->seq = load32(packet->aggregation + AGGREGATION_SEQ);
        half->bitmap = 0;
        return OUTCOME_RESET;
    }
    const struct contribution *data = &aggregation->data;
    enum outcome outcome = aggregation->from_parent ? half_judge_parent(half, data, op) : half_judge(half, data);
    if (outcome == OUTCOME_STARTED || outcome == OUTCOME_ADDED || outcome == OUTCOME_STORED) {
        aggregation->complete = half_contribute(&aggregation->context->plane->slots, half, data, outcome);
        aggregation->send_up = !aggregation->complete && half_is_up(half, data);
    } else if (outcome == OUTCOME_SENT_UP) {
        aggregation->send_up = true;
    }
    return outcome;
}

void aggregate(struct context *context, struct packet *packet, struct verdict *verdict, uint64_t switch_mac) {
    struct aggregation aggregation = {.context = context, .packet = packet, .switch_mac = switch_mac};
    _Alignas(ALIGNMENT) uint8_t nowhere[ALIGNMENT + MAX_LANES * 1024];
    enum outcome outcome = examine(&aggregation, (struct half *)(void *)nowhere);
    bool seen = outcome == OUTCOME_STARTED;
    if (seen) {
        half_lock(aggregation.half);
        outcome = see(&aggregation);
    }
    count_packet(&context->counters->outcomes[outcome], packet->ingress_length);
    if (aggregation.complete)
        count_packet(&context->counters->outcomes[OUTCOME_COMPLETED], packet->ingress_length);
    else if (aggregation.send_up && outcome != OUTCOME_SENT_UP)
        count_packet(&context->counters->outcomes[OUTCOME_SENT_UP], packet->ingress_length);
    reply(&aggregation, verdict, outcome);
    if (seen)
        half_unlock(aggregation.half);
}

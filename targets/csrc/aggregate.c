// SPDX-License-Identifier: Apache-2.0
#include "aggregate.h"

#include "admission.h"
#include "replies.h"

static bool malformed(const struct packet *packet, const struct layout *layout) {
    if (packet->truncated || packet->bad_checksum)
        return true;
    const struct header *header = &packet->header;
    size_t length = load_16(packet->udp + UDP_LENGTH);
    return packet_ip_payload(packet) != length || !well_formed(layout, header, length - UDP_SIZE) ||
           (packet->from_cpu && header->present != header->active);
}

// Beyond the registers, a pool reads zeros and writes nothing, as in P4: such a half is a scratch copy.
static struct half *half_or_scratch(const struct slots *slots, uint32_t index, struct half *scratch) {
    if (index < slots->layout.halves)
        return slots_half(slots, index);
    memset(scratch, 0, slots->stride);
    return scratch;
}

static bool may_send(const struct aggregation *aggregation, unsigned op) {
    if (op == OP_ERROR)
        return true;
    return aggregation->from_parent ? op == OP_RESULT || op == OP_STATUS : op == OP_DATA;
}

// Returns OUTCOME_STARTED for a packet that is to be applied to its slot, as do the next three functions.
static enum outcome validate_member(struct aggregation *aggregation, unsigned op, struct half *scratch) {
    const struct packet *packet = aggregation->packet;
    const struct plane *plane = aggregation->context->plane;
    const struct header *header = &packet->header;
    const struct sender sender = {
        .port = packet->ingress_port,
        .vlan = packet->vlan,
        .ip = packet->source,
        .udp_port = load_16(packet->udp + UDP_SRC_PORT),
    };
    aggregation->uplink = find_uplink(plane, &sender, header->job, &aggregation->from_parent);
    if (!may_send(aggregation, op))
        return OUTCOME_FORBIDDEN;
    struct member member;
    if (!find_member(plane, &sender, header, aggregation->from_parent ? PARENT : header->worker, &member))
        return OUTCOME_NOT_ADMITTED;
    count_packet(&aggregation->context->counters->jobs[member.number], packet->ingress_length);
    if (!owns_half(&member, header))
        return OUTCOME_BAD_SLOT;
    aggregation->half = half_or_scratch(&plane->slots, half_of(&member, header), scratch);
    aggregation->group = member.group;
    const uint32_t parent_bit = aggregation->uplink != NULL ? PARENT_BIT : 0;
    aggregation->data = contribution_of(&plane->layout, &member, header, packet->keys, parent_bit, packet_ecn(packet));
    return op == OP_ERROR ? OUTCOME_MISMATCH : OUTCOME_STARTED;
}

static enum outcome validate_controller(struct aggregation *aggregation, unsigned op) {
    const struct plane *plane = aggregation->context->plane;
    if (op != OP_RESET && op != OP_QUERY)
        return OUTCOME_FORBIDDEN;
    unsigned half = aggregation->packet->header.slot;
    if (half >= plane->layout.halves)
        return OUTCOME_BAD_SLOT;
    aggregation->half = slots_half(&plane->slots, half);
    return OUTCOME_STARTED;
}

static enum outcome police_hello(const struct aggregation *aggregation) {
    struct plane *plane = aggregation->context->plane;
    uint64_t now = plane->now != 0 ? plane->now : meter_clock();
    bool passes = meter_pass(&plane->hellos[aggregation->packet->ingress_port], now);
    return passes ? OUTCOME_HELLO : OUTCOME_HELLO_LIMITED;
}

static enum outcome validate(struct aggregation *aggregation, struct half *scratch) {
    const struct packet *packet = aggregation->packet;
    if (malformed(packet, &aggregation->context->plane->layout))
        return OUTCOME_MALFORMED;
    unsigned op = packet->header.op;
    if (packet->from_cpu)
        return validate_controller(aggregation, op);
    return op == OP_HELLO ? police_hello(aggregation) : validate_member(aggregation, op, scratch);
}

static enum outcome apply_to_slot(struct aggregation *aggregation) {
    struct half *half = aggregation->half;
    const struct packet *packet = aggregation->packet;
    unsigned op = packet->header.op;
    if (packet->from_cpu) {
        if (op == OP_QUERY)
            return OUTCOME_QUERY;
        half->seq = packet->header.seq;
        half->bitmap = 0;
        return OUTCOME_RESET;
    }
    const struct contribution *data = &aggregation->data;
    enum outcome outcome = aggregation->from_parent ? half_classify_parent(half, data, op) : half_classify(half, data);
    if (outcome == OUTCOME_STARTED || outcome == OUTCOME_ADDED || outcome == OUTCOME_STORED) {
        aggregation->complete = half_apply(&aggregation->context->plane->slots, half, data, outcome);
        aggregation->send_up = !aggregation->complete && half_awaits_parent(half, data);
    } else if (outcome == OUTCOME_SENT_UP) {
        aggregation->send_up = true;
    }
    if (outcome != OUTCOME_STALE && outcome != OUTCOME_MISMATCH)
        aggregation->marked = half->marked |= data->marked;
    return outcome;
}

void aggregate(struct context *context, struct packet *packet, struct verdict *verdict, uint64_t switch_mac) {
    struct aggregation aggregation = {.context = context, .packet = packet, .switch_mac = switch_mac};
    _Alignas(ALIGNMENT) uint8_t scratch[ALIGNMENT + MAX_LANES * 1024];
    enum outcome outcome = validate(&aggregation, (struct half *)(void *)scratch);
    bool reaches_slot = outcome == OUTCOME_STARTED;
    if (reaches_slot) {
        half_lock(aggregation.half);
        outcome = apply_to_slot(&aggregation);
    }
    count_packet(&context->counters->outcomes[outcome], packet->ingress_length);
    if (aggregation.complete)
        count_packet(&context->counters->outcomes[OUTCOME_COMPLETED], packet->ingress_length);
    else if (aggregation.send_up && outcome != OUTCOME_SENT_UP)
        count_packet(&context->counters->outcomes[OUTCOME_SENT_UP], packet->ingress_length);
    reply(&aggregation, verdict, outcome);
    if (aggregation.marked)
        packet_mark(packet);
    if (reaches_slot)
        half_unlock(aggregation.half);
}

// SPDX-License-Identifier: Apache-2.0
#include "replies.h"

#define ALL 0xFF // mask of all lanes

// Addresses the packet to its sender. If it is multicast, egress sets the destination of each copy.
static void address_to_sender(struct aggregation *aggregation, enum op op) {
    struct packet *packet = aggregation->packet;
    packet->aggregation[AGGREGATION_VERSION] = version_and_op(op);
    memcpy(packet->ethernet + ETHERNET_DST, packet->ethernet + ETHERNET_SRC, 6);
    store_48(packet->ethernet + ETHERNET_SRC, aggregation->switch_mac);
    packet_set_addresses(packet, packet->address, packet->source, DEFAULT_TTL);
    memcpy(packet->udp + UDP_DST_PORT, packet->udp + UDP_SRC_PORT, 2);
    store_16(packet->udp + UDP_SRC_PORT, AGGREGATION_PORT);
    store_16(packet->udp + UDP_CHECKSUM, 0);
}

// Addresses the packet to the parent, with this switch as a worker.
static void address_to_parent(struct aggregation *aggregation, struct verdict *verdict, enum op op) {
    struct packet *packet = aggregation->packet;
    const uint64_t *parent = aggregation->uplink->arguments;
    packet->aggregation[AGGREGATION_VERSION] = version_and_op(op);
    packet->aggregation[AGGREGATION_WORKER] = (uint8_t)parent[UPLINK_WORKER];
    packet_set_vlan(packet, 0); // the packet is a worker's
    store_48(packet->ethernet + ETHERNET_SRC, aggregation->switch_mac);
    store_48(packet->ethernet + ETHERNET_DST, parent[UPLINK_MAC]);
    packet_set_addresses(packet, packet->address, ip_of_words(&parent[UPLINK_IP]), DEFAULT_TTL);
    store_16(packet->udp + UDP_SRC_PORT, AGGREGATION_PORT);
    store_16(packet->udp + UDP_DST_PORT, (uint32_t)parent[UPLINK_UDP_PORT]);
    store_16(packet->udp + UDP_CHECKSUM, 0);
    verdict->egress_port = (unsigned)parent[UPLINK_PORT];
}

// Sets the worker number in a packet from the parent: the parent's numbers are not those of the workers here.
static void set_worker_from_parent(struct aggregation *aggregation) {
    const bool named = aggregation->packet->header.worker == aggregation->uplink->arguments[UPLINK_WORKER];
    aggregation->packet->aggregation[AGGREGATION_WORKER] = named ? aggregation->half->envoy : NOBODY;
}

// Resizes the packet for the values of `lanes` and keeps the payload after them. Returns where the values begin.
static uint8_t *resize_values(struct aggregation *aggregation, unsigned lanes) {
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
    store_16(packet->udp + UDP_LENGTH, (uint32_t)length);
    packet_set_ip_payload(packet, length);
    return values;
}

static void clear_values(struct aggregation *aggregation, uint32_t word) {
    resize_values(aggregation, 0);
    aggregation->packet->aggregation[AGGREGATION_ACTIVE] = 0;
    memset(aggregation->packet->keys, 0, keys_length(&aggregation->context->plane->layout));
    store_32(aggregation->packet->keys, word);
}

// Copies the slot's keys and the sums of the active lanes that are in `lanes` into the packet.
static void fill_from_slot(struct aggregation *aggregation, unsigned lanes) {
    const struct slots *slots = &aggregation->context->plane->slots;
    lanes &= aggregation->packet->header.active;
    uint8_t *values = resize_values(aggregation, lanes);
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

static void report_mismatch(struct aggregation *aggregation, struct verdict *verdict) {
    uint8_t *header = aggregation->packet->aggregation;
    if (aggregation->packet->header.op == OP_ERROR) {
        clear_values(aggregation, load_32(aggregation->packet->keys));
    } else {
        clear_values(aggregation, aggregation->data.fingerprint);
        store_32(header + AGGREGATION_FINGERPRINT, aggregation->half->fingerprint);
    }
    if (aggregation->uplink != NULL && !aggregation->from_parent) {
        address_to_parent(aggregation, verdict, OP_ERROR);
        return;
    }
    if (aggregation->from_parent)
        header[AGGREGATION_WORKER] = NOBODY;
    address_to_sender(aggregation, OP_ERROR);
    verdict->multicast_group = aggregation->group;
}

void reply(struct aggregation *aggregation, struct verdict *verdict, enum outcome outcome) {
    struct packet *packet = aggregation->packet;
    const struct half *half = aggregation->half;
    if (aggregation->complete) {
        if (aggregation->from_parent)
            set_worker_from_parent(aggregation);
        address_to_sender(aggregation, OP_RESULT);
        fill_from_slot(aggregation, ALL);
        verdict->multicast_group = aggregation->group;
        return;
    }
    if (aggregation->send_up) {
        address_to_parent(aggregation, verdict, OP_DATA);
        fill_from_slot(aggregation, half->present);
        return;
    }
    switch (outcome) {
    case OUTCOME_REPLAYED:
        address_to_sender(aggregation, OP_RESULT);
        fill_from_slot(aggregation, ALL);
        verdict->egress_port = packet->ingress_port;
        break;
    case OUTCOME_AHEAD:
        if (aggregation->from_parent) {
            set_worker_from_parent(aggregation);
            verdict->multicast_group = aggregation->group;
        } else {
            verdict->egress_port = packet->ingress_port;
        }
        address_to_sender(aggregation, OP_STATUS);
        clear_values(aggregation, half->bitmap);
        break;
    case OUTCOME_MISMATCH:
        report_mismatch(aggregation, verdict);
        break;
    case OUTCOME_QUERY:
        fill_from_slot(aggregation, ALL);
        store_32(packet->aggregation + AGGREGATION_SEQ, half->seq);
        store_32(packet->aggregation + AGGREGATION_FINGERPRINT, half->fingerprint);
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

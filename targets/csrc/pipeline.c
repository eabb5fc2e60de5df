// SPDX-License-Identifier: Apache-2.0
// The controls in the order of p4src/bmv2/p4reduce.p4.
#include "pipeline.h"

#include "aggregate.h"
#include "forward.h"

// SplitMix64
static uint64_t random_bits(struct context *context) {
    uint64_t bits = context->random += UINT64_C(0x9E3779B97F4A7C15);
    bits = (bits ^ bits >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    bits = (bits ^ bits >> 27) * UINT64_C(0x94D049BB133111EB);
    return bits ^ bits >> 31;
}

// Returns whether the drop simulator drops the packet, and counts it then.
static bool drop_simulator_loses(struct context *context, enum table_id rates, unsigned port, size_t ingress_length) {
    const struct action *action = table_apply(&context->plane->tables[rates], &(struct key){{port}}, NULL);
    if (action->id != ACTION_LOSE)
        return false;
    uint64_t draw = (random_bits(context) >> 32) * UINT64_C(0xFFFFFFFF) >> 32; // 0 to 0xFFFFFFFE
    if (draw >= action->arguments[0])
        return false;
    struct counters *counters = context->counters;
    count_packet(rates == TABLE_LOSS_IN ? &counters->losses_in[port] : &counters->losses_out[port], ingress_length);
    return true;
}

static struct verdict ingress(struct context *context, struct packet *packet) {
    struct verdict verdict = {0};
    uint64_t switch_mac = 0;
    bool to_aggregator = false, to_forwarding = false;
    if (packet->from_cpu) {
        uint32_t header = packet->packet_out != NULL ? load_32(packet->packet_out) : 0;
        if (header >> 31 == 0) {
            verdict.egress_port = header >> 16 & 0x1FF;
        } else if (packet->aggregation == NULL) {
            to_forwarding = true;
        } else if (packet->header.op == OP_ABORT) {
            verdict.multicast_group = header & 0xFFFF;
        } else {
            to_aggregator = true;
        }
    } else if (drop_simulator_loses(context, TABLE_LOSS_IN, packet->ingress_port, packet->ingress_length)) {
        verdict.drop = true;
    } else {
        bool own = own_address(context, packet, &verdict, &switch_mac);
        bool forged = !own && is_forged(context, packet);
        if (forged) {
            verdict.drop = true;
            count_packet(&context->counters->forgeries[packet->ingress_port], packet->ingress_length);
        }
        to_forwarding = !own && !forged;
        to_aggregator = own && packet->aggregation != NULL;
    }
    context->forwarded = to_forwarding;
    if (to_aggregator)
        aggregate(context, packet, &verdict, switch_mac);
    else if (to_forwarding)
        forward(context, packet, &verdict);
    return verdict;
}

// p4src/include/delivery.p4
static void deliver(struct context *context, struct packet *packet, unsigned instance) {
    if (packet->aggregation == NULL || instance == 0)
        return;
    const struct key worker = key_of_worker(packet->header.job, (uint16_t)instance);
    const struct action *action = table_apply(&context->plane->tables[TABLE_WORKERS], &worker, NULL);
    if (action->id == ACTION_ADDRESS || action->id == ACTION_ADDRESS_IN_VLAN) {
        packet_set_vlan(packet, action->id == ACTION_ADDRESS ? 0 : (unsigned)action->arguments[ADDRESS_VLAN]);
        store_48(packet->ethernet + ETHERNET_DST, action->arguments[ADDRESS_MAC]);
        packet_set_destination(packet, ip_of_words(&action->arguments[ADDRESS_IP]));
        store_16(packet->udp + UDP_DST_PORT, (uint32_t)action->arguments[ADDRESS_UDP_PORT]);
    }
}

static void egress(struct context *context, struct packet *packet, const struct verdict *verdict, unsigned port,
                   unsigned instance) {
    deliver(context, packet, instance);
    if (verdict->bridged && port == packet->ingress_port)
        return;
    if (packet->length > packet->ingress_length + context->plane->layout.max_growth)
        return; // a tag makes the RESULT too long. Its receiver asks again with a packet that has a tag.
    if (port != context->plane->layout.cpu_port &&
        drop_simulator_loses(context, TABLE_LOSS_OUT, port, packet->ingress_length))
        return;
    // A wrong checksum stays wrong: it must not become valid by forwarding.
    if (packet->ipv4 != NULL && (packet->ipv4[IPV4_VERSION] & 0xF) == 5 && !packet->bad_checksum)
        store_16(packet->ipv4 + IPV4_CHECKSUM, ipv4_checksum(packet->ipv4));
    uint8_t *frame = packet->frame;
    size_t length = packet->length;
    if (verdict->packet_in) {
        frame -= PACKET_IN_SIZE;
        length += PACKET_IN_SIZE;
        store_16(frame, packet->ingress_port);
        store_32(frame + PACKET_IN_BITMAP, verdict->bitmap);
    }
    context->emit(context, port, frame, length);
}

static void multicast(struct context *context, struct packet *packet, const struct verdict *verdict) {
    const struct group *group = context->plane->groups[verdict->multicast_group];
    if (group == NULL)
        return;
    const struct packet original = *packet; // restored for each copy, since egress changes it and its headers
    uint8_t head[UDP_IPV6_HEADERS_SIZE + VLAN_SIZE];
    size_t size = packet->length < sizeof head ? packet->length : sizeof head;
    memcpy(head, packet->frame, size);
    for (size_t at = 0; at < group->count; at++) {
        *packet = original;
        memcpy(packet->frame, head, size);
        egress(context, packet, verdict, group->replicas[at].port, group->replicas[at].instance);
    }
}

void pipeline_process(struct context *context, unsigned port, size_t length) {
    struct packet packet;
    packet_parse(&packet, &context->plane->layout, port, context_frame(context), length);
    struct verdict verdict = ingress(context, &packet);
    if (verdict.drop)
        return;
    if (verdict.multicast_group != 0)
        multicast(context, &packet, &verdict);
    else if (verdict.egress_port != DROP_PORT)
        egress(context, &packet, &verdict, verdict.egress_port, 0);
}

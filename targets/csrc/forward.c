// SPDX-License-Identifier: Apache-2.0
#include "forward.h"

static void return_to_sender(struct packet *packet, struct verdict *verdict, uint64_t switch_mac) {
    memcpy(packet->ethernet + ETHERNET_DST, packet->ethernet + ETHERNET_SRC, 6);
    store_48(packet->ethernet + ETHERNET_SRC, switch_mac);
    verdict->egress_port = packet->ingress_port;
}

static void answer_arp(struct packet *packet, uint64_t switch_mac) {
    uint8_t *arp = packet->arp;
    store_16(arp + ARP_OP, ARP_REPLY);
    memcpy(arp + ARP_TARGET_MAC, arp + ARP_SENDER_MAC, 6);
    memcpy(arp + ARP_TARGET_IP, arp + ARP_SENDER_IP, 4);
    store_48(arp + ARP_SENDER_MAC, switch_mac);
    store_32(arp + ARP_SENDER_IP, ip_last_32(packet->address));
}

// Answers a ping. RFC 1624: as the type changes, the checksum changes by the opposite, in one's complement.
static void answer_ping(struct packet *packet) {
    uint32_t sum = load_16(packet->icmp + ICMP_CHECKSUM);
    if (packet->ipv6 != NULL) {
        packet->icmp[ICMP_TYPE] = ICMPV6_ECHO_REPLY;
        sum += sum >= 0x0100 ? UINT32_C(0x10000) - 0x0100 : UINT32_C(0x10000) - 0x0101;
        store_16(packet->icmp + ICMP_CHECKSUM, sum);
    } else {
        packet->icmp[ICMP_TYPE] = ICMP_ECHO_REPLY;
        sum += UINT32_C(0x0800);
        store_16(packet->icmp + ICMP_CHECKSUM, (sum & 0xFFFF) + (sum >> 16));
    }
    packet_set_addresses(packet, packet->address, packet->source, DEFAULT_TTL);
}

// p4src/bmv2/own_answers_ipv6.p4
static bool is_solicitation(const struct packet *packet) {
    const uint8_t *option = packet->neighbour_mac;
    return option != NULL && option[NEIGHBOUR_MAC_TYPE] == OPTION_SENDER_MAC && option[NEIGHBOUR_MAC_LENGTH] == 1 &&
           packet->icmp[ICMP_CODE] == 0 && packet->ipv6[IPV6_HOP_LIMIT] == NOT_FORWARDED &&
           !ip_same(packet->source, (struct ip){0, 0});
}

static void advertise(struct packet *packet, uint64_t switch_mac) {
    packet->icmp[ICMP_TYPE] = NEIGHBOUR_ADVERTISEMENT;
    packet_set_addresses(packet, packet->address, packet->source, NOT_FORWARDED);
    store_32(packet->neighbour + NEIGHBOUR_FLAGS, SOLICITED_AND_OVERRIDE);
    packet->neighbour_mac[NEIGHBOUR_MAC_TYPE] = OPTION_TARGET_MAC;
    store_48(packet->neighbour_mac + NEIGHBOUR_MAC_MAC, switch_mac);
    store_16(packet->icmp + ICMP_CHECKSUM, neighbour_checksum(packet));
}

static bool is_ping(const struct packet *packet) {
    return packet->icmp != NULL && !packet->bad_checksum &&
           packet->icmp[ICMP_TYPE] == (packet->ipv6 != NULL ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST);
}

bool own_address(struct context *context, struct packet *packet, struct verdict *verdict, uint64_t *switch_mac) {
    const struct key address = key_of_ip(packet->address);
    bool own;
    const struct action *action = table_apply(&context->plane->tables[TABLE_OWN_ADDRESSES], &address, &own);
    if (!own)
        return false;
    *switch_mac = action->id == ACTION_OWN ? action->arguments[OWN_MAC] : 0;
    if (packet->aggregation != NULL)
        return true;
    if (packet->arp != NULL && load_16(packet->arp + ARP_OP) == ARP_REQUEST) {
        answer_arp(packet, *switch_mac);
    } else if (is_solicitation(packet)) {
        advertise(packet, *switch_mac);
    } else if (is_ping(packet)) {
        answer_ping(packet);
    } else {
        verdict->drop = true;
        return true;
    }
    return_to_sender(packet, verdict, *switch_mac);
    return true;
}

bool is_forged(const struct context *context, const struct packet *packet) {
    const struct key source = key_of_ip(packet->source);
    return packet->hidden_source ||
           table_apply(&context->plane->tables[TABLE_OWN_SOURCES], &source, NULL)->id == ACTION_FORGED;
}

static void route(struct packet *packet, struct verdict *verdict, const struct action *action) {
    verdict->egress_port = (unsigned)action->arguments[ROUTE_PORT];
    store_48(packet->ethernet + ETHERNET_SRC, action->arguments[ROUTE_SOURCE_MAC]);
    store_48(packet->ethernet + ETHERNET_DST, action->arguments[ROUTE_NEXT_HOP_MAC]);
    packet->ipv4[IPV4_TTL]--;
}

void forward(struct context *context, struct packet *packet, struct verdict *verdict) {
    const struct table *tables = context->plane->tables;
    uint64_t mac = packet->ethernet != NULL ? load_48(packet->ethernet + ETHERNET_DST) : 0;
    const struct action *action;
    bool to_router;
    table_apply(&tables[TABLE_ROUTER_MACS], &(struct key){{mac}}, &to_router);
    if (to_router) {
        if (packet->vlan != 0 || packet->ipv4 == NULL || packet->ipv4[IPV4_VERSION] != 0x45 ||
            packet->ipv4[IPV4_TTL] <= 1 || packet->bad_checksum) {
            verdict->drop = true;
            return;
        }
        action = table_apply_longest_prefix(&tables[TABLE_ROUTES], load_32(packet->ipv4 + IPV4_DST));
    } else {
        action = table_apply(&tables[TABLE_MAC_ADDRESSES], &(struct key){{mac}}, NULL);
    }
    switch (action->id) {
    case ACTION_ROUTE:
        route(packet, verdict, action);
        break;
    case ACTION_FORWARD:
        verdict->egress_port = (unsigned)action->arguments[0];
        verdict->bridged = true;
        break;
    case ACTION_FLOOD:
        verdict->multicast_group = (unsigned)action->arguments[0];
        verdict->bridged = true;
        break;
    default: // discard, unroutable
        verdict->drop = true;
        break;
    }
}

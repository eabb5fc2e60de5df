// SPDX-License-Identifier: Apache-2.0
#include "forward.h"

static void answer_arp(struct packet *packet, uint64_t switch_mac, uint32_t address) {
    uint8_t *arp = packet->arp;
    store_16(arp + ARP_OP, ARP_REPLY);
    memcpy(arp + ARP_TARGET_MAC, arp + ARP_SENDER_MAC, 6);
    memcpy(arp + ARP_TARGET_IP, arp + ARP_SENDER_IP, 4);
    store_48(arp + ARP_SENDER_MAC, switch_mac);
    store_32(arp + ARP_SENDER_IP, address);
    memcpy(packet->ethernet + ETHERNET_DST, packet->ethernet + ETHERNET_SRC, 6);
    store_48(packet->ethernet + ETHERNET_SRC, switch_mac);
}

static void answer_ping(struct packet *packet, uint64_t switch_mac, uint32_t address) {
    packet->icmp[ICMP_TYPE] = ICMP_ECHO_REPLY;
    // RFC 1624: the type fell by 8, so the checksum rises by 0x0800, with the carry added back.
    uint32_t sum = load_16(packet->icmp + ICMP_CHECKSUM) + UINT32_C(0x0800);
    store_16(packet->icmp + ICMP_CHECKSUM, (sum & 0xFFFF) + (sum >> 16));
    memcpy(packet->ipv4 + IPV4_DST, packet->ipv4 + IPV4_SRC, 4);
    store_32(packet->ipv4 + IPV4_SRC, address);
    packet->ipv4[IPV4_TTL] = DEFAULT_TTL;
    memcpy(packet->ethernet + ETHERNET_DST, packet->ethernet + ETHERNET_SRC, 6);
    store_48(packet->ethernet + ETHERNET_SRC, switch_mac);
}

bool own_address(struct context *context, struct packet *packet, struct verdict *verdict, uint64_t *switch_mac) {
    uint32_t address = 0;
    if (packet->arp != NULL)
        address = load_32(packet->arp + ARP_TARGET_IP);
    else if (packet->ipv4 != NULL)
        address = load_32(packet->ipv4 + IPV4_DST);
    bool own;
    const struct action *action = table_apply(&context->plane->tables[TABLE_OWN_ADDRESSES], address, 0, &own);
    if (!own)
        return false;
    *switch_mac = action->id == ACTION_OWN ? action->arguments[0] : 0;
    if (packet->arp != NULL && load_16(packet->arp + ARP_OP) == ARP_REQUEST) {
        answer_arp(packet, *switch_mac, address);
        verdict->egress_port = packet->ingress_port;
    } else if (packet->icmp != NULL && packet->icmp[ICMP_TYPE] == ICMP_ECHO_REQUEST && !packet->bad_checksum) {
        answer_ping(packet, *switch_mac, address);
        verdict->egress_port = packet->ingress_port;
    } else if (packet->aggregation == NULL) {
        verdict->drop = true;
    }
    return true;
}

bool is_forged(const struct context *context, const struct packet *packet) {
    if (packet->priority_tagged)
        return true;
    uint32_t address = 0;
    if (packet->arp != NULL)
        address = load_32(packet->arp + ARP_SENDER_IP);
    else if (packet->ipv4 != NULL)
        address = load_32(packet->ipv4 + IPV4_SRC);
    return table_apply(&context->plane->tables[TABLE_OWN_SOURCES], address, 0, NULL)->id == ACTION_FORGED;
}

static void route(struct packet *packet, struct verdict *verdict, const struct action *action) {
    verdict->egress_port = (unsigned)action->arguments[0];
    store_48(packet->ethernet + ETHERNET_SRC, action->arguments[1]);
    store_48(packet->ethernet + ETHERNET_DST, action->arguments[2]);
    packet->ipv4[IPV4_TTL]--;
}

void forward(struct context *context, struct packet *packet, struct verdict *verdict) {
    const struct table *tables = context->plane->tables;
    uint64_t mac = packet->ethernet != NULL ? load_48(packet->ethernet + ETHERNET_DST) : 0;
    const struct action *action;
    bool to_router;
    table_apply(&tables[TABLE_ROUTER_MACS], mac, 0, &to_router);
    if (to_router) {
        if (packet->vlan != 0 || packet->ipv4 == NULL || packet->ipv4[IPV4_VERSION] != 0x45 || packet->ipv4[IPV4_TTL] <= 1 ||
            packet->bad_checksum) {
            verdict->drop = true;
            return;
        }
        action = table_apply_longest_prefix(&tables[TABLE_ROUTES], load_32(packet->ipv4 + IPV4_DST));
    } else {
        action = table_apply(&tables[TABLE_MAC_ADDRESSES], mac, 0, NULL);
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

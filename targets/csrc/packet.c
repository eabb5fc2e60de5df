// SPDX-License-Identifier: Apache-2.0
#include "packet.h"

#define TAG_NUMBER_SIZE 2 // of a VLAN tag: priority and number, before the next type

// Returns the next header, of `size` bytes. If the frame is too short, returns NULL and sets `truncated`.
static uint8_t *extract(struct packet *packet, size_t size) {
    uint8_t *header = packet->payload;
    if (packet->frame + packet->length < header + size) {
        packet->truncated = true;
        return NULL;
    }
    packet->payload += size;
    return header;
}

static void parse_aggregation(struct packet *packet, const struct layout *layout) {
    packet->aggregation = extract(packet, AGGREGATION_SIZE);
    if (packet->aggregation == NULL)
        return;
    packet->header = header_read(packet->aggregation);
    uint8_t *keys = packet->payload;
    for (unsigned lane = 0; lane < layout->lanes; lane++)
        if (extract(packet, KEY_SIZE) == NULL)
            return;
    packet->keys = keys;
    for (unsigned lane = 0; lane < layout->lanes; lane++) {
        if ((packet->header.present >> lane & 1) == 0)
            continue;
        if (extract(packet, lane_length(layout)) == NULL)
            return;
        packet->values |= 1U << lane;
    }
}

static void parse_ipv4(struct packet *packet, const struct layout *layout) {
    uint8_t *ipv4 = packet->ipv4 = extract(packet, IPV4_SIZE);
    if (ipv4 == NULL)
        return;
    if ((ipv4[IPV4_VERSION] & 0xF) == 5)
        packet->bad_checksum = ipv4_checksum(ipv4) != load_16(ipv4 + IPV4_CHECKSUM);
    // Packets with options and fragments are forwarded, but not parsed further.
    if (ipv4[IPV4_VERSION] != 0x45 || (load_16(ipv4 + IPV4_FLAGS) & 0x3FFF) != 0)
        return;
    if (ipv4[IPV4_PROTOCOL] == PROTOCOL_ICMP) {
        packet->icmp = extract(packet, ICMP_SIZE);
    } else if (ipv4[IPV4_PROTOCOL] == PROTOCOL_UDP) {
        packet->udp = extract(packet, UDP_SIZE);
        if (packet->udp != NULL && load_16(packet->udp + UDP_DST_PORT) == AGGREGATION_PORT)
            parse_aggregation(packet, layout);
    }
}

// Hosts treat a priority-tagged frame (VLAN 0) as untagged. The check for forged sources does not see its addresses,
// and drops it.
static void parse_tag(struct packet *packet) {
    if (packet->frame + packet->length < packet->payload + TAG_NUMBER_SIZE)
        packet->truncated = true;
    else
        packet->priority_tagged = (load_16(packet->payload) & 0x0FFF) == 0;
}

void packet_parse(struct packet *packet, const struct layout *layout, unsigned port, uint8_t *data, size_t length) {
    *packet = (struct packet){.frame = data, .length = length, .ingress_length = length, .ingress_port = port};
    packet->payload = data;
    packet->from_cpu = port == layout->cpu_port;
    if (packet->from_cpu) {
        packet->packet_out = extract(packet, PACKET_OUT_SIZE);
        if (packet->packet_out == NULL)
            return;
        packet->frame += PACKET_OUT_SIZE;
        packet->length -= PACKET_OUT_SIZE;
    }
    packet->ethernet = extract(packet, ETHERNET_SIZE);
    if (packet->ethernet == NULL)
        return;
    switch (load_16(packet->ethernet + ETHERNET_TYPE)) {
    case ETHERTYPE_IPV4:
        parse_ipv4(packet, layout);
        break;
    case ETHERTYPE_ARP:
        packet->arp = extract(packet, ARP_SIZE);
        break;
    case ETHERTYPE_VLAN:
    case ETHERTYPE_SERVICE_VLAN:
        parse_tag(packet);
        break;
    }
}

uint16_t ipv4_checksum(const uint8_t *header) {
    uint32_t sum = 0;
    for (unsigned at = 0; at < IPV4_SIZE; at += 2)
        sum += at == IPV4_CHECKSUM ? 0 : load_16(header + at);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    return (uint16_t)~sum;
}

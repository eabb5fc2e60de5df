// SPDX-License-Identifier: Apache-2.0
#include "packet.h"

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

// Hosts treat a priority-tagged frame (VLAN 0) as if it had no such tag. The check for forged sources does not see its
// addresses, and drops it.
static void look_at_tag(struct packet *packet) {
    if (packet->frame + packet->length < packet->payload + VLAN_TYPE)
        packet->truncated = true;
    else
        packet->priority_tagged = (load_16(packet->payload + VLAN_PRIORITY) & 0x0FFF) == 0;
}

static void parse_type(struct packet *packet, const struct layout *layout, unsigned type) {
    switch (type) {
    case ETHERTYPE_IPV4:
        parse_ipv4(packet, layout);
        break;
    case ETHERTYPE_ARP:
        packet->arp = extract(packet, ARP_SIZE);
        break;
    case ETHERTYPE_VLAN: // behind another tag
    case ETHERTYPE_SERVICE_VLAN:
        look_at_tag(packet);
        break;
    }
}

static void parse_vlan(struct packet *packet, const struct layout *layout) {
    const uint8_t *tag = extract(packet, VLAN_SIZE);
    if (tag == NULL)
        return;
    packet->vlan = load_16(tag + VLAN_PRIORITY) & 0x0FFF;
    packet->priority_tagged = packet->vlan == 0;
    if (packet->vlan != 0)
        parse_type(packet, layout, load_16(tag + VLAN_TYPE));
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
    unsigned type = load_16(packet->ethernet + ETHERNET_TYPE);
    if (type == ETHERTYPE_VLAN)
        parse_vlan(packet, layout);
    else
        parse_type(packet, layout, type);
}

void packet_set_vlan(struct packet *packet, unsigned vlan) {
    uint8_t *start = packet->ipv4 - ETHERNET_SIZE - (vlan != 0 ? VLAN_SIZE : 0);
    memmove(start, packet->ethernet, ETHERNET_TYPE);
    packet->length += (size_t)(packet->frame - start);
    packet->frame = packet->ethernet = start;
    packet->vlan = vlan;
    if (vlan != 0) {
        store_16(start + ETHERNET_TYPE, ETHERTYPE_VLAN);
        store_16(start + ETHERNET_SIZE + VLAN_PRIORITY, vlan);
    }
    store_16(packet->ipv4 - sizeof(uint16_t), ETHERTYPE_IPV4);
}

uint16_t ipv4_checksum(const uint8_t *header) {
    uint32_t sum = 0;
    for (unsigned at = 0; at < IPV4_SIZE; at += 2)
        sum += at == IPV4_CHECKSUM ? 0 : load_16(header + at);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    return (uint16_t)~sum;
}

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

static void parse_udp(struct packet *packet, const struct layout *layout) {
    packet->udp = extract(packet, UDP_SIZE);
    if (packet->udp != NULL && load_16(packet->udp + UDP_DST_PORT) == AGGREGATION_PORT)
        parse_aggregation(packet, layout);
}

static void parse_ipv4(struct packet *packet, const struct layout *layout) {
    uint8_t *ipv4 = packet->ipv4 = extract(packet, IPV4_SIZE);
    if (ipv4 == NULL)
        return;
    packet->address = ip_of_ipv4(load_32(ipv4 + IPV4_DST));
    packet->source = ip_of_ipv4(load_32(ipv4 + IPV4_SRC));
    if ((ipv4[IPV4_VERSION] & 0xF) == 5)
        packet->bad_checksum = ipv4_checksum(ipv4) != load_16(ipv4 + IPV4_CHECKSUM);
    // Packets with options and fragments are forwarded, but not parsed further.
    if (ipv4[IPV4_VERSION] != 0x45 || (load_16(ipv4 + IPV4_FLAGS) & 0x3FFF) != 0)
        return;
    if (ipv4[IPV4_PROTOCOL] == PROTOCOL_ICMP)
        packet->icmp = extract(packet, ICMP_SIZE);
    else if (ipv4[IPV4_PROTOCOL] == PROTOCOL_UDP)
        parse_udp(packet, layout);
}

static void parse_icmpv6(struct packet *packet) {
    packet->icmp = extract(packet, ICMP_SIZE);
    if (packet->icmp == NULL)
        return;
    unsigned type = packet->icmp[ICMP_TYPE];
    bool solicitation = type == NEIGHBOUR_SOLICITATION && packet_ip_payload(packet) == SOLICITATION_LENGTH;
    if (!solicitation && type != NEIGHBOUR_ADVERTISEMENT && type != REDIRECT)
        return;
    packet->neighbour = extract(packet, NEIGHBOUR_SIZE);
    if (packet->neighbour == NULL)
        return;
    const struct ip target = ip_load(packet->neighbour + NEIGHBOUR_TARGET);
    if (!solicitation) {
        packet->source = target; // for its receivers, the target is at the sender
        return;
    }
    packet->neighbour_mac = extract(packet, NEIGHBOUR_MAC_SIZE);
    if (packet->neighbour_mac != NULL)
        packet->address = target;
}

// Packets with extension headers are forwarded, but not parsed further. p4src/include/ipv6_states.p4 says why some
// count as forged.
static void parse_ipv6(struct packet *packet, const struct layout *layout) {
    uint8_t *ipv6 = packet->ipv6 = extract(packet, IPV6_SIZE);
    if (ipv6 == NULL)
        return;
    const struct ip source = ip_load(ipv6 + IPV6_SRC), destination = ip_load(ipv6 + IPV6_DST);
    packet->hidden_source = ip_is_ipv4(source) || ip_is_ipv4(destination);
    if (packet->hidden_source)
        return;
    packet->address = destination;
    packet->source = source;
    if (ipv6[IPV6_VERSION] >> 4 != 6)
        return;
    switch (ipv6[IPV6_NEXT_HEADER]) {
    case PROTOCOL_UDP:
        parse_udp(packet, layout);
        break;
    case PROTOCOL_ICMPV6:
        parse_icmpv6(packet);
        break;
    case HOP_BY_HOP:
    case ROUTING:
    case FRAGMENT:
    case OPTIONS:
        packet->hidden_source = ipv6[IPV6_HOP_LIMIT] == NOT_FORWARDED;
        break;
    }
}

static void parse_arp(struct packet *packet) {
    packet->arp = extract(packet, ARP_SIZE);
    if (packet->arp == NULL)
        return;
    packet->address = ip_of_ipv4(load_32(packet->arp + ARP_TARGET_IP));
    packet->source = ip_of_ipv4(load_32(packet->arp + ARP_SENDER_IP));
}

// Hosts treat a priority-tagged frame (VLAN 0) as if it had no such tag. The check for forged sources does not see its
// addresses, and drops it.
static void look_at_tag(struct packet *packet) {
    if (packet->frame + packet->length < packet->payload + VLAN_TYPE)
        packet->truncated = true;
    else
        packet->hidden_source = (load_16(packet->payload + VLAN_PRIORITY) & 0x0FFF) == 0;
}

static void parse_type(struct packet *packet, const struct layout *layout, unsigned type) {
    switch (type) {
    case ETHERTYPE_IPV4:
        parse_ipv4(packet, layout);
        break;
    case ETHERTYPE_IPV6:
        parse_ipv6(packet, layout);
        break;
    case ETHERTYPE_ARP:
        parse_arp(packet);
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
    packet->hidden_source = packet->vlan == 0;
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
    uint8_t *ip = packet_ip(packet), *start = ip - ETHERNET_SIZE - (vlan != 0 ? VLAN_SIZE : 0);
    memmove(start, packet->ethernet, ETHERNET_TYPE);
    packet->length += (size_t)(packet->frame - start);
    packet->frame = packet->ethernet = start;
    packet->vlan = vlan;
    if (vlan != 0) {
        store_16(start + ETHERNET_TYPE, ETHERTYPE_VLAN);
        store_16(start + ETHERNET_SIZE + VLAN_PRIORITY, vlan);
    }
    store_16(ip - sizeof(uint16_t), packet->ipv6 != NULL ? ETHERTYPE_IPV6 : ETHERTYPE_IPV4);
}

void packet_set_ip_payload(struct packet *packet, size_t length) {
    if (packet->ipv6 != NULL)
        store_16(packet->ipv6 + IPV6_PAYLOAD_LENGTH, (uint32_t)length);
    else
        store_16(packet->ipv4 + IPV4_TOTAL_LENGTH, (uint32_t)(length + IPV4_SIZE));
}

void packet_set_addresses(struct packet *packet, struct ip source, struct ip destination, unsigned hop_limit) {
    if (packet->ipv6 != NULL) {
        ip_store(packet->ipv6 + IPV6_SRC, source);
        packet->ipv6[IPV6_HOP_LIMIT] = (uint8_t)hop_limit;
    } else {
        store_32(packet->ipv4 + IPV4_SRC, ip_last_32(source));
        packet->ipv4[IPV4_TTL] = (uint8_t)hop_limit;
    }
    packet_set_destination(packet, destination);
}

void packet_set_destination(struct packet *packet, struct ip destination) {
    if (packet->ipv6 != NULL)
        ip_store(packet->ipv6 + IPV6_DST, destination);
    else
        store_32(packet->ipv4 + IPV4_DST, ip_last_32(destination));
}

static uint16_t complement(uint32_t sum) {
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    return (uint16_t)~sum;
}

static uint32_t sum_of(const uint8_t *data, size_t length) {
    uint32_t sum = 0;
    for (size_t at = 0; at < length; at += 2)
        sum += load_16(data + at);
    return sum;
}

uint16_t ipv4_checksum(const uint8_t *header) {
    uint32_t sum = 0;
    for (unsigned at = 0; at < IPV4_SIZE; at += 2)
        sum += at == IPV4_CHECKSUM ? 0 : load_16(header + at);
    return complement(sum);
}

uint16_t neighbour_checksum(const struct packet *packet) {
    const uint32_t pseudo_header =
        sum_of(packet->ipv6 + IPV6_SRC, IPV6_SIZE - IPV6_SRC) + SOLICITATION_LENGTH + PROTOCOL_ICMPV6;
    return complement(pseudo_header + load_16(packet->icmp + ICMP_TYPE) +
                      sum_of(packet->neighbour, NEIGHBOUR_SIZE + NEIGHBOUR_MAC_SIZE));
}

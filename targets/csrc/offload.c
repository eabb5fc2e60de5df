// SPDX-License-Identifier: Apache-2.0
#include "offload.h"

#include "packet.h"

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

bool is_udp_gso(const struct virtio_net_hdr *offload, const uint8_t *frame, size_t length) {
    const uint8_t *ipv4 = frame + ETHERNET_SIZE;
    return (offload->gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_UDP_L4 && offload->gso_size != 0 &&
           length > UDP_HEADERS_SIZE && load_16(frame + ETHERNET_TYPE) == ETHERTYPE_IPV4 &&
           ipv4[IPV4_VERSION] == 0x45 && ipv4[IPV4_PROTOCOL] == PROTOCOL_UDP &&
           load_16(ipv4 + IPV4_SIZE + UDP_DST_PORT) == AGGREGATION_PORT;
}

size_t extract_segment(const struct virtio_net_hdr *offload, const uint8_t *gso_frame, size_t length, size_t at,
                       uint8_t *frame) {
    if (at >= length - UDP_HEADERS_SIZE)
        return 0;
    size_t size = length - UDP_HEADERS_SIZE - at;
    if (size > offload->gso_size)
        size = offload->gso_size;
    memcpy(frame, gso_frame, UDP_HEADERS_SIZE);
    memcpy(frame + UDP_HEADERS_SIZE, gso_frame + UDP_HEADERS_SIZE + at, size);
    uint8_t *ipv4 = frame + ETHERNET_SIZE, *udp = ipv4 + IPV4_SIZE;
    store_16(ipv4 + IPV4_TOTAL_LENGTH, (uint32_t)(IPV4_SIZE + UDP_SIZE + size));
    store_16(ipv4 + IPV4_CHECKSUM, ipv4_checksum(ipv4));
    store_16(udp + UDP_LENGTH, (uint32_t)(UDP_SIZE + size));
    store_16(udp + UDP_CHECKSUM, 0); // none: it is optional in IPv4, and the GSO frame does not have it yet
    return UDP_HEADERS_SIZE + size;
}

// SPDX-License-Identifier: Apache-2.0
#include "offload.h"

#include "packet.h"

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

// Returns the size of the headers in front of the datagram to the aggregator in a frame, or 0 if there is none.
static size_t headers_size(const uint8_t *frame, size_t length) {
    const uint8_t *ip = frame + ETHERNET_SIZE;
    size_t size = 0;
    if (length > UDP_HEADERS_SIZE && load_16(frame + ETHERNET_TYPE) == ETHERTYPE_IPV4 && ip[IPV4_VERSION] == 0x45 &&
        ip[IPV4_PROTOCOL] == PROTOCOL_UDP)
        size = UDP_HEADERS_SIZE;
    else if (length > UDP_IPV6_HEADERS_SIZE && load_16(frame + ETHERNET_TYPE) == ETHERTYPE_IPV6 &&
             ip[IPV6_VERSION] >> 4 == 6 && ip[IPV6_NEXT_HEADER] == PROTOCOL_UDP)
        size = UDP_IPV6_HEADERS_SIZE;
    return size != 0 && load_16(frame + size - UDP_SIZE + UDP_DST_PORT) == AGGREGATION_PORT ? size : 0;
}

bool is_udp_gso(const struct virtio_net_hdr *offload, const uint8_t *frame, size_t length) {
    return (offload->gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_UDP_L4 && offload->gso_size != 0 &&
           headers_size(frame, length) != 0;
}

size_t extract_segment(const struct virtio_net_hdr *offload, const uint8_t *gso_frame, size_t length, size_t at,
                       uint8_t *frame) {
    const size_t headers = headers_size(gso_frame, length);
    if (at >= length - headers)
        return 0;
    size_t size = length - headers - at;
    if (size > offload->gso_size)
        size = offload->gso_size;
    memcpy(frame, gso_frame, headers);
    memcpy(frame + headers, gso_frame + headers + at, size);
    uint8_t *ip = frame + ETHERNET_SIZE, *udp = frame + headers - UDP_SIZE;
    if (headers == UDP_IPV6_HEADERS_SIZE) {
        store_16(ip + IPV6_PAYLOAD_LENGTH, (uint32_t)(UDP_SIZE + size));
    } else {
        store_16(ip + IPV4_TOTAL_LENGTH, (uint32_t)(IPV4_SIZE + UDP_SIZE + size));
        store_16(ip + IPV4_CHECKSUM, ipv4_checksum(ip));
    }
    store_16(udp + UDP_LENGTH, (uint32_t)(UDP_SIZE + size));
    store_16(udp + UDP_CHECKSUM, 0); // none: the protocol needs none, and the GSO frame does not have it yet
    return headers + size;
}

// SPDX-License-Identifier: Apache-2.0
control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

// An advertisement, after the pseudo-header of IPv6 (RFC 8200, 8.1).
#define ADVERTISEMENT_FIELDS { hdr.ipv6.src, hdr.ipv6.dst, 16w0, hdr.ipv6.payload_length, 24w0, hdr.ipv6.next_header, \
    hdr.icmp.type, hdr.icmp.code, hdr.neighbour.flags, hdr.neighbour.target, hdr.neighbour_mac.type, \
    hdr.neighbour_mac.length, hdr.neighbour_mac.mac }

// The checksum is computed again only where it was right. A frame with a wrong one is bridged unchanged, so that its
// receiver sees the error. A header with options is bridged unchanged, too.
control UpdateChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5 && meta.bad_checksum == 0, IPV4_FIELDS, hdr.ipv4.checksum,
            HashAlgorithm.csum16);
        update_checksum(meta.advertised == 1, ADVERTISEMENT_FIELDS, hdr.icmp.checksum, HashAlgorithm.csum16);
    }
}

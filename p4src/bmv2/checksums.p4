// SPDX-License-Identifier: Apache-2.0
#define IPV4_FIELDS { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification, \
    hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst }

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

// Only a header whose checksum was right is ever rewritten: a wrong one is bridged as it came, for its receiver to see.
// One with options is bridged unchanged, too.
control UpdateChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5 && meta.bad_checksum == 0, IPV4_FIELDS, hdr.ipv4.checksum,
            HashAlgorithm.csum16);
    }
}

// SPDX-License-Identifier: Apache-2.0
control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

// The checksum is computed again only where it was right. A frame with a wrong one is bridged unchanged, so that its
// receiver sees the error. A header with options is bridged unchanged, too.
control UpdateChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5 && meta.bad_checksum == 0, IPV4_FIELDS, hdr.ipv4.checksum,
            HashAlgorithm.csum16);
    }
}

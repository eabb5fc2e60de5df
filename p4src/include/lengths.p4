// SPDX-License-Identifier: Apache-2.0
// Measure: the UDP length of the reply, which has the values of the lanes in `present`.
control Measure(in headers_t hdr, out bit<16> length) {
    apply {
        length = BARE_LENGTH;
#define ADD_LENGTH(i) if (hdr.aggregation.present[i:i] == 1) { length = length + LANE_LENGTH; }
        FOR_EACH_LANE(ADD_LENGTH)
    }
}

control Lengths(inout headers_t hdr, in bit<16> length) {
    apply {
        hdr.udp.length = length;
        hdr.ipv4.total_length = length + 20;
#ifdef IPV6
        hdr.ipv6.payload_length = length;
#endif
    }
}

// LeaveOut: removes the values of lanes that are not in `present`.
control LeaveOut(inout headers_t hdr) {
    apply {
#define LEAVE_OUT(i) if (hdr.aggregation.present[i:i] == 0) { hdr.values[i].setInvalid(); }
        FOR_EACH_LANE(LEAVE_OUT)
    }
}

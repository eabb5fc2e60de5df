// SPDX-License-Identifier: Apache-2.0
// Aggregation: a packet to the aggregator, in five steps.
//   1. Validation: version, lengths and lanes.
//   2. Admission: the sender's entry, and whether it may send this op.
//   3. Slot state: the packet's round against the slot half's (slot_state.p4), which gives the outcome.
//   4. Lanes: the smallest keys and the sums (lane.p4).
//   5. Reply.
control Aggregation(inout headers_t hdr, inout metadata_t meta) {
    counter(OUTCOMES, CounterType.packets_and_bytes) outcomes;
    meter(512, MeterType.packets) hellos;  // by ingress port. HELLOs are the only packets from ports to the controller.

    Uplink() uplink;
    Admission() admission;
    Verdict() verdict;
    SlotState() slot_state;
    EnvoyName() envoy_name;
    Replies() replies;
    Measure() measure;
    Lengths() lengths;
    LeaveOut() leave_out;
#define LANE_INSTANCES(i) Key() key##i; Lane() lane##i;
    FOR_EACH_LANE(LANE_INSTANCES)

    bit<16> length = BARE_LENGTH;
    bit<2> colour = V1MODEL_METER_COLOR_GREEN;

    // A retransmission and a QUERY only read: their keys must not lower the stored minimum.
    action disregard_keys() {
#define DISREGARD_KEY(i) hdr.keys[i].key = NO_KEY;
        FOR_EACH_LANE(DISREGARD_KEY)
    }

    apply {
        // Until slot_state decides, OUTCOME_STARTED means that nothing is wrong so far.
        meta.outcome = OUTCOME_FORBIDDEN;
        meta.keep = 0xFFFFFFFF;  // continue from the stored sums and keys, unless slot_state sets it to 0
#define MEASURE(i) if (hdr.values[i].isValid()) { length = length + LANE_LENGTH; } \
            else if (hdr.aggregation.active[i:i] == 1) { meta.growth = meta.growth + LANE_LENGTH; }
        FOR_EACH_LANE(MEASURE)
        bit<16> ip_length = hdr.ipv6.isValid() ? hdr.ipv6.payload_length : hdr.ipv4.total_length - 20;

        if (meta.truncated == 1 || meta.bad_checksum == 1 || hdr.aggregation.version != PROTOCOL_VERSION
            || hdr.udp.length != length || ip_length != length
            || hdr.aggregation.active & ~(bit<8>)ALL_LANES != 0
            || hdr.aggregation.present & ~hdr.aggregation.active != 0
            || meta.growth > MAX_GROWTH || (meta.from_cpu == 1 && meta.growth != 0)
            // The lowest byte of a round's fingerprint is its lanes.
            || ((hdr.aggregation.op == OP_DATA || hdr.aggregation.op == OP_RESULT)
                && hdr.aggregation.active != hdr.aggregation.fingerprint[7:0])) {
            meta.outcome = OUTCOME_MALFORMED;
        } else if (meta.from_cpu == 0) {
            uplink.apply(hdr, meta);
            if (hdr.aggregation.op == OP_HELLO) {
                hellos.execute_meter((bit<32>)meta.ingress_port, colour);
                meta.outcome = colour == V1MODEL_METER_COLOR_RED ? OUTCOME_HELLO_LIMITED : OUTCOME_HELLO;
            } else if (hdr.aggregation.op == OP_ERROR || (meta.from_parent == 0 && hdr.aggregation.op == OP_DATA)
                || (meta.from_parent == 1 && (hdr.aggregation.op == OP_RESULT || hdr.aggregation.op == OP_STATUS))) {
                meta.outcome = OUTCOME_STARTED;
                admission.apply(hdr, meta);
                verdict.apply(hdr, meta);
                if (hdr.aggregation.op == OP_ERROR && meta.outcome == OUTCOME_STARTED) {
                    meta.outcome = OUTCOME_MISMATCH;
                }
            }
        } else if (hdr.aggregation.op == OP_RESET || hdr.aggregation.op == OP_QUERY) {
            meta.half = (half_t)hdr.aggregation.slot;
            meta.outcome = meta.half < HALVES ? OUTCOME_STARTED : OUTCOME_BAD_SLOT;
        }

        if (meta.outcome == OUTCOME_STARTED) {
            slot_state.apply(hdr, meta);
            bit<1> asks = meta.outcome == OUTCOME_REPLAYED || meta.outcome == OUTCOME_SENT_UP
                || meta.outcome == OUTCOME_QUERY ? 1w1 : 1w0;
            if (asks == 1) {
                disregard_keys();
            }
            if (asks == 1 || meta.outcome == OUTCOME_STARTED || meta.outcome == OUTCOME_ADDED
                || meta.outcome == OUTCOME_STORED) {
#define APPLY_LANE(i) key##i.apply(hdr.keys[i].key, meta.half, meta.keep); \
                lane##i.apply(hdr.values[i], meta.add[i:i], meta.touch[i:i], meta.half, meta.keep);
                FOR_EACH_LANE(APPLY_LANE)
            }
        }

        outcomes.count((bit<32>)meta.outcome);
        if (meta.complete == 1) {
            outcomes.count((bit<32>)OUTCOME_COMPLETED);
        } else if (meta.send_up == 1 && meta.outcome != OUTCOME_SENT_UP) {
            outcomes.count((bit<32>)OUTCOME_SENT_UP);
        }
        envoy_name.apply(hdr, meta);
        replies.apply(hdr, meta);
        if (meta.marked == 1) {
            hdr.ipv4.tos[1:0] = ECN_CE;
            hdr.ipv6.traffic_class[1:0] = ECN_CE;
        }
        measure.apply(hdr, length);
        lengths.apply(hdr, length);
        leave_out.apply(hdr);
    }
}

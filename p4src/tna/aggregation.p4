// SPDX-License-Identifier: Apache-2.0
// A packet to the aggregator: is it well formed, who may send it, what does its slot make of it, and what is the answer.
// All is looked up at once and weighed later, since stages are scarce.
control Aggregation(inout headers_t hdr, inout metadata_t meta, in bit<16> parser_error) {
    Counter<bit<64>, bit<8>>(OUTCOMES, CounterType_t.PACKETS_AND_BYTES) outcomes;

    Admission() admission;
    SlotState() slot_state;
    Decision() decision;
    Replies() replies;
#define LANE_INSTANCES(i) Key() key##i; Lane() lane##i;
    FOR_EACH_LANE(LANE_INSTANCES)

    @hidden action malformed() { meta.outcome = OUTCOME_MALFORMED; }
    @hidden action forbidden() { meta.outcome = OUTCOME_FORBIDDEN; }
    @hidden action hello() { meta.outcome = OUTCOME_HELLO; }
    @hidden action data() { meta.outcome = OUTCOME_STARTED; }
    @hidden action mismatch() { meta.outcome = OUTCOME_MISMATCH; }
    @hidden action control_packet() {
        meta.outcome = OUTCOME_STARTED;
        meta.half = hdr.aggregation.slot;
    }

    // active, present and lengths of a packet: of a round without values, without the sender's, and with them.
#define NO_VALUES   0, 0, BARE_LENGTH, BARE_LENGTH + 20
#define NOT_MINE    1, 0, BARE_LENGTH, BARE_LENGTH + 20
#define WITH_VALUES 1, 1, BARE_LENGTH + LANE_LENGTH, BARE_LENGTH + LANE_LENGTH + 20
#define SOUND 0, 0, PROTOCOL_VERSION
#define FROM_WORKER(shape) \
            (SOUND, shape, 0, OP_DATA)  : data(); \
            (SOUND, shape, 0, OP_ERROR) : mismatch(); \
            (SOUND, shape, 0, OP_HELLO) : hello(); \
            (SOUND, shape, 0, _)        : forbidden();
#define FROM_CONTROLLER(shape) \
            (SOUND, shape, 1, OP_RESET) : control_packet(); \
            (SOUND, shape, 1, OP_QUERY) : control_packet(); \
            (SOUND, shape, 1, _)        : forbidden();
    @hidden table check {
        key = {
            parser_error            : ternary;
            meta.bad_checksum       : ternary;
            hdr.aggregation.version : ternary;
            hdr.aggregation.active  : ternary;
            hdr.aggregation.present : ternary;
            hdr.udp.length          : ternary;
            hdr.ipv4.total_length   : ternary;
            meta.from_cpu           : ternary;
            hdr.aggregation.op      : ternary;
        }
        actions = { malformed; forbidden; hello; data; mismatch; control_packet; }
        const entries = {
            FROM_WORKER(NO_VALUES)
            FROM_WORKER(NOT_MINE)
            FROM_WORKER(WITH_VALUES)
            FROM_CONTROLLER(NO_VALUES)
            FROM_CONTROLLER(WITH_VALUES)
        }
        const default_action = malformed();
        size = 32;
    }

    @hidden action clear() {
        hdr.values[0].setValid();
#define CLEAR_VALUE(i) hdr.values[0].v##i = 0;
        FOR_EACH_VALUE(CLEAR_VALUE)
    }

    apply {
        if (meta.step != STEP_HARVEST) {
            switch (check.apply().action_run) {
                data:
                mismatch: { admission.apply(hdr, meta); }
                control_packet: {
                    if (hdr.aggregation.slot >= HALVES) {
                        meta.outcome = OUTCOME_BAD_SLOT;
                    }
                }
            }
        }
        if (meta.own == 1 && hdr.aggregation.op == OP_DATA && hdr.aggregation.active == 1 && hdr.aggregation.present == 0) {
            clear();
        }
        if (meta.outcome == OUTCOME_STARTED && meta.own == 1 && meta.margin == 0) {
            slot_state.apply(hdr, meta);
        }
#define APPLY_LANE(i) key##i.apply(hdr.keys[i].key, meta); \
        lane##i.apply(hdr.values[i], hdr.aggregation.active, meta);
        FOR_EACH_LANE(APPLY_LANE)
        decision.apply(meta);

        if (meta.own == 1 && meta.margin == 0) {
            meta.cell = meta.outcome;
            if (meta.complete == 1) {
                meta.cell = OUTCOME_COMPLETED;
            }
            outcomes.count(meta.cell);
            replies.apply(hdr, meta);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
// Aggregation: a packet to the aggregator, in the steps of bmv2/aggregation.p4.
//
// Stages are scarce, so lookups happen side by side and tables weigh their results later. On Tofino 1, everything in an
// `if` has to finish before what follows it can start; so no `if` encloses more than one stage's work.
control Aggregation(inout headers_t hdr, inout metadata_t meta, in bit<16> parser_error) {
    // The annotations tell a control plane which ports a build was made for.
    @cpu_port(CPU_PORT)
#ifdef SECOND_PASS
    @recirculation_port(RECIRCULATION_PORT)
#endif
    Counter<bit<64>, bit<8>>(OUTCOMES, CounterType_t.PACKETS_AND_BYTES) outcomes;
    Meter<port_t>(512, MeterType_t.PACKETS) hellos;  // by ingress port. HELLOs alone go from ports to the controller.

#ifdef LEAF
    Uplink() uplink;
    EnvoyName() envoy_name;
#endif
    Admission() admission;
    Verdict() verdict;
    SlotState() slot_state;
    Decision() decision;
    Replies() replies;
    Measure() measure;
    Lengths() lengths;
#define LANE_INSTANCES(i) Key() key##i; Lane() lane##i;
    FOR_EACH_LANE(LANE_INSTANCES)

    @hidden action malformed() { meta.outcome = OUTCOME_MALFORMED; }
    @hidden action forbidden() { meta.outcome = OUTCOME_FORBIDDEN; }
    @hidden action hello() { meta.outcome = OUTCOME_HELLO; }
    @hidden action started() { meta.outcome = OUTCOME_STARTED; }
    @hidden action mismatch() { meta.outcome = OUTCOME_MISMATCH; }

    // Shapes of a packet: lanes of the fingerprint, `active`, `present`, and the lengths of UDP and IPv4.
    //   NO_VALUES    the round has no values
    //   NOT_MINE     the round has values, this packet has none
    //   WITH_VALUES  the packet has values
#define NO_VALUES(lanes)   lanes, 0, 0, BARE_LENGTH, BARE_LENGTH + 20
#define NOT_MINE(lanes)    lanes, 1, 0, BARE_LENGTH, BARE_LENGTH + 20
#define WITH_VALUES(lanes) lanes, 1, 1, BARE_LENGTH + LANE_LENGTH, BARE_LENGTH + LANE_LENGTH + 20
#define SOUND 0, 0, PROTOCOL_VERSION
#ifdef LEAF
#define ANSWERS(shape, lanes) \
            (SOUND, shape(lanes), 0, OP_RESULT) : started(); \
            (SOUND, shape(_),     0, OP_STATUS) : started();
#else
#define ANSWERS(shape, lanes) \
            (SOUND, shape(lanes), 0, OP_RESULT) : forbidden();
#endif
#define FROM_WORKER(shape, lanes) \
            (SOUND, shape(lanes), 0, OP_DATA)   : started(); \
            ANSWERS(shape, lanes) \
            (SOUND, shape(_),     0, OP_DATA)   : malformed(); \
            (SOUND, shape(_),     0, OP_RESULT) : malformed(); \
            (SOUND, shape(_),     0, OP_ERROR)  : mismatch(); \
            (SOUND, shape(_),     0, OP_HELLO)  : hello(); \
            (SOUND, shape(_),     0, _)         : forbidden();
#define FROM_CONTROLLER(shape, lanes) \
            (SOUND, shape(_),     1, OP_RESET)  : started(); \
            (SOUND, shape(_),     1, OP_QUERY)  : started(); \
            (SOUND, shape(lanes), 1, _)         : forbidden(); \
            (SOUND, shape(_),     1, OP_DATA)   : malformed(); \
            (SOUND, shape(_),     1, OP_RESULT) : malformed(); \
            (SOUND, shape(_),     1, _)         : forbidden();
    @hidden table check {
        key = {
            parser_error            : ternary;
            meta.bad_checksum       : ternary;
            hdr.aggregation.version : ternary;
            hdr.aggregation.fingerprint[7:0] : ternary @name("lanes");
            hdr.aggregation.active  : ternary;
            hdr.aggregation.present : ternary;
            hdr.udp.length          : ternary;
            hdr.ipv4.total_length   : ternary;
            meta.from_cpu           : ternary;
            hdr.aggregation.op      : ternary;
        }
        actions = { malformed; forbidden; hello; started; mismatch; }
        const entries = {
            FROM_WORKER(NO_VALUES, 0)
            FROM_WORKER(NOT_MINE, 1)
            FROM_WORKER(WITH_VALUES, 1)
            FROM_CONTROLLER(NO_VALUES, 0)
            FROM_CONTROLLER(WITH_VALUES, 1)
        }
        const default_action = malformed();
        size = 64;
    }

    @hidden action clear() {
        hdr.values[0].setValid();
#define CLEAR_VALUE(i) hdr.values[0].v##i = 0;
        FOR_EACH_VALUE(CLEAR_VALUE)
    }

#ifdef LEAF
    // In the stage before the bitmap's, which has no stateful ALU left.
    bit<8> colour = (bit<8>)MeterColor_t.GREEN;
    @hidden action measure_rate() { colour = hellos.execute(meta.ingress_port); }
    @stage(2)
    @hidden table meet {
        actions = { measure_rate; }
        const default_action = measure_rate;
    }
#endif

    apply {
        if (hdr.aggregation.isValid() && meta.step == 0) {
            check.apply();
        }
        if (meta.from_cpu == 1) {
            meta.half = hdr.aggregation.slot;
        } else if (meta.from_port == 1) {
#ifdef LEAF
            uplink.apply(hdr, meta);
#endif
            admission.apply(hdr, meta);
        }
#ifdef LEAF
        if (hdr.aggregation.isValid() && meta.own == 1 && hdr.aggregation.active == 1 && hdr.aggregation.present == 0
            && (hdr.aggregation.op == OP_DATA || hdr.aggregation.op == OP_RESULT)) {
            clear();
        }
#else
        if (hdr.aggregation.isValid() && meta.own == 1 && hdr.aggregation.op == OP_DATA && hdr.aggregation.active == 1
            && hdr.aggregation.present == 0) {
            clear();
        }
#endif
        if (meta.from_cpu == 1) {
            if (meta.outcome == OUTCOME_STARTED && hdr.aggregation.slot >= HALVES) {
                meta.outcome = OUTCOME_BAD_SLOT;
            }
#ifdef LEAF
        } else {
#else
        } else if (meta.outcome == OUTCOME_STARTED || meta.outcome == OUTCOME_MISMATCH) {
#endif
            verdict.apply(hdr, meta);
        }

        slot_state.apply(hdr, meta);
        if (meta.same == 1 && (meta.fingerprint & IS_MARKED) != 0) {
            hdr.ipv4.tos[1:0] = ECN_CE;
        }
#ifdef LEAF
        if (meta.outcome == OUTCOME_HELLO && meta.own == 1 && meta.margin == 0) {
            meet.apply();
        }
#else
        bit<8> colour = (bit<8>)MeterColor_t.GREEN;
        if (meta.outcome == OUTCOME_HELLO && meta.own == 1 && meta.margin == 0) {
            colour = hellos.execute(meta.ingress_port);
        }
#endif
#define APPLY_LANE(i) key##i.apply(hdr.keys[i].key, meta); \
        lane##i.apply(hdr.values[i], meta);
        FOR_EACH_LANE(APPLY_LANE)
        // Before the decision, which does not concern a HELLO: so the reply need not wait for the decision.
        if (colour == (bit<8>)MeterColor_t.RED) {
            meta.outcome = OUTCOME_HELLO_LIMITED;
        }
#ifdef LEAF
        envoy_name.apply(hdr, meta);
#endif
        decision.apply(meta);

#ifdef LEAF
        if (hdr.aggregation.isValid() && meta.own == 1 && meta.margin == 0 && meta.step != STEP_AGAIN) {
#else
        if (hdr.aggregation.isValid() && meta.own == 1 && meta.margin == 0) {
#endif
            outcomes.count(meta.outcome, SURPLUS_IN);
            replies.apply(hdr, meta);
        }
        bit<16> length;
        measure.apply(hdr, length);
        if (hdr.aggregation.isValid() && meta.own == 1 && meta.margin == 0) {
            lengths.apply(hdr, length);
        }
    }
}

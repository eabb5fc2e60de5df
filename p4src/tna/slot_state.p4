// SPDX-License-Identifier: Apache-2.0
// SlotState: the round of a slot half. The rules are those of bmv2/slot_state.p4, without a parent.
//
// A stateful ALU updates at most two words and returns one bit or word. So the round's number is stored three times,
// each time beside the word that is compared in the same stage:
//   seqs        is the packet's round newer?
//   rounds      is it the current round, and was that not reset?
//   operations  is it the same operation?
struct round_t {
    bit<32> seq;
    bit<32> live;         // equal to seq; after a RESET seq + 1, so that only a newer round matches
}

struct operation_t {
    bit<32> seq;
    bit<32> fingerprint;
}

// Serial number arithmetic (RFC 1982).
#define IS_NEWER(than) ((int<32>)hdr.aggregation.seq - (int<32>)than > 0)

control SlotState(in headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, bit<16>>(HALVES, 0) seqs;
    Register<round_t, bit<16>>(HALVES, {0, 1}) rounds;
    Register<operation_t, bit<16>>(HALVES, {0, 0}) operations;
    Register<bit<32>, bit<16>>(HALVES, 0) bitmaps;
    Register<bit<32>, bit<16>>(HALVES, 0) fingerprints;

    RegisterAction<bit<32>, bit<16>, bit<1>>(seqs) advance_seq = {
        void apply(inout bit<32> seq, out bit<1> newer) {
            newer = 0;
            if (IS_NEWER(seq)) {
                seq = hdr.aggregation.seq;
                newer = 1;
            }
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<1>>(seqs) set_seq = {
        void apply(inout bit<32> seq, out bit<1> newer) {
            newer = 0;
            seq = hdr.aggregation.seq;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(seqs) read_seq = {
        void apply(inout bit<32> seq, out bit<32> stored) {
            stored = seq;
        }
    };

    RegisterAction<round_t, bit<16>, bit<1>>(rounds) advance_round = {
        void apply(inout round_t round, out bit<1> live) {
            live = 0;
            if (round.live == hdr.aggregation.seq) {
                live = 1;
            }
            if (IS_NEWER(round.seq)) {
                round.seq = hdr.aggregation.seq;
                round.live = hdr.aggregation.seq;
            }
        }
    };
    RegisterAction<round_t, bit<16>, bit<1>>(rounds) set_round = {
        void apply(inout round_t round, out bit<1> live) {
            live = 0;
            round.seq = hdr.aggregation.seq;
            round.live = hdr.aggregation.seq + 1;
        }
    };

    RegisterAction<operation_t, bit<16>, bit<1>>(operations) advance_operation = {
        void apply(inout operation_t operation, out bit<1> same) {
            same = 0;
            if (operation.fingerprint == hdr.aggregation.fingerprint) {
                same = 1;
            }
            if (IS_NEWER(operation.seq)) {
                operation.seq = hdr.aggregation.seq;
                operation.fingerprint = hdr.aggregation.fingerprint;
            }
        }
    };
    RegisterAction<operation_t, bit<16>, bit<1>>(operations) set_operation = {
        void apply(inout operation_t operation, out bit<1> same) {
            same = 0;
            operation.seq = hdr.aggregation.seq;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(bitmaps) set_bitmap = {
        void apply(inout bit<32> bitmap, out bit<32> before) {
            before = 0;
            bitmap = meta.worker_bit;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(bitmaps) add_to_bitmap = {
        void apply(inout bit<32> bitmap, out bit<32> before) {
            before = bitmap;
            bitmap = bitmap | meta.worker_bit;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(bitmaps) clear_bitmap = {
        void apply(inout bit<32> bitmap, out bit<32> before) {
            before = 0;
            bitmap = 0;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(bitmaps) read_bitmap = {
        void apply(inout bit<32> bitmap, out bit<32> before) {
            before = bitmap;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) set_fingerprint = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            stored = 0;
            fingerprint = hdr.aggregation.fingerprint;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) read_fingerprint = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            stored = fingerprint;
        }
    };

    @hidden action data() {
        meta.step = STEP_DATA;
        meta.newer = advance_seq.execute(meta.half);
    }
    @hidden action reset() {
        meta.step = STEP_RESET;
        set_seq.execute(meta.half);
    }
    @hidden action query() {
        meta.step = STEP_QUERY;
        meta.seq = read_seq.execute(meta.half);
    }
    @hidden table seq {
        key = { hdr.aggregation.op : exact; }
        actions = { data; reset; query; @defaultonly NoAction; }
        const entries = {
            OP_DATA  : data();
            OP_RESET : reset();
            OP_QUERY : query();
        }
        const default_action = NoAction;
        size = 4;
    }

    @hidden action data_round() { meta.live = advance_round.execute(meta.half); }
    @hidden action reset_round() { set_round.execute(meta.half); }
    @hidden table round {
        key = { hdr.aggregation.op : exact; }
        actions = { data_round; reset_round; @defaultonly NoAction; }
        const entries = {
            OP_DATA  : data_round();
            OP_RESET : reset_round();
        }
        const default_action = NoAction;
        size = 4;
    }

    @hidden action data_operation() { meta.same = advance_operation.execute(meta.half); }
    @hidden action reset_operation() { set_operation.execute(meta.half); }
    @hidden table operation {
        key = { hdr.aggregation.op : exact; }
        actions = { data_operation; reset_operation; @defaultonly NoAction; }
        const entries = {
            OP_DATA  : data_operation();
            OP_RESET : reset_operation();
        }
        const default_action = NoAction;
        size = 4;
    }

    @hidden action start_bitmap() { set_bitmap.execute(meta.half); }
    @hidden action count_worker() { meta.bitmap = add_to_bitmap.execute(meta.half); }
    @hidden action reset_bitmap() { clear_bitmap.execute(meta.half); }
    @hidden action query_bitmap() { meta.bitmap = read_bitmap.execute(meta.half); }
    @hidden table bitmap {
        key = {
            meta.step  : ternary;
            meta.newer : ternary;
            meta.live  : ternary;
            meta.same  : ternary;
        }
        actions = { start_bitmap; count_worker; reset_bitmap; query_bitmap; @defaultonly NoAction; }
        const entries = {
            (STEP_DATA,  1, _, _) : start_bitmap();
            (STEP_DATA,  0, 1, 1) : count_worker();
            (STEP_RESET, _, _, _) : reset_bitmap();
            (STEP_QUERY, _, _, _) : query_bitmap();
        }
        const default_action = NoAction;
        size = 8;
    }

    @hidden action start_fingerprint() { set_fingerprint.execute(meta.half); }
    @hidden action query_fingerprint() { meta.fingerprint = read_fingerprint.execute(meta.half); }
    @hidden table fingerprint {
        key = {
            meta.step  : ternary;
            meta.newer : ternary;
        }
        actions = { start_fingerprint; query_fingerprint; @defaultonly NoAction; }
        const entries = {
            (STEP_DATA,  1) : start_fingerprint();
            (STEP_DATA,  0) : query_fingerprint();
            (STEP_QUERY, _) : query_fingerprint();
        }
        const default_action = NoAction;
        size = 4;
    }

    @hidden action without_sender() {
        meta.others = meta.full_bitmap ^ meta.worker_bit;
    }

    apply {
        without_sender();
        if (hdr.aggregation.isValid() && meta.outcome == OUTCOME_STARTED && meta.own == 1 && meta.margin == 0) {
            seq.apply();
            round.apply();
            operation.apply();
        }
        bitmap.apply();
        fingerprint.apply();
    }
}

// Decision: the packet's outcome, from the bits that the slot state returned, and whether the round is complete.
control Decision(inout metadata_t meta) {
    @hidden action compare() {
        meta.missing = meta.bitmap ^ meta.others;
        meta.lacking = meta.bitmap ^ meta.full_bitmap;
    }

    @hidden action become(bit<8> outcome) { meta.outcome = outcome; }
    @hidden action complete() {
        meta.outcome = OUTCOME_COMPLETED;
        meta.complete = 1;
    }
    @hidden table outcome {
        key = {
            meta.step       : ternary;
            meta.newer      : ternary;
            meta.live       : ternary;
            meta.same       : ternary;
            meta.missing    : ternary;
            meta.lacking    : ternary;
            meta.worker_bit : ternary;
            meta.bitmap     : ternary;
        }
        actions = { become; complete; @defaultonly NoAction; }
        const entries = {
            (STEP_RESET, _, _, _, _, _, _, _) : become(OUTCOME_RESET);
            (STEP_QUERY, _, _, _, _, _, _, _) : become(OUTCOME_QUERY);
            (STEP_DATA,  1, _, _, 0, _, _, _) : complete();
            (STEP_DATA,  1, _, _, _, _, _, _) : become(OUTCOME_STARTED);
            (STEP_DATA,  0, 0, _, _, _, _, _) : become(OUTCOME_STALE);
            (STEP_DATA,  0, 1, 0, _, _, _, _) : become(OUTCOME_MISMATCH);
            (STEP_DATA,  0, 1, 1, _, 0, _, _) : become(OUTCOME_REPLAYED);
#define AHEAD_ROW(w) (STEP_DATA, 0, 1, 1, _, _, 32w1 << w &&& 32w1 << w, 32w1 << w &&& 32w1 << w) : become(OUTCOME_AHEAD);
            REPEAT_32(AHEAD_ROW)
            (STEP_DATA,  0, 1, 1, 0, _, _, _) : complete();
            (STEP_DATA,  0, 1, 1, _, _, _, _) : become(OUTCOME_ADDED);
        }
        const default_action = NoAction;
        size = 64;
    }

    apply {
        compare();
        outcome.apply();
    }
}

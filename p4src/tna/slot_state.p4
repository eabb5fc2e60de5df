// SPDX-License-Identifier: Apache-2.0
// SlotState: the round of a slot half. The rules are those of bmv2/slot_state.p4.
//
// A stateful ALU updates at most two words and returns one bit or word. So the round's number is stored three times,
// each time beside the word that is compared in the same stage:
//   seqs        is the packet's round newer?
//   rounds      is it the current round, and was that not reset?
//   operations  is it the same operation?
//
// A packet has one lane, so most bits of a fingerprint's lowest byte are free. In the register `fingerprints` they hold
// what else is to be known of the round: HAS_VALUES and IS_MARKED.
struct round_t {
    bit<32> seq;
    bit<32> live;         // equal to seq; after a RESET seq + 1, so that only a newer round matches
}

struct operation_t {
    bit<32> seq;
    bit<32> fingerprint;
}

#ifdef LEAF
// The worker whose packet completed the rack's round, beside a copy of the bitmap of the workers here, without the
// parent.
struct partial_t {
    bit<32> bitmap;
    bit<32> envoy;
}
#endif

// Worker w is the sender, and in the bitmap: its packet was added before.
#define ALREADY_ADDED(w) 32w1 << w &&& 32w1 << w, 32w1 << w &&& 32w1 << w

#define HAS_VALUES 2  // a worker has sent values; only at a leaf
#define IS_MARKED  4  // a router has marked a packet of the round (CE, RFC 3168)

// Serial number arithmetic (RFC 1982).
#define IS_NEWER(than) ((int<32>)hdr.aggregation.seq - (int<32>)than > 0)

control SlotState(in headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, bit<16>>(HALVES, 0) seqs;
    Register<round_t, bit<16>>(HALVES, {0, 1}) rounds;
    Register<operation_t, bit<16>>(HALVES, {0, 0}) operations;
    Register<bit<32>, bit<16>>(HALVES, 0) bitmaps;
    Register<bit<32>, bit<16>>(HALVES, 0) fingerprints;
#ifdef LEAF
    Register<partial_t, bit<16>>(HALVES, {0, 0}) partials;
#endif

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
#ifdef LEAF
    RegisterAction<round_t, bit<16>, bit<1>>(rounds) compare_round = {
        void apply(inout round_t round, out bit<1> live) {
            live = 0;
            if (round.live == hdr.aggregation.seq) {
                live = 1;
            }
        }
    };
#endif
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
#ifdef LEAF
    RegisterAction<operation_t, bit<16>, bit<1>>(operations) compare_operation = {
        void apply(inout operation_t operation, out bit<1> same) {
            same = 0;
            if (operation.fingerprint == hdr.aggregation.fingerprint) {
                same = 1;
            }
        }
    };
#endif
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

#ifdef LEAF
    RegisterAction<bit<32>, bit<16>, bit<32>>(bitmaps) complete_bitmap = {
        void apply(inout bit<32> bitmap, out bit<32> before) {
            before = 0;
            if (bitmap == meta.worker_bit) {
                before = bitmap;
                bitmap = meta.full_bitmap;
            }
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(bitmaps) compare_bitmap = {
        void apply(inout bit<32> bitmap, out bit<32> before) {
            before = 0;
            if (bitmap == meta.worker_bit) {
                before = bitmap;
            }
        }
    };
#endif

    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) read_fingerprint = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            stored = fingerprint;
        }
    };
#if !defined(LEAF) || defined(GUARDED)
    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) note_mark = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            fingerprint = fingerprint | IS_MARKED;
            stored = fingerprint;
        }
    };
    @hidden action add_mark() { meta.fingerprint = note_mark.execute(meta.half); }
#endif

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
#ifdef LEAF
    @hidden action result() { meta.step = STEP_STORE; }
    @hidden action status() { meta.step = STEP_STATUS; }
#endif
    @hidden table seq {
        key = { hdr.aggregation.op : exact; }
        actions = { data; reset; query; IF_LEAF(result; status;) @defaultonly NoAction; }
        const entries = {
            OP_DATA  : data();
            OP_RESET : reset();
            OP_QUERY : query();
            IF_LEAF(OP_RESULT : result(); OP_STATUS : status();)
        }
        const default_action = NoAction;
        size = 8;
    }

    @hidden action data_round() { meta.live = advance_round.execute(meta.half); }
    @hidden action reset_round() { set_round.execute(meta.half); }
    IF_LEAF(@hidden action check_round() { meta.live = compare_round.execute(meta.half); })
    @hidden table round {
        key = { hdr.aggregation.op : exact; }
        actions = { data_round; reset_round; IF_LEAF(check_round;) @defaultonly NoAction; }
        const entries = {
            OP_DATA  : data_round();
            OP_RESET : reset_round();
            IF_LEAF(OP_RESULT : check_round(); OP_STATUS : check_round();)
        }
        const default_action = NoAction;
        size = 4;
    }

    @hidden action data_operation() { meta.same = advance_operation.execute(meta.half); }
    @hidden action reset_operation() { set_operation.execute(meta.half); }
    IF_LEAF(@hidden action check_operation() { meta.same = compare_operation.execute(meta.half); })
    @hidden table operation {
        key = { hdr.aggregation.op : exact; }
        actions = { data_operation; reset_operation; IF_LEAF(check_operation;) @defaultonly NoAction; }
        const entries = {
            OP_DATA  : data_operation();
            OP_RESET : reset_operation();
            IF_LEAF(OP_RESULT : check_operation(); OP_STATUS : check_operation();)
        }
        const default_action = NoAction;
        size = 4;
    }

    // A packet from the controller has no worker_bit: so a RESET clears the bitmap, and a QUERY reads it.
    @hidden action start_bitmap() { set_bitmap.execute(meta.half); }
    @hidden action count_worker() { meta.bitmap = add_to_bitmap.execute(meta.half); }
#ifdef LEAF
    @hidden action count_parent() { meta.bitmap = complete_bitmap.execute(meta.half); }
    @hidden action status_bitmap() { meta.bitmap = compare_bitmap.execute(meta.half); }
#endif
    @hidden table bitmap {
        key = {
            meta.step  : ternary;
            meta.newer : ternary;
            meta.live  : ternary;
            meta.same  : ternary;
        }
        actions = { start_bitmap; count_worker; IF_LEAF(count_parent; status_bitmap;) @defaultonly NoAction; }
        const entries = {
            (STEP_DATA,  1, _, _) : start_bitmap();
            (STEP_DATA,  0, 1, 1) : count_worker();
            (STEP_RESET, _, _, _) : start_bitmap();
            (STEP_QUERY, _, _, _) : count_worker();
            IF_LEAF((STEP_STORE, _, 1, 1) : count_parent(); (STEP_STATUS, _, 1, 1) : status_bitmap();)
        }
        const default_action = NoAction;
        size = 8;
    }

#ifdef LEAF
#include "leaf_state.p4"
#else
    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) set_fingerprint = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            stored = 0;
            fingerprint = hdr.aggregation.fingerprint;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) set_marked = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            stored = 0;
            fingerprint = hdr.aggregation.fingerprint | IS_MARKED;
        }
    };

    @hidden action start_fingerprint() { set_fingerprint.execute(meta.half); }
    @hidden action start_marked() { set_marked.execute(meta.half); }
    @hidden action query_fingerprint() { meta.fingerprint = read_fingerprint.execute(meta.half); }
    @hidden table fingerprint {
        key = {
            meta.step  : ternary;
            meta.newer : ternary;
            meta.live  : ternary;
            meta.same  : ternary;
            hdr.ipv4.tos[1:0] : ternary @name("ecn");
        }
        actions = { start_fingerprint; start_marked; add_mark; query_fingerprint; @defaultonly NoAction; }
        const entries = {
            (STEP_DATA,  1, _, _, ECN_CE) : start_marked();
            (STEP_DATA,  1, _, _, _)      : start_fingerprint();
            (STEP_DATA,  0, 1, 1, ECN_CE) : add_mark();
            (STEP_DATA,  0, _, _, _)      : query_fingerprint();
            (STEP_QUERY, _, _, _, _)      : query_fingerprint();
        }
        const default_action = NoAction;
        size = 8;
    }
#endif

    @hidden action without_sender() {
        meta.others = meta.full_bitmap ^ meta.worker_bit;
    }

    apply {
        without_sender();
#ifdef LEAF
        notes.apply();
        if (meta.from_parent == 1) {
            all_workers();
        } else if (meta.below == 1) {
            without_parent();
        }
#endif
        if (hdr.aggregation.isValid() && meta.outcome == OUTCOME_STARTED && meta.own == 1 && meta.margin == 0) {
            seq.apply();
            round.apply();
            operation.apply();
        }
        bitmap.apply();
        fingerprint.apply();
        IF_LEAF(partial.apply();)
    }
}

#ifdef LEAF
#include "leaf_decision.p4"
#else
#include "root_decision.p4"
#endif

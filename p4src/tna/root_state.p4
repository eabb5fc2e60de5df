// SPDX-License-Identifier: Apache-2.0
// The part of SlotState for a program that runs only at the root of a tree.
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

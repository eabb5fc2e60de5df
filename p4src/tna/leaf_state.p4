// SPDX-License-Identifier: Apache-2.0
// The part of SlotState for a program that can run below another switch.
//
// Bit 1 of a stored fingerprint says whether any worker has sent values. The bit is free, because a packet has one lane.
// A packet from the controller has no worker_bit: so a RESET clears the bitmap, and a QUERY reads it.
    RegisterAction<bit<32>, bit<16>, bit<32>>(bitmaps) complete_bitmap = {
        void apply(inout bit<32> bitmap, out bit<32> before) {
            before = 0;
            if (bitmap == meta.worker_bit) {
                before = bitmap;
                bitmap = meta.full_bitmap;
            }
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(bitmaps) read_bitmap = {
        void apply(inout bit<32> bitmap, out bit<32> before) {
            before = bitmap;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) set_fingerprint = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            fingerprint = meta.noted;
            stored = fingerprint;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) note_values = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            fingerprint = fingerprint | meta.noted;
            stored = fingerprint;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) read_fingerprint = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            stored = fingerprint;
        }
    };

    RegisterAction<partial_t, bit<16>, bit<1>>(partials) set_envoy = {
        void apply(inout partial_t partial, out bit<1> is_envoy) {
            is_envoy = 0;
            partial.bitmap = meta.worker_bit;
            partial.envoy = meta.worker_bit;
        }
    };
    RegisterAction<partial_t, bit<16>, bit<1>>(partials) find_envoy = {
        void apply(inout partial_t partial, out bit<1> is_envoy) {
            is_envoy = 0;
            if (partial.envoy == meta.worker_bit) {
                is_envoy = 1;
            }
            if (partial.bitmap == meta.others) {
                partial.envoy = meta.worker_bit;
            }
            partial.bitmap = partial.bitmap | meta.worker_bit;
        }
    };
    RegisterAction<partial_t, bit<16>, bit<32>>(partials) read_envoy = {
        void apply(inout partial_t partial, out bit<32> envoy) {
            envoy = partial.envoy;
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
    @hidden action result() { meta.step = STEP_STORE; }
    @hidden action status() { meta.step = STEP_STATUS; }
    @hidden table seq {
        key = { hdr.aggregation.op : exact; }
        actions = { data; reset; query; result; status; @defaultonly NoAction; }
        const entries = {
            OP_DATA   : data();
            OP_RESET  : reset();
            OP_QUERY  : query();
            OP_RESULT : result();
            OP_STATUS : status();
        }
        const default_action = NoAction;
        size = 8;
    }

    @hidden action data_round() { meta.live = advance_round.execute(meta.half); }
    @hidden action reset_round() { set_round.execute(meta.half); }
    @hidden action check_round() { meta.live = compare_round.execute(meta.half); }
    @hidden table round {
        key = { hdr.aggregation.op : exact; }
        actions = { data_round; reset_round; check_round; @defaultonly NoAction; }
        const entries = {
            OP_DATA   : data_round();
            OP_RESET  : reset_round();
            OP_RESULT : check_round();
            OP_STATUS : check_round();
        }
        const default_action = NoAction;
        size = 4;
    }

    @hidden action data_operation() { meta.same = advance_operation.execute(meta.half); }
    @hidden action reset_operation() { set_operation.execute(meta.half); }
    @hidden action check_operation() { meta.same = compare_operation.execute(meta.half); }
    @hidden table operation {
        key = { hdr.aggregation.op : exact; }
        actions = { data_operation; reset_operation; check_operation; @defaultonly NoAction; }
        const entries = {
            OP_DATA   : data_operation();
            OP_RESET  : reset_operation();
            OP_RESULT : check_operation();
            OP_STATUS : check_operation();
        }
        const default_action = NoAction;
        size = 4;
    }

    @hidden action start_bitmap() { set_bitmap.execute(meta.half); }
    @hidden action count_worker() { meta.bitmap = add_to_bitmap.execute(meta.half); }
    @hidden action count_parent() { meta.bitmap = complete_bitmap.execute(meta.half); }
    @hidden action status_bitmap() { meta.bitmap = read_bitmap.execute(meta.half); }
    @hidden table bitmap {
        key = {
            meta.step  : ternary;
            meta.newer : ternary;
            meta.live  : ternary;
            meta.same  : ternary;
        }
        actions = { start_bitmap; count_worker; count_parent; status_bitmap; @defaultonly NoAction; }
        const entries = {
            (STEP_DATA,   1, _, _) : start_bitmap();
            (STEP_DATA,   0, 1, 1) : count_worker();
            (STEP_STORE,  _, 1, 1) : count_parent();
            (STEP_STATUS, _, 1, 1) : status_bitmap();
            (STEP_RESET,  _, _, _) : start_bitmap();
            (STEP_QUERY,  _, _, _) : count_worker();
        }
        const default_action = NoAction;
        size = 8;
    }

    @hidden action start_fingerprint() { meta.fingerprint = set_fingerprint.execute(meta.half); }
    @hidden action add_values() { meta.fingerprint = note_values.execute(meta.half); }
    @hidden action query_fingerprint() { meta.fingerprint = read_fingerprint.execute(meta.half); }
    @hidden table fingerprint {
        key = {
            meta.step  : ternary;
            meta.newer : ternary;
            meta.live  : ternary;
            meta.same  : ternary;
#ifdef GUARDED
            meta.worker_bit : ternary;
            meta.bitmap     : ternary;
        }
#define KNOWN_SENDER(w) (STEP_DATA, 0, 1, 1, ALREADY_ADDED(w)) : query_fingerprint();
#define ANYONE , _, _
#else
        }
#define ANYONE
#endif
        actions = { start_fingerprint; add_values; query_fingerprint; @defaultonly NoAction; }
        const entries = {
            (STEP_DATA,  1, _, _ ANYONE) : start_fingerprint();
#ifdef GUARDED
            REPEAT_32(KNOWN_SENDER)
#endif
            (STEP_DATA,  0, 1, 1 ANYONE) : add_values();
            (STEP_DATA,  0, _, _ ANYONE) : query_fingerprint();
            (STEP_QUERY, _, _, _ ANYONE) : query_fingerprint();
        }
        const default_action = NoAction;
        size = 64;
    }

    @hidden action start_envoy() { set_envoy.execute(meta.half); }
    @hidden action compare_envoy() { meta.of_envoy = find_envoy.execute(meta.half); }
    @hidden action name_envoy() { meta.seq = read_envoy.execute(meta.half); }
    @hidden table partial {
        key = {
            meta.step  : ternary;
            meta.newer : ternary;
            meta.live  : ternary;
            meta.same  : ternary;
        }
        actions = { start_envoy; compare_envoy; name_envoy; @defaultonly NoAction; }
        const entries = {
            (STEP_DATA,   1, _, _) : start_envoy();
            (STEP_DATA,   0, 1, 1) : compare_envoy();
            (STEP_STORE,  _, _, _) : name_envoy();
            (STEP_STATUS, _, _, _) : name_envoy();
        }
        const default_action = NoAction;
        size = 4;
    }

    @hidden action without_sender() {
        meta.others = meta.full_bitmap ^ meta.worker_bit;
        meta.noted = hdr.aggregation.fingerprint;
    }
    @hidden action with_values() { meta.noted = meta.noted | 2; }
    // The parent stands for all workers here. `full_bitmap` has its own bit.
    @hidden action all_workers() { meta.worker_bit = meta.others; }
    @hidden action without_parent() { meta.others = meta.others & ~PARENT_BIT; }

    apply {
        without_sender();
        if (hdr.aggregation.present == 1) {
            with_values();
        }
        if (meta.from_parent == 1) {
            all_workers();
        } else if (meta.below == 1) {
            without_parent();
        }
        if (hdr.aggregation.isValid() && meta.outcome == OUTCOME_STARTED && meta.own == 1 && meta.margin == 0) {
            seq.apply();
            round.apply();
            operation.apply();
        }
        bitmap.apply();
        fingerprint.apply();
        partial.apply();
    }

// SPDX-License-Identifier: Apache-2.0
// The part of SlotState for a program that can run below another switch: what is noted of a round's packets, and the
// envoy.
    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) set_fingerprint = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            fingerprint = meta.noted;
            stored = fingerprint;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(fingerprints) note_packet = {
        void apply(inout bit<32> fingerprint, out bit<32> stored) {
            fingerprint = fingerprint | meta.noted;
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

    @hidden action start_fingerprint() { meta.fingerprint = set_fingerprint.execute(meta.half); }
    @hidden action add_packet() { meta.fingerprint = note_packet.execute(meta.half); }
    @hidden action query_fingerprint() { meta.fingerprint = read_fingerprint.execute(meta.half); }
    @hidden table fingerprint {
        key = {
            meta.step  : ternary;
            meta.newer : ternary;
            meta.live  : ternary;
            meta.same  : ternary;
#ifdef GUARDED
            meta.worker_bit   : ternary;
            meta.bitmap       : ternary;
            hdr.ipv4.tos[1:0] : ternary @name("ecn");
        }
        actions = { start_fingerprint; add_packet; add_mark; query_fingerprint; @defaultonly NoAction; }
#define MARKED_REPEAT(w) (STEP_DATA, 0, 1, 1, ALREADY_ADDED(w), ECN_CE) : add_mark();
#define OTHER_REPEAT(w)  (STEP_DATA, 0, 1, 1, ALREADY_ADDED(w), _)      : query_fingerprint();
#define ANY , _, _, _
#else
        }
        actions = { start_fingerprint; add_packet; query_fingerprint; @defaultonly NoAction; }
#define ANY
#endif
        const entries = {
            (STEP_DATA,   1, _, _ ANY) : start_fingerprint();
#ifdef GUARDED
            REPEAT_32(MARKED_REPEAT)
            REPEAT_32(OTHER_REPEAT)
            // The bitmap is 0 if the parent's packet is dropped.
            (STEP_STORE,  _, _, _, _, 0, _) : query_fingerprint();
            (STEP_STATUS, _, _, _, _, 0, _) : query_fingerprint();
#endif
            (STEP_DATA,   0, 1, 1 ANY) : add_packet();
            (STEP_STORE,  _, 1, 1 ANY) : add_packet();
            (STEP_STATUS, _, 1, 1 ANY) : add_packet();
            (STEP_DATA,   0, _, _ ANY) : query_fingerprint();
            (STEP_QUERY,  _, _, _ ANY) : query_fingerprint();
        }
        const default_action = NoAction;
        size = 128;
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

    @hidden action note(bit<32> bits) { meta.noted = hdr.aggregation.fingerprint | bits; }
    @hidden table notes {
        key = {
            hdr.aggregation.op      : ternary;
            hdr.aggregation.present : ternary;
            hdr.ipv4.tos[1:0]       : ternary @name("ecn");
        }
        actions = { note; }
        const entries = {
            (OP_DATA, 1, ECN_CE) : note(HAS_VALUES | IS_MARKED);
            (OP_DATA, 1, _)      : note(HAS_VALUES);
            (_,       _, ECN_CE) : note(IS_MARKED);
        }
        const default_action = note(0);
        size = 4;
    }

    // The parent stands for all workers here. `full_bitmap` has its own bit.
    @hidden action all_workers() { meta.worker_bit = meta.others; }
    @hidden action without_parent() { meta.others = meta.others & ~PARENT_BIT; }

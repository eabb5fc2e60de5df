// SPDX-License-Identifier: Apache-2.0
// The part of SlotState for a program that can run below another switch: whether any worker has sent values, and the
// envoy.
//
// Bit 1 of a stored fingerprint says whether any worker has sent values. The bit is free, because a packet has one
// lane.
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

    @hidden action with_values() { meta.noted = meta.noted | 2; }
    // The parent stands for all workers here. `full_bitmap` has its own bit.
    @hidden action all_workers() { meta.worker_bit = meta.others; }
    @hidden action without_parent() { meta.others = meta.others & ~PARENT_BIT; }

// SPDX-License-Identifier: Apache-2.0
// The registers of a lane: the smallest key that the workers have announced (bmv2/lane.p4), and the sums of its block.
//
// Tables with constant entries choose the stateful action: start in a newer round, add in the current one, read for a
// QUERY and for a worker that was added before.

#if defined(LEAF) && !defined(GUARDED)
// Beside the key is a copy of the bitmap of the workers here, so that the parent's keys replace theirs only when all
// workers are counted. Afterwards the copy matches no more.
struct key_cell_t {
    bit<32> bitmap;
    bit<32> least;
}
#endif

control Key(inout bit<32> announced, in metadata_t meta) {
#if !defined(LEAF) || defined(GUARDED)
#define REPLACE
    Register<bit<32>, bit<16>>(HALVES, 0) keys;

    RegisterAction<bit<32>, bit<16>, bit<32>>(keys) set_key = {
        void apply(inout bit<32> stored, out bit<32> least) {
            least = 0;
            stored = announced;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(keys) lower_key = {
        void apply(inout bit<32> stored, out bit<32> least) {
            stored = min(stored, announced);
            least = stored;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(keys) read_key = {
        void apply(inout bit<32> stored, out bit<32> least) {
            least = stored;
        }
    };
#else
    Register<key_cell_t, bit<16>>(HALVES, {0, 0}) keys;

    RegisterAction<key_cell_t, bit<16>, bit<32>>(keys) set_key = {
        void apply(inout key_cell_t stored, out bit<32> least) {
            least = 0;
            stored.bitmap = meta.worker_bit;
            stored.least = announced;
        }
    };
    RegisterAction<key_cell_t, bit<16>, bit<32>>(keys) lower_key = {
        void apply(inout key_cell_t stored, out bit<32> least) {
            stored.bitmap = stored.bitmap | meta.worker_bit;
            stored.least = min(stored.least, announced);
            least = stored.least;
        }
    };
    RegisterAction<key_cell_t, bit<16>, bit<32>>(keys) replace_key = {
        void apply(inout key_cell_t stored, out bit<32> least) {
            least = 0;
            if (stored.bitmap == meta.worker_bit) {
                stored.bitmap = ~meta.worker_bit;
                stored.least = announced;
            }
        }
    };
    RegisterAction<key_cell_t, bit<16>, bit<32>>(keys) read_key = {
        void apply(inout key_cell_t stored, out bit<32> least) {
            least = stored.least;
        }
    };
#define REPLACE replace;
    @hidden action replace() { replace_key.execute(meta.half); }
#endif

    @hidden action start() { set_key.execute(meta.half); }
    @hidden action lower() { announced = lower_key.execute(meta.half); }
    @hidden action read() { announced = read_key.execute(meta.half); }
    @hidden table keep {
        key = {
            meta.step  : ternary;
            meta.newer : ternary;
            meta.live  : ternary;
            meta.same  : ternary;
#ifdef GUARDED
            meta.worker_bit : ternary;
            meta.bitmap     : ternary;
        }
        actions = { start; lower; read; NoAction; }
        const entries = {
            (STEP_QUERY, _, _, _, _, _) : read();
            (STEP_DATA,  1, _, _, _, _) : start();
#define KNOWN_ROW(w) (STEP_DATA, 0, 1, 1, ALREADY_ADDED(w)) : read();
            REPEAT_32(KNOWN_ROW)
            (STEP_DATA,  0, 1, 1, _, _) : lower();
            (STEP_STORE, _, 1, 1, _, 0) : NoAction();
            (STEP_STORE, _, 1, 1, _, _) : start();
        }
#else
        }
        actions = { start; lower; REPLACE read; @defaultonly NoAction; }
        const entries = {
            (STEP_QUERY, _, _, _) : read();
            (STEP_DATA,  1, _, _) : start();
            (STEP_DATA,  0, 1, 1) : lower();
#ifdef LEAF
            (STEP_STORE, _, 1, 1) : replace();
#endif
        }
#endif
        const default_action = NoAction;
        size = 64;
    }

    apply {
        keep.apply();
    }
}

// The table that drives a register of sums. A packet without values carries zeros here, so adding them reads the sums.
#ifdef SECOND_PASS
#define HARVEST_ACTION harvest;
#define HARVEST_ENTRY (STEP_HARVEST, _, _, _, _, _, _) : harvest();
#else
#define HARVEST_ACTION
#define HARVEST_ENTRY
#endif
#ifdef LEAF
// The bitmap is 0 if the parent's RESULT is not to be stored.
#define STORE_ENTRIES \
            (STEP_STORE, _, 1, 1, _, _, 0) : NoAction(); \
            (STEP_STORE, _, 1, 1, _, _, _) : start();
#else
#define STORE_ENTRIES
#endif
#define READ_ROW(w) (STEP_DATA, 0, 1, 1, _, ALREADY_ADDED(w)) : read();
#define SUMS_TABLE \
    @hidden table sum { \
        key = { \
            meta.step       : ternary; \
            meta.newer      : ternary; \
            meta.live       : ternary; \
            meta.same       : ternary; \
            meta.active     : ternary; \
            meta.worker_bit : ternary; \
            meta.bitmap     : ternary; \
        } \
        actions = { start; add; read; HARVEST_ACTION NoAction; } \
        const entries = { \
            HARVEST_ENTRY \
            (_,          _, _, _, 0, _, _) : NoAction(); \
            (STEP_QUERY, _, _, _, _, _, _) : read(); \
            (STEP_DATA,  1, _, _, _, _, _) : start(); \
            STORE_ENTRIES \
            REPEAT_32(READ_ROW) \
            (STEP_DATA,  0, 1, 1, _, _, _) : add(); \
        } \
        const default_action = NoAction; \
        size = 64; \
    }

#ifdef PAIRS
#include "pair.p4"
#define FOR_EACH_REGISTER(m) FOR_EACH_PAIR(m)
#define SUM_INSTANCE(i, j) Pair() pair##i;
#define APPLY_SUM(i, j) pair##i.apply(values.v##i, values.v##j, meta);
#else
#include "single.p4"
#define FOR_EACH_REGISTER(m) FOR_EACH_VALUE(m)
#define SUM_INSTANCE(i) Value() value##i;
#define APPLY_SUM(i) value##i.apply(values.v##i, meta);
#endif

control Lane(inout values_h values, in metadata_t meta) {
    FOR_EACH_REGISTER(SUM_INSTANCE)

    apply {
        FOR_EACH_REGISTER(APPLY_SUM)
    }
}

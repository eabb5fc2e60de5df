// SPDX-License-Identifier: Apache-2.0
// SlotState: the round of a slot half. The rules are those of bmv2/slot_state.p4.
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

#ifdef LEAF
// The worker whose packet completed the rack's round, beside a copy of the bitmap of the workers here, without the parent.
struct partial_t {
    bit<32> bitmap;
    bit<32> envoy;
}
#endif

// Worker w is the sender, and in the bitmap: its packet was added before.
#define ALREADY_ADDED(w) 32w1 << w &&& 32w1 << w, 32w1 << w &&& 32w1 << w

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

    // The other stateful ALU programs, the tables, and what applies them.
#ifdef LEAF
#include "leaf_state.p4"
#else
#include "root_state.p4"
#endif
}

#ifdef LEAF
#include "leaf_decision.p4"
#else
#include "root_decision.p4"
#endif

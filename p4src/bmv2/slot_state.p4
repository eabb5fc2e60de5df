// SPDX-License-Identifier: Apache-2.0
// SlotState: the round of a slot half, and the outcome of a packet for it.
//
// A half stores the round's number (seq), the bitmap of the workers whose packets were added, the operation's
// fingerprint, and what a packet to the parent needs. A packet from a worker, with its seq compared with the half's:
//
//   newer                                       STARTED   the half starts over with this packet.
//   older, or equal after a reset               STALE     dropped.
//   equal, other fingerprint                    MISMATCH  the ranks do not execute the same operation.
//   equal, worker not in the bitmap             ADDED.
//   equal, bitmap full                          REPLAYED  the sender has lost the RESULT.
//   equal, all here added, sender is the envoy  SENT_UP   the parent may have lost the partial sums.
//   equal, otherwise                            AHEAD     the sender has to wait for others.
//
// A packet from the parent counts only while the half's own workers are all added and the round is the same. A RESULT
// replaces the partial sums by those of the whole tree (STORED). A STATUS says that the parent waits for others (AHEAD).
//
// If a router has marked a packet of the round (CE, RFC 3168), the half remembers it, and so do all later replies of the
// round. STALE and MISMATCH packets are not of the round.
control SlotState(in headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(HALVES) seqs;
    register<bit<32>>(HALVES) bitmaps;
    register<bit<32>>(HALVES) fingerprints;
    register<bit<17>>(HALVES) partials;  // for the packet to the parent: marked (1), envoy (8), present (8)

    bit<17> partial;
    bit<1> marked;

    action read() {
        seqs.read(meta.seq, meta.half);
        bitmaps.read(meta.bitmap, meta.half);
        fingerprints.read(meta.fingerprint, meta.half);
        partials.read(partial, meta.half);
        marked = partial[16:16];
        meta.envoy = partial[15:8];
        meta.present = partial[7:0];
    }

    action start() {
        meta.outcome = OUTCOME_STARTED;
        meta.bitmap = meta.worker_bit;
        meta.keep = 0;
        meta.add = hdr.aggregation.present;
        meta.touch = hdr.aggregation.active;
        meta.present = hdr.aggregation.present;
        meta.envoy = hdr.aggregation.worker;
        marked = 0;
        seqs.write(meta.half, hdr.aggregation.seq);
        bitmaps.write(meta.half, meta.bitmap);
        fingerprints.write(meta.half, hdr.aggregation.fingerprint);
    }

    action add() {
        meta.outcome = OUTCOME_ADDED;
        meta.bitmap = meta.bitmap | meta.worker_bit;
        meta.add = hdr.aggregation.present;
        meta.touch = hdr.aggregation.present;
        meta.present = meta.present | hdr.aggregation.present;
        meta.envoy = hdr.aggregation.worker;
        bitmaps.write(meta.half, meta.bitmap);
    }

    action store() {
        meta.outcome = OUTCOME_STORED;
        meta.bitmap = meta.full_bitmap;
        meta.keep = 0;
        meta.add = hdr.aggregation.present;
        bitmaps.write(meta.half, meta.bitmap);
    }

    apply {
        read();
        bit<32> all_workers = meta.below == 1 ? meta.full_bitmap & ~PARENT_BIT : meta.full_bitmap;
        bit<32> age = hdr.aggregation.seq - meta.seq;  // a serial number: RFC 1982
        if (hdr.aggregation.op == OP_RESET) {
            meta.outcome = OUTCOME_RESET;
            meta.bitmap = 0;
            seqs.write(meta.half, hdr.aggregation.seq);
            bitmaps.write(meta.half, meta.bitmap);
        } else if (hdr.aggregation.op == OP_QUERY) {
            meta.outcome = OUTCOME_QUERY;
            meta.touch = hdr.aggregation.active;
        } else {
            if (meta.from_parent == 1) {
                // Once per round: after a RESULT the bitmap is full, so a second one is stale.
                if (age != 0 || hdr.aggregation.fingerprint != meta.fingerprint || meta.bitmap != all_workers) {
                    meta.outcome = OUTCOME_STALE;
                } else if (hdr.aggregation.op == OP_RESULT) {
                    store();
                } else {
                    meta.outcome = OUTCOME_AHEAD;
                }
            } else if (age[31:31] == 1 || (age == 0 && meta.bitmap == 0)) {  // bitmap 0: was reset
                meta.outcome = OUTCOME_STALE;
            } else if (age != 0) {
                start();
            } else if (hdr.aggregation.fingerprint != meta.fingerprint) {
                meta.outcome = OUTCOME_MISMATCH;
            } else if (meta.bitmap & meta.worker_bit == 0) {
                add();
            } else if (meta.bitmap == meta.full_bitmap) {
                meta.outcome = OUTCOME_REPLAYED;
                meta.touch = hdr.aggregation.active;
            } else if (meta.bitmap == all_workers && hdr.aggregation.worker == meta.envoy) {
                meta.outcome = OUTCOME_SENT_UP;
            } else {
                meta.outcome = OUTCOME_AHEAD;
            }

            if (meta.outcome != OUTCOME_STALE && meta.outcome != OUTCOME_MISMATCH) {
                bit<2> ecn = hdr.ipv6.isValid() ? hdr.ipv6.traffic_class[1:0] : hdr.ipv4.tos[1:0];
                meta.marked = ecn == ECN_CE ? 1w1 : marked;
                partials.write(meta.half, meta.marked ++ meta.envoy ++ meta.present);
            }
            if (meta.outcome == OUTCOME_STARTED || meta.outcome == OUTCOME_ADDED) {
                meta.complete = meta.bitmap == meta.full_bitmap ? 1w1 : 1w0;
                meta.send_up = meta.bitmap == all_workers ? ~meta.complete : 1w0;
            } else if (meta.outcome == OUTCOME_STORED) {
                meta.complete = 1;
            } else if (meta.outcome == OUTCOME_SENT_UP) {
                meta.send_up = 1;
            }
            if (meta.complete == 1 || meta.send_up == 1) {
                meta.touch = hdr.aggregation.active;
            }
        }
    }
}

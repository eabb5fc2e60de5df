// SPDX-License-Identifier: Apache-2.0
// The round that a slot half is in: its number, who has been counted, which operation it belongs to, and what goes up.
control SlotState(in headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(HALVES) seqs;
    register<bit<32>>(HALVES) bitmaps;
    register<bit<32>>(HALVES) fingerprints;
    register<bit<16>>(HALVES) partials;  // of what goes up: envoy (8), present (8)

    bit<16> partial;

    action read() {
        seqs.read(meta.seq, meta.half);
        bitmaps.read(meta.bitmap, meta.half);
        fingerprints.read(meta.fingerprint, meta.half);
        partials.read(partial, meta.half);
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
        bit<32> all_workers = meta.full_bitmap & ~meta.parent_bit;
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
                // Only while the round is up there: the sums become the whole tree's once.
                if (age != 0 || hdr.aggregation.fingerprint != meta.fingerprint || meta.bitmap != all_workers) {
                    meta.outcome = OUTCOME_STALE;
                } else if (hdr.aggregation.op == OP_RESULT) {
                    store();
                } else {
                    meta.outcome = OUTCOME_AHEAD;
                }
            } else if (age[31:31] == 1 || (age == 0 && meta.bitmap == 0)) {  // a half that was reset has nothing to add to
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

            if (meta.outcome == OUTCOME_STARTED || meta.outcome == OUTCOME_ADDED) {
                partials.write(meta.half, hdr.aggregation.worker ++ meta.present);
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

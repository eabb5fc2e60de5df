// SPDX-License-Identifier: Apache-2.0
// The round that a slot half is in: its number, who has been counted, and which operation it belongs to.
control SlotState(in headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(HALVES) seqs;
    register<bit<32>>(HALVES) bitmaps;
    register<bit<32>>(HALVES) fingerprints;

    action read() {
        seqs.read(meta.seq, (bit<32>)meta.half);
        bitmaps.read(meta.bitmap, (bit<32>)meta.half);
        fingerprints.read(meta.fingerprint, (bit<32>)meta.half);
    }

    action start() {
        meta.outcome = OUTCOME_STARTED;
        meta.bitmap = meta.worker_bit;
        meta.keep = 0;
        meta.add = hdr.aggregation.present;
        meta.touch = hdr.aggregation.active;
        seqs.write((bit<32>)meta.half, hdr.aggregation.seq);
        bitmaps.write((bit<32>)meta.half, meta.bitmap);
        fingerprints.write((bit<32>)meta.half, hdr.aggregation.fingerprint);
    }

    action add() {
        meta.outcome = OUTCOME_ADDED;
        meta.bitmap = meta.bitmap | meta.worker_bit;
        meta.add = hdr.aggregation.present;
        meta.touch = hdr.aggregation.present;
        bitmaps.write((bit<32>)meta.half, meta.bitmap);
    }

    apply {
        read();
        if (hdr.aggregation.op == OP_RESET) {
            meta.outcome = OUTCOME_RESET;
            meta.bitmap = 0;
            seqs.write((bit<32>)meta.half, hdr.aggregation.seq);
            bitmaps.write((bit<32>)meta.half, meta.bitmap);
        } else if (hdr.aggregation.op == OP_DATA) {
            bit<32> age = hdr.aggregation.seq - meta.seq;  // a serial number: RFC 1982
            if (age[31:31] == 1 || (age == 0 && meta.bitmap == 0)) {  // a half that was reset has nothing to add to
                meta.outcome = OUTCOME_STALE;
            } else if (age != 0) {
                start();
                meta.complete = meta.bitmap == meta.full_bitmap ? 1w1 : 1w0;
            } else if (hdr.aggregation.fingerprint != meta.fingerprint) {
                meta.outcome = OUTCOME_MISMATCH;
            } else if (meta.bitmap & meta.worker_bit == 0) {
                add();
                if (meta.bitmap == meta.full_bitmap) {
                    meta.complete = 1;
                    meta.touch = hdr.aggregation.active;
                }
            } else if (meta.bitmap != meta.full_bitmap) {
                meta.outcome = OUTCOME_AHEAD;
            } else {
                meta.outcome = OUTCOME_REPLAYED;
                meta.touch = hdr.aggregation.active;
            }
        } else {
            meta.outcome = OUTCOME_QUERY;
            meta.touch = hdr.aggregation.active;
        }
    }
}

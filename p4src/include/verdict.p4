// SPDX-License-Identifier: Apache-2.0
// Verdict: the outcome of a packet that may not reach its slot.
//
// A slot has two halves, for even and odd rounds, so the last bits of `slot` and `seq` are the same in a sound packet.
control Verdict(in headers_t hdr, inout metadata_t meta) {
    apply {
        if (meta.admitted == 0) {
            meta.outcome = OUTCOME_NOT_ADMITTED;
        } else if (meta.room == 0 || hdr.aggregation.slot[0:0] != hdr.aggregation.seq[0:0]) {
            meta.outcome = OUTCOME_BAD_SLOT;
        }
    }
}
